"""A store that is down, slow or loses replies: at the claim (R48), at the end of a run (R47)."""

import sqlite3
import time

import pytest

from tests.support.engines import Bench, Gate, World, brief, until
from tests.support.faulty_store import ACTED_AND_LOST, BROKEN, DOWN, LOST, Fault
from twiceproof import NotExecuted, Policy, Response
from twiceproof.core._engine import DoLater, DoPark
from twiceproof.core._outcome import Answered, Raised
from twiceproof.core._problems import UNPROTECTED
from twiceproof.errors import StoreFull, StoreUnavailable, UnknownFormat

OPEN = Policy(fail_open=True)
TWICE = Policy(guarantee="at_least_once")
DONE = Answered(Response(201, [], b"done"))
FULL = Fault(StoreFull())
UNREADABLE = Fault(UnknownFormat())


def refused(answer):
    return brief(answer) == (503, "store-unavailable", False) and answer.header(b"retry-after") == b"5"


# ---------------------------------------------------------------------- at the claim


@pytest.mark.parametrize("fault", [DOWN, FULL], ids=["down", "full"])
def test_a_store_that_is_down_at_the_claim_is_503_and_nothing_runs(bench, fault):
    """R48: tried once, with Retry-After; the next request is served as soon as the store is back."""
    bench.faults.next["claim"] = [fault]
    assert refused(bench.handle())
    assert (bench.effects, bench.faults.foreground()) == (0, ["claim"])
    assert bench.names == ["refused:store-unavailable"]
    assert brief(bench.handle()) == (201, "", False)


@pytest.mark.parametrize("fault", [LOST, ACTED_AND_LOST, BROKEN], ids=["lost", "acted and lost", "a bug"])
def test_a_claim_whose_reply_was_lost_is_repeated_under_its_nonce(bench, fault):
    """R48: it finds itself, or makes itself; the handler runs once."""
    bench.faults.next["claim"] = [fault]
    assert brief(bench.handle()) == (201, "", False)
    assert (bench.effects, bench.faults.foreground()) == (1, ["claim", "claim", "complete"])
    assert bench.names == ["granted", "completed"]


@pytest.mark.parametrize("second", [DOWN, LOST, ACTED_AND_LOST], ids=["down", "lost", "acted and lost"])
@pytest.mark.parametrize("first", [LOST, ACTED_AND_LOST], ids=["lost", "acted and lost"])
def test_a_claim_that_stays_unknown_is_withdrawn(bench, first, second):
    """R48: 503, and no key stays taken by a handler that never ran; nobody is told of the withdrawal."""
    bench.faults.next["claim"] = [first, second]
    assert refused(bench.handle())
    until(lambda: "background.release" in bench.faults.calls)
    until(lambda: bench.world.records() == [])
    assert bench.effects == 0
    assert brief(bench.handle()) == (201, "", False)
    assert bench.names == ["refused:store-unavailable", "granted", "completed"]


def test_a_claim_that_arrives_after_its_withdrawal_is_withdrawn_all_the_same(bench):
    """R48: a release that finds nothing is repeated for as long as a claim may be on its way."""
    sent, make_call = [], bench.engine._call

    def remembered(*args):
        sent.append(make_call(*args))
        return sent[-1]

    bench.engine._call = remembered
    bench.faults.next["claim"] = [LOST, LOST]
    assert refused(bench.handle())
    until(lambda: bench.faults.count()["background.release"] == 1)
    bench.world.memory.claim(sent[0].new, 30.0, sent[0].nonce)  # it reaches the store only now
    until(lambda: bench.world.records() == [])


def test_an_earlier_send_of_a_claim_that_arrives_after_its_release_is_withdrawn(bench):
    """R48: no key stays unsettled for a handler that did nothing; the release is told once."""
    sent, make_call = [], bench.engine._call

    def remembered(*args):
        sent.append(make_call(*args))
        return sent[-1]

    bench.engine._call = remembered
    bench.faults.next["claim"] = [LOST]
    bench.faults.next["release"] = [DOWN]
    answer = bench.handle(handler=lambda request, attempt: Response(429, [], b""))
    assert answer.status == 429
    until(lambda: bench.faults.count()["background.release"] == 1)
    bench.world.memory.claim(sent[0].new, 30.0, sent[0].nonce)  # the first send reaches the store only now
    until(lambda: bench.world.records() == [])
    until(lambda: bench.engine._keeper.idle)
    assert bench.names == ["granted", "released"]


def test_an_earlier_send_of_a_claim_that_arrives_after_another_s_answer_is_withdrawn(bench):
    """R48: also where the second send found a record and was answered."""
    sent, make_call = [], bench.engine._call

    def remembered(*args):
        sent.append(make_call(*args))
        return sent[-1]

    bench.handle()
    bench.engine._call = remembered
    bench.faults.next["claim"] = [LOST]
    assert brief(bench.handle()) == (201, "", True)
    until(lambda: bench.faults.count()["background.release"] == 1)
    bench.world.clock.pass_(2 * 86_400)  # the answer expires, and the first send reaches the store only now
    bench.world.memory.claim(sent[0].new, 30.0, sent[0].nonce)
    until(lambda: bench.world.records() == [])


def test_a_withdrawal_is_repeated_while_the_store_is_down(bench):
    """R48: for up to `complete_retry`."""
    bench.faults.next["claim"] = [ACTED_AND_LOST, DOWN]
    bench.faults.next["background.release"] = [DOWN, DOWN]
    assert refused(bench.handle())
    until(lambda: bench.world.records() == [])
    assert bench.faults.count()["background.release"] >= 3


def test_an_operation_may_run_unprotected_while_the_store_is_down(bench):
    """R48, fail_open: the answer says so, and so does an event."""
    bench.faults.now["claim"] = DOWN
    answers = [bench.handle(OPEN) for _ in range(2)]
    assert [brief(answer) for answer in answers] == [(201, "", False)] * 2
    assert all(answer.headers[-1] == UNPROTECTED for answer in answers)
    assert (bench.effects, bench.names) == (2, ["failed_open"] * 2)


def test_a_store_in_another_format_is_503_even_where_it_may_fail_open(bench):
    """R17: a record that can't be read is never run over."""
    bench.faults.now["claim"] = UNREADABLE
    assert refused(bench.handle(OPEN))
    assert (bench.effects, bench.faults.foreground()) == (0, ["claim"])


def test_a_lost_reply_and_then_another_format_is_503(bench):
    """R17: the same, where the second try finds it out."""
    bench.faults.next["claim"] = [LOST, UNREADABLE]
    assert refused(bench.handle(OPEN))
    assert bench.effects == 0


def test_a_store_that_cannot_be_opened_is_503_until_it_can(make):
    """R41, R48: opening is tried again with every request."""
    bench = make()
    bench.faults.next["open"] = [DOWN, UNREADABLE]
    bench.faults.next["claim"] = [DOWN, DOWN]
    assert refused(bench.handle())
    assert refused(bench.handle())
    assert brief(bench.handle()) == (201, "", False)
    bench.handle()
    assert bench.faults.count()["open"] == 3


# ---------------------------------------------------------------------- at the end


@pytest.mark.parametrize("fault", [DOWN, LOST, ACTED_AND_LOST, BROKEN], ids=["down", "lost", "acted", "a bug"])
def test_an_answer_that_cannot_be_stored_is_delivered_and_stored_later(bench, fault):
    """R47, B12: the client gets the handler's answer; the retry is never a second run."""
    bench.faults.next["complete"] = [fault]
    bench.faults.next["background.complete"] = [DOWN, LOST]
    first = bench.handle()
    assert brief(first) == (201, "", False)
    until(lambda: "complete_retried" in bench.names)
    again = bench.handle()
    assert (brief(again), again.body, bench.effects) == ((201, "", True), first.body, 1)
    assert bench.names == ["granted", "complete_retried", "replayed"]
    assert bench.faults.count()["background.complete"] == 3
    assert bench.engine._keeper.idle


def test_nobody_runs_while_an_answer_waits_to_be_stored(make):
    """R47: renewal goes on with it, so that at least once is not taken over either."""
    bench = make(World(clock=time.monotonic))
    policy = Policy(guarantee="at_least_once", lease=0.5)
    bench.faults.now["complete"] = bench.faults.now["background.complete"] = DOWN
    bench.handle(policy)
    deadline = time.monotonic() + 1.2
    while time.monotonic() < deadline:
        assert brief(bench.handle(policy)) == (409, "in-progress", False)
        time.sleep(0.1)
    bench.faults.now.clear()
    until(lambda: "complete_retried" in bench.names)
    assert brief(bench.handle(policy)) == (201, "", True)
    assert bench.effects == 1


def test_an_answer_is_renewed_beyond_the_max_runtime_of_its_run(make):
    """R47: the handler ended in time; only the store is late."""
    bench = make(World(clock=time.monotonic))
    policy = Policy(guarantee="at_least_once", lease=0.5, max_runtime=0.5)
    bench.faults.now["complete"] = bench.faults.now["background.complete"] = DOWN
    bench.handle(policy)
    until(lambda: bench.faults.count()["background.renew"] >= 6)
    assert brief(bench.handle(policy)) == (409, "in-progress", False)


@pytest.mark.parametrize(
    ("verb", "handler", "event"),
    [
        ("park", ZeroDivisionError(), "parked"),
        ("release", NotExecuted(), "released"),
    ],
)
def test_a_parking_and_a_release_are_repeated_too(bench, verb, handler, event):
    """R47: under their own names."""
    bench.faults.next[verb] = [DOWN]
    gate = Gate(error=handler)
    with gate.running(bench):
        pass
    until(lambda: event in bench.names)
    assert bench.names == ["granted", event]
    assert bench.world.states() == (["parked"] if verb == "park" else [])


def test_a_late_answer_that_is_fenced_is_given_up_with_an_event(bench, make):
    """R47, R30: somebody else's token stands."""
    bench.faults.now["complete"] = bench.faults.now["background.complete"] = DOWN
    bench.handle(TWICE)
    bench.world.clock.pass_(31)
    other = make(bench.world)
    assert brief(other.handle(TWICE)) == (201, "", False)
    bench.faults.now.clear()
    until(lambda: "fenced" in bench.names)
    assert bench.engine._keeper.idle


def test_an_answer_is_given_up_after_complete_retry(make):
    """R47: then the record is left to lapse, with an event; it is never released."""
    bench = make(complete_retry=0.2)
    bench.faults.now["complete"] = bench.faults.now["background.complete"] = DOWN
    assert brief(bench.handle()) == (201, "", False)
    until(lambda: "complete_retried:given-up" in bench.names)
    assert (bench.engine._keeper.idle, bench.world.states()) == (True, ["in_flight"])
    bench.world.clock.pass_(31)
    assert brief(bench.handle()) == (500, "outcome-unknown", False)


def test_the_oldest_answers_are_given_up_beyond_the_backlog(make):
    """R47: memory stays bounded; each one that is left to lapse is an event of its own."""
    bench = make(complete_backlog=3)
    bench.faults.now["complete"] = bench.faults.now["background.complete"] = DOWN
    for n in range(5):
        bench.handle(key=f"key-{n}")
        bench.world.clock.pass_(1)
    given_up = [event.record for event in bench.events if event.code == "given-up"]
    first = [record.id.hex() for record in bench.world.records()][:2]
    assert given_up == first
    bench.faults.now.clear()
    until(lambda: bench.names.count("complete_retried") == 3)
    assert sorted(bench.world.states()) == ["completed"] * 3 + ["in_flight"] * 2


def test_the_backlog_is_a_thousand_by_default(bench):
    """R47."""
    assert bench.engine.settings.complete_backlog == 1000


def test_a_withdrawal_that_is_given_up_is_nobodys_news(make):
    """R48: the lease ends it then."""
    bench = make(complete_retry=0.1)
    bench.faults.now["claim"] = ACTED_AND_LOST
    bench.faults.now["background.release"] = DOWN
    assert refused(bench.handle())
    until(lambda: bench.engine._keeper.idle)
    assert bench.names == ["refused:store-unavailable"]


def test_a_write_that_replaces_another_under_way_takes_place_too(bench):
    """The later one of one claim is the one that counts."""
    bench.faults.now["complete"] = DOWN
    keeper = bench.engine._keeper
    run = bench.run()

    def replace_it():
        keeper.later(DoLater(DoPark(run.call.new.id, run.call.nonce, "x"), "parked"), run.call.new)

    bench.faults.next["background.complete"] = [Fault(DOWN.error, before=replace_it)]
    bench.finish(run, DONE)
    until(lambda: bench.names == ["granted", "parked"])
    assert keeper.idle


def test_one_answer_that_the_store_refuses_does_not_keep_the_others(make):
    """R47: a store that fails for one record alone."""
    bench = make()
    bench.faults.now["complete"] = DOWN
    poison = Fault(StoreUnavailable("this one only"))
    bench.faults.next["background.complete"] = [poison, Fault(), Fault()]
    for n in range(3):
        bench.handle(key=f"key-{n}")
    until(lambda: bench.names.count("complete_retried") == 3)


@pytest.mark.parametrize("verb", ["claim", "complete", "release", "park"])
def test_no_store_failure_ever_reaches_the_caller(bench, verb):
    """Whatever breaks, the caller gets an answer of the contract."""
    bench.faults.now[verb] = BROKEN
    for outcome in (DONE, Answered(Response(429)), Raised()):
        begun = bench.begin(key=type(outcome).__name__ + str(id(outcome)))
        if verb == "claim":
            assert brief(begun.response)[1] == "store-unavailable"
        else:
            bench.finish(begun, outcome)


def test_a_file_that_another_process_keeps_locked_is_503_and_then_served(tmp_path, colour):
    """R48 for real: SQLite's write lock is held for longer than `store_timeout`."""
    world = World("sqlite", tmp_path, timeout=0.3)
    bench = Bench(colour, world)
    lock = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
    try:
        bench.handle(key="warm-up")
        lock.execute("begin immediate")
        assert refused(bench.handle())
        assert bench.effects == 1
        lock.execute("rollback")
        assert brief(bench.handle()) == (201, "", False)
    finally:
        lock.close()
        bench.close()
        world.close()
