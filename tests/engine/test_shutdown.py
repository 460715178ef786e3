"""Opening, draining, closing, opening again; forks and the end of the interpreter (R41)."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from tests.support.engines import Bench, Gate, World, brief, in_background, until
from tests.support.faulty_store import DOWN
from twiceproof import AsyncEngine, Engine, Policy, Request, Response
from twiceproof.core._outcome import Answered

DONE = Answered(Response(201, [], b"done"))


def test_an_engine_opens_itself_at_the_first_covered_request(bench):
    """Never at import or construction, and once."""
    assert bench.faults.count()["open"] == 0
    bench.handle(request=bench.request(key=None))
    assert bench.faults.count()["open"] == 0
    for n in range(3):
        bench.handle(key=f"key-{n}")
    assert bench.faults.count()["open"] == 1


def test_shutdown_waits_for_what_still_runs_and_renews_it(make):
    """For up to `drain`: the answer is stored by its own handler."""
    bench = make(World(clock=time.monotonic), drain=15)
    gate = Gate()
    with gate.running(bench, Policy(lease=0.5)):
        closing = in_background(bench.drain)
        time.sleep(0.7)
        assert not closing.done()
        assert bench.faults.count()["background.renew"] >= 2
        assert bench.world.states() == ["in_flight"]
    closing.result(10)
    assert bench.world.states() == ["completed"]
    assert bench.faults.count()["close"] == 1


def test_shutdown_finishes_pending_completions(make):
    """The answer that could not be stored yet is stored before the process ends."""
    bench = make(drain=15)
    bench.faults.now["complete"] = bench.faults.now["background.complete"] = DOWN
    bench.handle()
    closing = in_background(bench.drain)
    time.sleep(0.1)
    assert not closing.done()
    bench.faults.now.clear()
    closing.result(10)
    assert bench.world.states() == ["completed"]


def test_after_the_drain_what_still_runs_is_left_to_lapse(make):
    """Never released: its late answer may still come, and then it is the record's (R42)."""
    bench = make(drain=0.1)
    gate = Gate()
    with gate.running(bench):
        bench.drain()
        assert bench.world.states() == ["in_flight"]
        bench.world.clock.pass_(30)
        assert bench.world.states() == ["lapsed"]
    assert bench.world.states() == ["completed"]


def test_an_answer_that_still_cannot_be_stored_after_the_drain_is_given_up_with_an_event(make):
    """Its record is left to lapse."""
    bench = make(drain=0.1)
    bench.faults.now["complete"] = bench.faults.now["background.complete"] = DOWN
    bench.handle()
    bench.drain()
    assert bench.names == ["granted", "complete_retried:given-up"]
    assert bench.world.states() == ["in_flight"]


def test_a_late_answer_that_fails_after_the_close_is_left_to_lapse(make):
    """Nothing repeats it any more, and nothing breaks."""
    bench = make(drain=0)
    run = bench.run()
    bench.drain()
    bench.faults.now["complete"] = DOWN
    bench.finish(run, DONE)
    assert (bench.world.states(), bench.engine._keeper.idle) == (["in_flight"], True)


def test_closing_ends_the_thread(make):
    """No thread is left behind."""
    before = threading.active_count()
    bench = make()
    bench.finish(bench.run(), DONE)
    thread = bench.engine._keeper._thread
    assert thread.is_alive()
    bench.drain()
    assert not thread.is_alive()
    assert threading.active_count() <= before + (bench.colour == "async") * 3  # its loop, and the loop's own workers


def test_a_closed_engine_opens_again(make, world):
    """A lifespan that is run twice, as reloading servers and tests do."""
    bench = make(world)
    bench.handle()
    bench.drain()
    assert brief(bench.handle()) == (201, "", True)
    run = bench.run(Policy(lease=0.5), key="second-key")
    until(lambda: bench.faults.count()["background.renew"] >= 1)
    bench.finish(run, DONE)
    bench.drain()
    bench.drain()


def test_it_is_a_context_manager(colour, tmp_path):
    """Entering opens it, leaving closes it."""
    url = f"sqlite:///{tmp_path}/keys.db"
    request = Request("POST", b"/", b"", [(b"idempotency-key", b"k-1")], b"")

    async def asynchronously():
        async with AsyncEngine(url) as engine:

            async def handler(request, attempt):
                return Response(200)

            return [await engine.handle(request, "a", Policy(), handler) for _ in range(2)], engine

    if colour == "async":
        answers, engine = asyncio.run(asynchronously())
    else:
        with Engine(url) as engine:
            answers = [engine.handle(request, "a", Policy(), lambda request, attempt: Response(200)) for _ in range(2)]
    assert [brief(answer) for answer in answers] == [(200, "", False), (200, "", True)]
    assert engine._keeper.closed


def test_one_engine_serves_one_event_loop_after_another(tmp_path):
    """Opened once per loop: a framework's test client makes a loop per request."""
    engine = AsyncEngine(f"sqlite:///{tmp_path}/keys.db")
    request = Request("POST", b"/", b"", [(b"idempotency-key", b"k-1")], b"")

    async def handler(request, attempt):
        return Response(200)

    async def once():
        answer = await engine.handle(request, "a", Policy(), handler)
        return brief(answer)

    assert [asyncio.run(once()), asyncio.run(once())] == [(200, "", False), (200, "", True)]
    asyncio.run(engine.close())


def test_many_threads_that_come_first_open_it_with_one_keeper():
    """A blocking engine is used from many threads, also for the first time, and again after a close."""
    bench = Bench("blocking")
    try:
        for round_ in range(3):
            lined_up = threading.Barrier(8)

            def one(n, round_=round_, lined_up=lined_up):
                lined_up.wait()
                return bench.run(key=f"key-{round_}-{n}")

            runs = [future.result(10) for future in [in_background(functools.partial(one, n)) for n in range(8)]]
            assert len(bench.engine._keeper._runs) == 8
            for run in runs:
                bench.finish(run, DONE)
            bench.drain()
    finally:
        bench.close()


def in_child(work):
    """Fork, do it there, and return what it printed."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs is gone before anybody wonders
        try:
            os.write(writable, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_child_process_starts_anew(tmp_path):
    """After a fork: a connection and a thread of its own, and nothing of what its parent runs."""
    url = f"sqlite:///{tmp_path}/keys.db"
    engine = Engine(url, purge_every=0)
    request = Request("POST", b"/", b"", [(b"idempotency-key", b"k-1")], b"")
    run: Any = engine.begin(request, "a", Policy(lease=0.5))
    engine._opening.acquire()  # as if another thread were opening it at this moment
    second = Request("POST", b"/", b"", [(b"idempotency-key", b"k-2")], b"")

    def child():
        keeper = engine._keeper
        kinds = [brief(engine.handle(request, "a", Policy(), lambda request, attempt: Response(200)))]
        mine: Any = engine.begin(second, "a", Policy(lease=0.5))
        until(lambda: mine.renewed_at > mine.started_at)
        engine.finish(mine, DONE)
        engine.close()
        return [kinds, keeper._runs]

    try:
        assert in_child(child) == "[[(409, 'in-progress', False)], {}]"
        engine._opening.release()
        time.sleep(0.6)
        engine.finish(run, DONE)
        assert brief(engine.handle(second, "a", Policy(), lambda request, attempt: Response(200))) == (201, "", True)
    finally:
        engine.close()


def test_an_asynchronous_engine_starts_anew_in_a_child_process(tmp_path):
    """As workers do that are forked from a parent in which the engine was used."""
    engine = AsyncEngine(f"sqlite:///{tmp_path}/keys.db", purge_every=0)
    request = Request("POST", b"/", b"", [(b"idempotency-key", b"k-1")], b"")

    async def handler(request, attempt):
        return Response(200)

    def served():
        async def one():
            try:
                return brief(await engine.handle(request, "a", Policy(), handler))
            finally:
                await engine.close()

        return asyncio.run(one())

    assert served() == (200, "", False)
    assert in_child(served) == "(200, '', True)"


SCRIPT = """
    import asyncio, sys, threading, time
    from twiceproof import AsyncEngine, Engine, Policy, Request, Response
    from twiceproof.core._outcome import Answered
    from tests.support.engines import World
    from tests.support.faulty_store import AsyncFaultyStore, DOWN, Faults, FaultyStore

    class Told:
        def __call__(self, event):
            print(event.name, event.code, flush=True)

    faults, world = Faults(), World()
    faults.next = {"complete": [DOWN], "background.complete": [DOWN]}
    options = dict(accept_volatile=True, on_event=Told(), drain=5)
    request = Request("POST", b"/", b"", [(b"idempotency-key", b"k-1")], b"")
"""
ENDS = {
    "blocking": """
    engine = Engine(FaultyStore(world.store("blocking"), faults), **options)
    engine.handle(request, "a", Policy(), lambda request, attempt: Response(200))
    """,
    "async": """
    async def main():
        async def handler(request, attempt):
            return Response(200)
        await engine.handle(request, "a", Policy(), handler)
        other = Request("POST", b"/", b"", [(b"idempotency-key", b"k-2")], b"")
        await engine.begin(other, "a", Policy())  # nobody will ever finish it
    engine = AsyncEngine(AsyncFaultyStore(world.store("async"), faults), **options)
    asyncio.run(main())
    """,
    "dropped": """
    engine = Engine(FaultyStore(world.store("blocking"), faults), **options)
    del engine
    """,
}


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("blocking", ["granted ", "complete_retried "]),
        ("async", ["granted ", "granted ", "complete_retried "]),
        ("dropped", []),
    ],
)
def test_the_end_of_the_interpreter_finishes_pending_completions(end, told):
    """Where no lifespan closed it: a process that simply ends loses no answer."""
    script = textwrap.dedent(SCRIPT) + textwrap.dedent(ENDS[end])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()) == (0, told), done.stderr
