"""A request that is cancelled or interrupted: whatever was claimed is settled by what is known (R40)."""

import asyncio
import contextlib
import threading

import pytest

from tests.support.engines import Bench, Gate, brief, until
from tests.support.faulty_store import Fault
from twiceproof import DontKnow, Policy, Response
from twiceproof.core._outcome import Abandoned, Answered, Cancelled, CutShort, Raised

ONCE, TWICE = Policy(), Policy(guarantee="at_least_once")


@pytest.fixture
def bench():
    """The asynchronous colour: only its requests can be cancelled."""
    bench = Bench("async")
    yield bench
    bench.close()


def cancelled(bench, made, when):
    """Start it on the loop, cancel it once it is so, and wait for its end."""

    async def run():
        task = asyncio.ensure_future(made())
        await asyncio.to_thread(until, when)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        return "cancelled"

    return bench.wait_for(run())


class Dawdle:
    """Comes between a verb that has acted and its reply, for long enough to be noticed."""

    def __init__(self):
        self.begun = threading.Event()

    def __call__(self):
        self.begun.set()
        threading.Event().wait(0.5)


def slow(seconds=5.0, **parts):
    """A verb that takes so long that its caller is cancelled meanwhile."""
    return Fault(sleep=seconds, **parts)


def begun(bench, policy=ONCE):
    return lambda: bench.engine.begin(bench.request(), "alice", policy)


def calls(bench, verb, count=1):
    return lambda: bench.faults.count()[verb] >= count


def test_a_claim_that_is_cancelled_on_its_way_is_withdrawn(bench):
    """Between claim and handler: whether or not the claim had acted, the key is free again."""
    acted = Dawdle()
    bench.faults.next["claim"] = [Fault(after=acted)]
    assert cancelled(bench, begun(bench), acted.begun.is_set) == "cancelled"
    until(lambda: bench.faults.count()["background.release"] and bench.world.records() == [])
    assert brief(bench.handle()) == (201, "", False)
    assert bench.names == ["granted", "completed"]


def test_a_claim_that_is_cancelled_before_it_acts_leaves_nothing(bench):
    """It never reached the store."""
    bench.faults.next["claim"] = [slow()]
    assert cancelled(bench, begun(bench), calls(bench, "claim")) == "cancelled"
    assert brief(bench.handle()) == (201, "", False)


def test_a_duplicate_that_is_cancelled_while_it_waits_takes_nothing_back(bench):
    """It holds nothing, and the first run is not its to touch."""
    gate = Gate()
    with gate.running(bench):
        waiting = begun(bench, Policy(wait=30.0))
        assert cancelled(bench, waiting, calls(bench, "claim", 3)) == "cancelled"
        assert bench.engine._keeper._pending == {}
    assert brief(bench.handle()) == (201, "", True)


@pytest.mark.parametrize("where", ["hook", "claim_unsettled"])
def test_a_second_claim_that_is_cancelled_ends(bench, where):
    """R28: nobody waits for a hook whose caller is gone."""
    bench.finish(bench.run(), Raised())
    asked = threading.Event()

    async def hook(record, request):
        asked.set()
        await asyncio.sleep(30)

    when = asked.is_set
    if where == "claim_unsettled":
        acted = Dawdle()
        bench.faults.next[where] = [Fault(after=acted)]
        when = acted.begun.is_set
    assert cancelled(bench, begun(bench, Policy(reconcile=hook, reconcile_every=0)), when) == "cancelled"
    until(lambda: bench.world.record().reconcile_nonce is None)
    answer = bench.handle(Policy(reconcile=lambda record, request: DontKnow(), reconcile_every=0))
    assert brief(answer) == (500, "outcome-unknown", False)


@pytest.mark.parametrize(
    ("policy", "then", "names"),
    [
        pytest.param(ONCE, (500, "outcome-unknown", False), ["granted", "parked"], id="at most once"),
        pytest.param(TWICE, (201, "", False), ["granted", "released"], id="at least once"),
    ],
)
def test_a_handler_that_is_cancelled_is_parked_or_released_at_once(bench, policy, then, names):
    """B06: the retry needs no lease to end."""
    entered = threading.Event()

    async def handler(request, attempt):
        entered.set()
        await asyncio.sleep(30)

    handled = cancelled(bench, lambda: bench.engine.handle(bench.request(), "alice", policy, handler), entered.is_set)
    assert handled == "cancelled"
    assert bench.names == names
    answer = bench.handle(policy)
    assert brief(answer) == then
    assert (b'"cause": "cancelled"' in (answer.body or b"")) is (policy is ONCE)


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_an_answer_whose_writing_is_cancelled_is_stored_all_the_same(bench, guarantee):
    """The handler is done: its answer is the record's, never a release."""
    bench.faults.next["complete"] = [slow()]

    async def handler(request, attempt):
        bench.effects += 1
        return Response(201, [], b"done")

    policy = Policy(guarantee=guarantee)
    made = lambda: bench.engine.handle(bench.request(), "alice", policy, handler)  # noqa: E731
    assert cancelled(bench, made, calls(bench, "complete")) == "cancelled"
    until(lambda: "complete_retried" in bench.names)
    again = bench.handle(policy)
    assert (brief(again), again.body, bench.effects) == ((201, "", True), b"done", 1)


def test_a_parking_that_is_cancelled_takes_place_all_the_same(bench):
    """A second cancellation does not lose what the first one said."""
    run = bench.run()
    bench.faults.next["park"] = [slow()]
    assert cancelled(bench, lambda: bench.engine.finish(run, Cancelled()), calls(bench, "park")) == "cancelled"
    until(lambda: bench.world.states() == ["parked"])
    until(lambda: bench.names == ["granted", "parked"])
    assert bench.engine._keeper.idle


@pytest.mark.parametrize(
    ("policy", "outcome", "states"),
    [
        (ONCE, Cancelled(), ["parked"]),
        (ONCE, CutShort(), ["parked"]),
        (ONCE, Abandoned(), ["in_flight"]),
        (TWICE, Cancelled(), []),
        (TWICE, CutShort(), []),
        (TWICE, Abandoned(), ["in_flight"]),
    ],
)
def test_an_ending_without_an_answer_settles_as_the_table_says(bench, policy, outcome, states):
    """Cancelled, cut short (R50), or left to lapse because nobody can tell any more."""
    bench.finish(bench.run(policy), outcome)
    assert (bench.world.states(), bench.engine._keeper.idle) == (states, True)


class Interrupted(BaseException):
    """As KeyboardInterrupt, which would end the test run."""


def test_a_blocking_claim_that_is_interrupted_is_withdrawn():
    """The blocking colour is interrupted by signals."""
    bench = Bench("blocking")
    try:
        bench.faults.next["claim"] = [Fault(Interrupted(), acts=True)]
        with pytest.raises(Interrupted):
            bench.begin()
        until(lambda: bench.world.records() == [])
        assert brief(bench.handle()) == (201, "", False)
    finally:
        bench.close()


def test_a_blocking_answer_whose_writing_is_interrupted_is_stored_all_the_same():
    """The handler is done."""
    bench = Bench("blocking")
    try:
        bench.faults.next["complete"] = [Fault(Interrupted())]
        with pytest.raises(Interrupted):
            bench.handle()
        until(lambda: "complete_retried" in bench.names)
        assert (brief(bench.handle()), bench.effects) == ((201, "", True), 1)
    finally:
        bench.close()


def test_a_blocking_handler_that_is_interrupted_is_unknown():
    """Nobody knows how far it came."""
    bench = Bench("blocking")
    gate = Gate(error=Interrupted())
    try:
        with gate.running(bench) as first:
            pass
        assert isinstance(first.exception(1), Interrupted)
        assert brief(bench.handle()) == (500, "outcome-unknown", False)
    finally:
        bench.close()


def test_a_blocking_wait_that_is_interrupted_takes_nothing_back(monkeypatch):
    """It holds nothing."""
    bench = Bench("blocking")
    try:
        run = bench.run()

        def interrupted(seconds):
            raise Interrupted

        with monkeypatch.context() as patch:
            patch.setattr("twiceproof.engine._blocking.time.sleep", interrupted)
            with pytest.raises(Interrupted):
                bench.begin(Policy(wait=5))
        bench.finish(run, Answered(Response(200, [], b"first")))
        assert bench.handle().body == b"first"
        assert bench.faults.count()["background.release"] == 0
    finally:
        bench.close()
