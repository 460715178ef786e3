"""A run whose process is gone: take over, or nobody knows (R27-R30, R42)."""

import pytest

from tests.support.engines import Gate, brief
from tests.support.faulty_store import Fault
from twiceproof import FingerprintOptions, Policy, Response
from twiceproof.core._outcome import Answered, NothingHappened, Raised
from twiceproof.core._problems import REPLAYED

ONCE, TWICE = Policy(), Policy(guarantee="at_least_once")
LATE = Answered(Response(201, [], b"late"))


@pytest.fixture
def lost(make):
    """A run whose process died, and the bench of the process that comes after."""

    def one(policy, lapsed=True, **parts):
        before = make()
        run = before.run(policy, **parts)
        before.die()
        if lapsed:
            before.world.clock.pass_(30)
        return before, run, make(before.world)

    return one


def test_a_lapsed_run_is_not_repeated_under_at_most_once(lost):
    """R28: the retry is told that nobody knows, at once and for good; it is never told 409."""
    _, _, after = lost(ONCE)
    for _ in range(2):
        answer = after.handle(ONCE)
        assert brief(answer) == (500, "outcome-unknown", False)
        assert b'"cause": "lapsed"' in (answer.body or b"")
    assert (after.effects, after.faults.foreground()) == (0, ["claim", "claim"])


def test_a_lapsed_run_is_repeated_once_under_at_least_once(lost):
    """R27, B08: one retry takes over with a new token and runs; the others are told 409 meanwhile."""
    _, _, after = lost(TWICE)
    gate = Gate()
    with gate.running(after, TWICE):
        assert brief(after.handle(TWICE)) == (409, "in-progress", False)
    [attempt] = gate.attempts
    assert (attempt.attempt, attempt.token) == (2, 2)
    assert after.names[0] == "taken_over"
    assert brief(after.handle(TWICE)) == (201, "", True)


@pytest.mark.parametrize(
    ("before", "now"), [(ONCE, TWICE), (TWICE, ONCE)], ids=["record says once", "caller says once"]
)
def test_a_take_over_needs_both_guarantees(lost, before, now):
    """R27: a deploy that changes the policy makes no old effect happen again."""
    _, _, after = lost(before)
    assert brief(after.handle(now)) == (500, "outcome-unknown", False)
    assert after.effects == 0


@pytest.mark.parametrize("policy", [ONCE, TWICE], ids=["at most once", "at least once"])
def test_no_key_is_in_progress_for_longer_than_a_lease_after_a_death(lost, policy):
    """R29, B05: 409 until the lease ends, and from then on something else."""
    before, _, after = lost(policy, lapsed=False)
    before.world.clock.pass_(29.999)
    assert brief(after.handle(policy)) == (409, "in-progress", False)
    before.world.clock.pass_(0.001)
    assert brief(after.handle(policy))[1] != "in-progress"


def test_a_parked_run_is_never_taken_over(bench):
    """R28: its outcome is unknown whatever the caller's guarantee says."""
    bench.finish(bench.run(ONCE), Raised())
    assert brief(bench.handle(TWICE)) == (500, "outcome-unknown", False)


def test_the_holder_may_complete_after_the_lapse(lost):
    """R42: the token decides, never the time; the late answer is the record's from then on."""
    before, run, after = lost(ONCE)
    assert brief(after.handle(ONCE))[1] == "outcome-unknown"
    before.finish(run, LATE)
    answer = after.handle(ONCE)
    assert (brief(answer), answer.body) == ((201, "", True), b"late")
    assert before.names == ["completed"]


def test_the_holder_may_release_after_the_lapse(lost):
    """R42: it says that nothing happened, and so the key is free."""
    before, run, after = lost(ONCE)
    before.finish(run, NothingHappened())
    assert brief(after.handle(ONCE)) == (201, "", False)


def test_a_holder_that_was_taken_over_changes_nothing(lost):
    """R30, B09, B10: its late answer is fenced, with an event; the second run's record stands."""
    before, run, after = lost(TWICE)
    gate = Gate()
    with gate.running(after, TWICE):
        before.finish(run, LATE)
        assert before.names == ["fenced"]
        assert brief(after.handle(TWICE)) == (409, "in-progress", False)
    assert after.handle(TWICE).body == b"done"


@pytest.mark.parametrize("outcome", [NothingHappened(), Raised()], ids=["release", "park"])
def test_a_holder_that_was_taken_over_frees_and_parks_nothing(lost, outcome):
    """R30, B09: a late clean-up doesn't delete the lock of whoever came after."""
    before, run, after = lost(TWICE)
    second = after.run(TWICE)
    before.finish(run, outcome)
    assert (before.names, after.world.states()) == (["fenced"], ["in_flight"])
    after.finish(second, LATE)
    assert after.handle(TWICE).body == b"late"


def test_a_late_caller_still_gets_its_own_answer(make):
    """R30: that its record went to another is not its client's business."""
    slow = make()
    quick = make(slow.world)
    gate = Gate(Response(201, [], b"slow"))
    slow.faults.now["background.renew"] = Fault(RuntimeError("paused"))
    with gate.running(slow, TWICE) as first:
        slow.world.clock.pass_(31)
        assert brief(quick.handle(TWICE)) == (201, "", False)
    answer = first.result(20)
    assert (answer.body, REPLAYED in answer.headers) == (b"slow", False)
    assert slow.names == ["granted", "fenced"]


def test_an_unsettled_key_is_new_after_its_keeping_time_and_an_event_says_so(lost):
    """R42: thirty days after the lapse nobody remembers, and that is told."""
    before, _, after = lost(ONCE, lapsed=False)
    before.world.clock.pass_(30 + 30 * 86_400 - 1)
    assert brief(after.handle(ONCE))[1] == "outcome-unknown"
    before.world.clock.pass_(1)
    assert brief(after.handle(ONCE)) == (201, "", False)
    assert after.names == ["refused:outcome-unknown", "purged:unsettled", "granted", "completed"]


def test_a_record_made_under_other_fingerprint_options_is_compared_with_those(lost):
    """R17: a deploy that changes them makes no replay a mismatch."""
    _, _, after = lost(TWICE, lapsed=False)
    changed = Policy(guarantee="at_least_once", fingerprint=FingerprintOptions(vary_headers=("x-tenant",)))
    assert brief(after.handle(changed)) == (409, "in-progress", False)
    assert brief(after.handle(changed, body=b"{}")) == (422, "idempotency-key-reuse", False)


def test_a_take_over_under_other_fingerprint_options_is_one_too(lost):
    """R27, R17: it is the same request under the record's own parameters, so one retry runs."""
    _, _, after = lost(TWICE)
    changed = Policy(guarantee="at_least_once", fingerprint=FingerprintOptions(vary_headers=("x-tenant",)))
    assert brief(after.handle(changed)) == (201, "", False)
    assert after.names == ["taken_over", "completed"]
    assert brief(after.handle(TWICE)) == (201, "", True)


def test_a_fingerprint_that_this_process_cannot_make_is_no_mismatch(lost):
    """R17: another release's algorithm is 503, never 422 and never a run."""
    options = FingerprintOptions(function=lambda request: b"", name="mine", version="1")
    _, _, after = lost(Policy(guarantee="at_least_once", fingerprint=options))
    answer = after.handle(TWICE)
    assert (brief(answer), after.effects) == ((503, "store-unavailable", False), 0)
    assert answer.header(b"retry-after") == b"5"
