"""Lanes: what waits at the same moment goes out together, nobody waits on purpose, and a failure reaches everybody."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores import _lanes
from twiceproof.stores._loop_lanes import LanesByLoop, LoopLanes
from twiceproof.stores._thread_lanes import ThreadLanes, _Waiting


@dataclass
class Verb:
    id: bytes
    group: str | None = "all"


@dataclass
class Server:
    """A server that answers a batch when it is let: ``behave`` says how."""

    behave: Callable[[Sequence[Verb]], Sequence[object]] = lambda verbs: [verb.id for verb in verbs]
    connects: Callable[[], None] = lambda: None
    batches: list[list[bytes]] = field(default_factory=list)
    closed: int = 0
    opened: int = 0
    alive: bool = True
    gate: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def connect(self) -> ThreadLane:
        self.connects()
        self.opened += 1
        return ThreadLane(self)

    async def connect_async(self) -> LoopLane:
        self.connects()
        self.opened += 1
        return LoopLane(self)


@dataclass
class ThreadLane:
    server: Server

    def usable(self) -> bool:
        return self.server.alive

    def run(self, verbs: Sequence[Verb]) -> Sequence[object]:
        self.server.batches.append([verb.id for verb in verbs])
        self.server.arrived.release()
        assert self.server.gate.wait(10)
        return self.server.behave(verbs)

    def close(self) -> None:
        self.server.closed += 1


@dataclass
class LoopLane(ThreadLane):
    async def run(self, verbs: Sequence[Verb]) -> Sequence[object]:  # type: ignore[override]
        self.server.batches.append([verb.id for verb in verbs])
        while not self.server.gate.is_set():  # noqa: ASYNC110  # the gate is a thread's, for both colours
            await asyncio.sleep(0.001)
        return self.server.behave(verbs)


def in_threads(server: Server, verbs: Sequence[Verb], *, size: int = 1, timeout: float = 5.0) -> list[object]:
    """Run the first verb, and the others once it is under way; the gate opens when all of them wait."""
    lanes = ThreadLanes[Verb](server.connect, "the server", size=size, timeout=timeout)
    answers: dict[int, object] = {}

    def one(at: int) -> None:
        try:
            answers[at] = lanes.run(verbs[at])
        except Exception as error:
            answers[at] = error

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(verbs))]
    for at, thread in enumerate(threads):
        thread.start()
        if at < size:
            assert server.arrived.acquire(timeout=5)
        else:
            while len(lanes._pile) < at - size + 1:
                assert thread.is_alive()
    server.gate.set()
    for thread in threads:
        thread.join(10)
    lanes.close()
    return [answers[at] for at in range(len(verbs))]


def on_a_loop(server: Server, verbs: Sequence[Verb], *, size: int = 1, timeout: float = 5.0) -> list[object]:
    """The same on an event loop."""

    async def main() -> list[object]:
        lanes = LoopLanes[Verb](server.connect_async, "the server", size=size, timeout=timeout)
        tasks = [asyncio.ensure_future(lanes.run(verb)) for verb in verbs]
        await asyncio.sleep(0.01)
        server.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        lanes.close()
        return list(answers)

    return asyncio.run(main())


COLOURS = {"threads": in_threads, "loop": on_a_loop}


@pytest.fixture(params=COLOURS)
def run(request) -> Callable[..., list[object]]:
    return COLOURS[request.param]


def test_what_piles_up_goes_out_together(run):
    """The first goes at once and alone; all that came meanwhile share one round trip."""
    server = Server()
    assert run(server, [Verb(b"a"), Verb(b"b"), Verb(b"c"), Verb(b"d")]) == [b"a", b"b", b"c", b"d"]
    assert server.batches == [[b"a"], [b"b", b"c", b"d"]]


def test_every_free_lane_is_used_before_anybody_waits(run):
    """Two lanes: two verbs go out alone."""
    server = Server()
    assert run(server, [Verb(b"a"), Verb(b"b"), Verb(b"c")], size=2) == [b"a", b"b", b"c"]
    assert server.batches == [[b"a"], [b"b"], [b"c"]]
    assert server.opened == 2


def test_a_batch_names_each_id_once_and_keeps_their_order(run):
    """A statement can't touch one row twice; and what was asked first of a record is done first."""
    server = Server()
    verbs = [Verb(b"a"), Verb(b"b"), Verb(b"b"), Verb(b"c"), Verb(b"b")]
    assert run(server, verbs) == [b"a", b"b", b"b", b"c", b"b"]
    assert server.batches == [[b"a"], [b"b", b"c"], [b"b"], [b"b"]]


def test_groups_do_not_mix_and_who_has_none_goes_alone(run):
    """A claim and a completion are different statements. A later verb never overtakes one of its own record."""
    server = Server()
    verbs = [
        *(Verb(b"a", "claim"), Verb(b"b", "complete"), Verb(b"c", None), Verb(b"b", "claim")),
        *(Verb(b"d", "complete"), Verb(b"e", "claim"), Verb(b"f", None)),
    ]
    assert run(server, verbs) == [b"a", b"b", b"c", b"b", b"d", b"e", b"f"]
    assert server.batches == [[b"a"], [b"b", b"d"], [b"c"], [b"b", b"e"], [b"f"]]


def test_a_batch_is_bounded(run, monkeypatch):
    """Memory stays bounded, and so does how long one answer waits for the others."""
    monkeypatch.setattr(_lanes, "MOST_AT_ONCE", 3)
    server = Server()
    verbs = [Verb(bytes([at])) for at in range(8)]
    assert run(server, verbs) == [verb.id for verb in verbs]
    assert [len(batch) for batch in server.batches] == [1, 3, 3, 1]


def test_an_answer_may_be_an_exception_for_one_of_them(run):
    """One bad row is its caller's alone."""
    server = Server(lambda verbs: [ValueError("bad") if verb.id == b"c" else verb.id for verb in verbs])
    answers = run(server, [Verb(b"a"), Verb(b"b"), Verb(b"c")])
    assert answers[:2] == [b"a", b"b"]
    assert isinstance(answers[2], ValueError)
    assert server.closed == 1  # at the end: the connection was good


def test_a_lost_connection_is_told_to_all_of_the_batch_and_closed(run):
    """R48: none of them knows its outcome; each gets an error of its own."""

    def behave(verbs: Sequence[Verb]) -> Sequence[object]:
        if len(verbs) > 1:
            raise StoreOutcomeUnknown("lost")
        return [verb.id for verb in verbs]

    server = Server(behave)
    answers = run(server, [Verb(b"a"), Verb(b"b"), Verb(b"c")])
    assert answers[0] == b"a"
    assert [(type(error), str(error)) for error in answers[1:]] == [(StoreOutcomeUnknown, "lost")] * 2
    assert answers[1] is not answers[2]
    assert server.closed == 1


def test_a_verb_that_got_no_turn_was_never_sent(run):
    """R48: within the time-out, it says so, and that nothing was sent."""
    server = Server()
    done = threading.Timer(0.5, server.gate.set)
    done.start()
    lanes: Any = ThreadLanes if run is in_threads else LoopLanes

    def threads() -> object:
        waiting = ThreadLanes[Verb](server.connect, "the server", size=1, timeout=0.05)
        first = threading.Thread(target=waiting.run, args=(Verb(b"a"),))
        first.start()
        assert server.arrived.acquire(timeout=5)
        try:
            return waiting.run(Verb(b"b"))
        finally:
            first.join()

    async def loop() -> object:
        waiting = LoopLanes[Verb](server.connect_async, "the server", size=1, timeout=0.05)
        first = asyncio.ensure_future(waiting.run(Verb(b"a")))
        await asyncio.sleep(0)
        try:
            return await waiting.run(Verb(b"b"))
        finally:
            await first

    with pytest.raises(StoreUnavailable, match=r"^the server: no connection was free within 0.05 s") as caught:
        threads() if lanes is ThreadLanes else asyncio.run(loop())
    assert type(caught.value) is StoreUnavailable
    assert server.batches == [[b"a"]]
    done.join()


def one_by_one(run: object, server: Server, verbs: Sequence[Verb], clock: list[float]) -> list[object]:
    """Run them one after the other on one set of lanes, on a clock of ours."""
    server.gate.set()
    answers: list[object] = []

    def keep(call: Callable[[], object]) -> None:
        try:
            answers.append(call())
        except Exception as error:
            answers.append(error)

    if run is in_threads:
        lanes = ThreadLanes[Verb](server.connect, "the server", size=2, timeout=5)
        lanes._rest = _lanes.Rest(lambda: clock[0])
        for verb in verbs:
            keep(functools.partial(lanes.run, verb))
        return answers

    async def main() -> None:
        lanes = LoopLanes[Verb](server.connect_async, "the server", size=2, timeout=5)
        lanes._rest = _lanes.Rest(lambda: clock[0])
        for verb in verbs:
            try:
                answers.append(await lanes.run(verb))
            except Exception as error:
                answers.append(error)

    asyncio.run(main())
    return answers


def test_a_dead_store_answers_fast(run):
    """R48: for a moment nobody tries to connect again; then one does, and all is well."""
    clock = [100.0]
    tries = []

    def connects() -> None:
        tries.append(clock[0])
        if len(tries) < 2:
            raise StoreUnavailable("refused")

    server = Server(connects=connects)

    def behave(verbs: Sequence[Verb]) -> Sequence[object]:
        return [verb.id for verb in verbs]

    server.behave = behave
    first = one_by_one(run, server, [Verb(b"a"), Verb(b"b")], clock)
    assert [str(error) for error in first] == ["refused", "refused"]
    assert tries == [100.0]
    clock[0] += _lanes.REST
    assert one_by_one(run, server, [Verb(b"c")], clock) == [b"c"]


def test_after_the_rest_the_same_lanes_connect_again(run, monkeypatch):
    """No restart of the process is needed."""
    monkeypatch.setattr(_lanes, "REST", 0.0)
    tries = []

    def connects() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise StoreUnavailable("refused")

    answers = one_by_one(run, Server(connects=connects), [Verb(b"a"), Verb(b"b")], [1.0])
    assert [str(answers[0]), answers[1]] == ["refused", b"b"]


def test_a_connection_that_died_while_idle_is_replaced_before_its_use(run):
    """Nothing is sent on a connection that the other side has closed, so nobody's outcome is unknown."""
    server = Server()
    deaths = iter([True, False, True])
    server.alive = True

    def behave(verbs: Sequence[Verb]) -> Sequence[object]:
        server.alive = next(deaths)
        return [verb.id for verb in verbs]

    server.behave = behave

    def connects() -> None:
        server.alive = True

    server.connects = connects
    assert one_by_one(run, server, [Verb(b"a"), Verb(b"b"), Verb(b"c")], [1.0]) == [b"a", b"b", b"c"]
    assert (server.opened, server.closed) == (2, 1)


def test_closed_lanes_still_answer_what_was_called_before(run):
    """R41: and then let go of the connection."""
    server = Server()
    if run is in_threads:
        lanes = ThreadLanes[Verb](server.connect, "the server", size=1, timeout=5)
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(lanes.run(Verb(b"a"))))
        thread.start()
        assert server.arrived.acquire(timeout=5)
        lanes.close()
        server.gate.set()
        thread.join()
    else:

        async def main() -> list[object]:
            lanes = LoopLanes[Verb](server.connect_async, "the server", size=1, timeout=5)
            task = asyncio.ensure_future(lanes.run(Verb(b"a")))
            await asyncio.sleep(0)
            lanes.close()
            server.gate.set()
            return [await task]

        answers = asyncio.run(main())
    assert answers == [b"a"]
    assert server.closed == 1


def test_who_fetched_the_lanes_just_before_they_were_closed_is_answered(run):
    """R41: on a connection for the moment, which is closed at once."""
    server = Server()
    server.gate.set()
    if run is in_threads:
        lanes = ThreadLanes[Verb](server.connect, "the server", size=1, timeout=5)
        lanes.close()
        answer = lanes.run(Verb(b"a"))
    else:

        async def main() -> object:
            lanes = LoopLanes[Verb](server.connect_async, "the server", size=1, timeout=5)
            lanes.close()
            return await lanes.run(Verb(b"a"))

        answer = asyncio.run(main())
    assert answer == b"a"
    assert (server.opened, server.closed) == (1, 1)


def test_a_cancelled_caller_closes_its_own_connection_only():
    """R40: what it sent may have taken effect; the half-used connection is never used again."""

    async def main() -> tuple[int, int, object]:
        server = Server()
        lanes = LoopLanes[Verb](server.connect_async, "the server", size=1, timeout=5)
        task = asyncio.ensure_future(lanes.run(Verb(b"a")))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.gate.set()
        return server.opened, server.closed, await lanes.run(Verb(b"b"))

    assert asyncio.run(main()) == (1, 1, b"b")


def test_a_cancelled_waiter_leaves_the_pile_and_the_others_are_answered():
    """R40: nothing of it is sent."""

    async def main() -> tuple[list[object], list[list[bytes]]]:
        server = Server()
        lanes = LoopLanes[Verb](server.connect_async, "the server", size=1, timeout=5)
        tasks = [asyncio.ensure_future(lanes.run(Verb(id))) for id in (b"a", b"b", b"c")]
        await asyncio.sleep(0.005)
        tasks[1].cancel()
        await asyncio.sleep(0)
        server.gate.set()
        return list(await asyncio.gather(*tasks, return_exceptions=True)), server.batches

    answers, batches = asyncio.run(main())
    assert (answers[0], answers[2]) == (b"a", b"c")
    assert isinstance(answers[1], asyncio.CancelledError)
    assert batches == [[b"a"], [b"c"]]


def test_each_event_loop_has_lanes_of_its_own():
    """R41: a connection belongs to its loop; one that has ended takes its own with it."""
    server = Server()
    server.gate.set()
    lanes = LanesByLoop[Verb](server.connect_async, "the server", size=1, timeout=5)

    async def main() -> object:
        return await lanes.here.run(Verb(b"a"))

    assert [asyncio.run(main()), asyncio.run(main())] == [b"a", b"a"]
    assert server.opened == 2

    async def close() -> int:
        await lanes.here.run(Verb(b"a"))
        lanes.close()
        return server.closed

    assert asyncio.run(close()) == 1
    lanes.close()


class Interrupted(BaseException):
    """What a signal's handler may raise in the middle of anything."""


def test_an_interrupted_thread_leaves_its_turn_to_the_others():
    """R40: a signal ends the wait of one; it would have led those who came after it, and they are answered."""
    server = Server()
    lanes = ThreadLanes[Verb](server.connect, "the server", size=1, timeout=5)
    answers: list[object] = []

    def one(id: bytes) -> None:
        answers.append(lanes.run(Verb(id)))

    threads = [threading.Thread(target=one, args=(id,), daemon=True) for id in (b"a", b"c")]

    def interrupt(*_: object) -> None:
        raise Interrupted

    def others() -> None:
        while not lanes._pile:
            pass
        threads[1].start()
        while len(lanes._pile) < 2:
            pass
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threads[0].start()
        assert server.arrived.acquire(timeout=5)
        signaller = threading.Thread(target=others)
        signaller.start()
        with pytest.raises(Interrupted):
            lanes.run(Verb(b"b"))
    finally:
        signal.signal(signal.SIGUSR1, before)
        server.gate.set()
    for thread in (signaller, *threads):
        thread.join(10)
    assert answers == [b"a", b"c"]
    assert server.batches == [[b"a"], [b"c"]]
    assert len(lanes._free) == 1


def test_a_thread_that_is_interrupted_at_its_turn_still_takes_it():
    """R40: the lane and those of its batch depend on it."""
    server = Server()
    server.gate.set()
    lanes = ThreadLanes[Verb](server.connect, "the server", size=1, timeout=5)
    slot = lanes._free.pop()
    first, second = lanes._take(Verb(b"a")), lanes._take(Verb(b"b"))
    assert isinstance(first, _Waiting)
    assert isinstance(second, _Waiting)

    class Lock:
        def acquire(self, timeout: float = -1) -> bool:
            lanes._pass_on(slot)
            raise Interrupted

        def release(self) -> None:
            pass

    first.told = Lock()  # type: ignore[assignment]  # a lock at which the interrupt comes
    with pytest.raises(Interrupted):
        lanes._awaited(first)
    assert second.told.acquire(timeout=5)
    assert second.answer == b"b"
    assert server.batches == [[b"a", b"b"]]
    assert lanes._free == [slot]


def test_nothing_goes_out_for_a_crowd_that_was_cancelled():
    """R40: a loop that ends cancels all its tasks at once; no batch begins for those who can't hear of it."""

    async def main() -> tuple[list[list[bytes]], int]:
        server = Server()
        lanes = LoopLanes[Verb](server.connect_async, "the server", size=1, timeout=5)
        tasks = [asyncio.ensure_future(lanes.run(Verb(id))) for id in (b"a", b"b", b"c")]
        await asyncio.sleep(0.005)
        for task in tasks:
            task.cancel()
        server.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
        await asyncio.sleep(0.005)
        return server.batches, server.closed

    assert asyncio.run(main()) == ([[b"a"]], 1)


def test_the_lanes_of_a_loop_that_was_closed_are_closed_by_the_next():
    """R41: also where a connection keeps its loop alive."""
    server = Server()
    server.gate.set()
    lanes = LanesByLoop[Verb](server.connect_async, "the server", size=1, timeout=5)
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> object:
        loops.append(asyncio.get_running_loop())
        return await lanes.here.run(Verb(b"a"))

    assert [asyncio.run(main()) for _ in range(3)] == [b"a"] * 3
    assert (server.opened, server.closed) == (3, 2)
    lanes.close()
    assert server.closed == 3
    assert asyncio.run(main()) == b"a"  # asked for just before the end
    assert (server.opened, server.closed) == (4, 4)
