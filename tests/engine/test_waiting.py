"""A duplicate that waits for the first answer (R23)."""

import asyncio
import threading

import pytest

from tests.support.engines import Bench, Gate, World, brief, until
from tests.support.faulty_store import DOWN, Fault
from twiceproof import NotExecuted, Policy, Response
from twiceproof.core._lifecycle import Reply

WAITS = Policy(wait=30.0)


@pytest.fixture
def bench(make):
    """A bench whose store's clock runs."""
    import time

    return make(World(clock=time.monotonic))


def test_a_duplicate_that_waits_gets_the_first_answer(bench):
    """Wait mode: the replay, as soon as there is one."""
    gate = Gate()
    with gate.running(bench):
        waiting = bench.start(WAITS)
        until(lambda: bench.faults.count()["claim"] >= 3)
        assert not waiting.done()
    answer = waiting.result(20)
    assert (brief(answer), answer.body, bench.effects) == ((201, "", True), b"done", 0)


def test_a_duplicate_that_waited_in_vain_is_told_in_progress(bench):
    """After its seconds the answer is 409, as without waiting."""
    gate = Gate()
    with gate.running(bench):
        assert brief(bench.handle(Policy(wait=0.3))) == (409, "in-progress", False)
    assert "held" in bench.names
    assert bench.faults.count()["claim"] <= 6


def test_waiting_asks_at_growing_distances(make, monkeypatch):
    """The store is polled after 50 ms, then after twice as long each time, at most a second apart."""
    bench, pauses = make(), []

    def pause(seconds):
        pauses.append(round(seconds, 3))
        bench.world.clock.pass_(seconds)

    async def pause_softly(seconds, left):
        pause(seconds)
        return False

    bench.run()
    monkeypatch.setattr("twiceproof.engine._async._pause", pause_softly)
    monkeypatch.setattr("twiceproof.engine._blocking.time.sleep", pause)
    assert brief(bench.handle(Policy(wait=4.0))) == (409, "in-progress", False)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.45]


def test_a_duplicate_runs_where_the_first_one_did_nothing(bench):
    """The key became free while it waited, so the waiting request is the next first one."""
    gate = Gate(error=NotExecuted())
    with gate.running(bench) as first:
        waiting = bench.start(WAITS)
        until(lambda: bench.faults.count()["claim"] >= 3)
    assert isinstance(first.exception(20), NotExecuted)
    assert brief(waiting.result(20)) == (201, "", False)
    assert bench.effects == 1


def test_a_duplicate_that_waits_learns_that_the_outcome_is_unknown(bench):
    """The first one was lost: waiting ends with the truth, not with 409."""
    gate = Gate(error=ZeroDivisionError())
    with gate.running(bench):
        waiting = bench.start(WAITS)
        until(lambda: bench.faults.count()["claim"] >= 3)
    assert brief(waiting.result(20)) == (500, "outcome-unknown", False)


def test_a_waiting_duplicate_never_runs_unprotected(bench):
    """R48: fail_open is for a store that knows nothing; here the first run is known to be under way."""
    gate = Gate()
    policy = Policy(wait=30.0, fail_open=True)
    with gate.running(bench):
        bench.faults.next["claim"] = [Fault(), DOWN]
        assert brief(bench.handle(policy)) == (503, "store-unavailable", False)
    assert bench.effects == 0


def test_waiting_ends_when_the_client_leaves():
    """R23: nobody is there to be answered; what is returned is the 409 of the moment."""
    bench = Bench("async")
    gate = Gate()
    try:
        with gate.running(bench):

            async def wait_and_leave():
                left = asyncio.Event()
                asyncio.get_running_loop().call_later(0.1, left.set)
                return await bench.engine.begin(bench.request(), "alice", WAITS, left=left)

            answer = bench.wait_for(wait_and_leave())
        assert isinstance(answer, Reply)
        assert brief(answer.response) == (409, "in-progress", False)
    finally:
        bench.close()


def test_many_waiters_get_one_answer(bench):
    """Ten duplicates wait; one effect, ten equal bodies."""
    runs = []
    lock = threading.Lock()

    def handler(request, attempt):
        with lock:
            runs.append(attempt)
        return Response(200, [], b"only")

    waiting = [bench.start(WAITS, handler) for _ in range(10)]
    answers = [future.result(20) for future in waiting]
    assert {(answer.status, answer.body) for answer in answers} == {(200, b"only")}
    assert len(runs) == 1
