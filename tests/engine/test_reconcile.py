"""Asking the application how a lost run came out (R28)."""

import threading
import time

import pytest

from tests.support.engines import PATIENCE, brief, until
from tests.support.faulty_store import ACTED_AND_LOST, DOWN, LOST, Fault
from twiceproof import Completed, DontKnow, FingerprintOptions, NothingHappened, Policy, Response
from twiceproof.core._outcome import Answered, Raised

FOUND = Completed(Response(201, [(b"location", b"/orders/7"), (b"date", b"then")], b"found"))
LATE = Answered(Response(201, [], b"late"))


class Hook:
    """A hook that gives these verdicts, or raises them, and counts."""

    def __init__(self, *verdicts, sleep=0.0, meanwhile=None):
        self.verdicts, self.sleep, self.meanwhile = list(verdicts), sleep, meanwhile
        self.asked = []

    def __call__(self, record, request):
        self.asked.append((record, request))
        if self.meanwhile is not None:
            self.meanwhile()
        time.sleep(self.sleep)
        verdict = self.verdicts.pop(0)
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict


@pytest.fixture
def lost(make):
    """A bench after the death of another, whose run lapsed."""
    before = make()
    before.lost = before.run()
    before.die()
    before.world.clock.pass_(31)
    return before, make(before.world)


def test_a_completed_verdict_is_stored_and_replayed(lost):
    """Its answer is filtered, marked, and what every later retry gets; the handler does not run."""
    _, bench = lost
    hook = Hook(FOUND)
    for _ in range(2):
        answer = bench.handle(Policy(reconcile=hook))
        assert (brief(answer), answer.body) == ((201, "", True), b"found")
        assert [name for name, _ in answer.headers] == [b"location", b"idempotent-replayed", b"content-length"]
    assert (len(hook.asked), bench.effects) == (1, 0)
    assert bench.names == ["reconciled:completed", "replayed", "replayed"]
    assert bench.faults.foreground() == ["claim", "claim_unsettled", "complete", "claim"]


def test_the_hook_sees_the_record_and_the_request(lost):
    """So that it can look the effect up."""
    _, bench = lost
    hook = Hook(DontKnow())
    bench.handle(Policy(reconcile=hook))
    [(record, request)] = hook.asked
    assert (record.operation, record.path, record.lapsed) == ("POST /orders", "/orders", True)
    assert request.body == b'{"amount":1}'


def test_a_completed_verdict_whose_answer_is_not_kept_is_a_refusal(lost):
    """R26: it took effect, and there is nothing to replay."""
    _, bench = lost
    answer = bench.handle(Policy(reconcile=Hook(Completed(Response(201, [(b"location", b"/orders/7")], None)))))
    assert brief(answer) == (409, "replay-unavailable", False)
    assert answer.header(b"location") == b"/orders/7"
    assert bench.names == ["reconciled:completed", "refused:replay-unavailable"]


def test_the_holder_is_fenced_once_a_verdict_stands(lost):
    """The verdict became the record's token."""
    before, bench = lost
    bench.handle(Policy(reconcile=Hook(FOUND)))
    before.finish(before.lost, LATE)
    assert (before.names, bench.handle().body) == (["fenced"], b"found")


def test_nothing_happened_grants_a_new_token_and_runs(lost):
    """As a first request; from then on the old token is fenced."""
    before, bench = lost
    answer = bench.handle(Policy(reconcile=Hook(NothingHappened())))
    assert (brief(answer), bench.effects) == ((201, "", False), 1)
    assert bench.names == ["reconciled:nothing-happened", "taken_over", "completed"]
    before.finish(before.lost, LATE)
    assert before.names == ["fenced"]
    assert bench.handle().body == b'{"order":1}'


def test_nothing_happened_counts_for_a_parked_record_too(bench):
    """Parked or lapsed, the verdict is the same."""
    bench.finish(bench.run(), Raised())
    assert brief(bench.handle(Policy(reconcile=Hook(NothingHappened())))) == (201, "", False)


def test_nothing_happened_runs_a_record_of_other_fingerprint_options(lost):
    """R17: it is the same request under the record's own parameters."""
    _, bench = lost
    policy = Policy(reconcile=Hook(NothingHappened()), fingerprint=FingerprintOptions(vary_headers=("x-tenant",)))
    assert brief(bench.handle(policy)) == (201, "", False)
    assert brief(bench.handle()) == (201, "", True)


def test_dont_know_stays_unknown_and_is_asked_again_only_after_a_while(lost):
    """At most every `reconcile_every`, whoever asks."""
    _, bench = lost
    hook = Hook(DontKnow(), DontKnow())
    policy = Policy(reconcile=hook, reconcile_every=30)
    clock = bench.world.clock
    for after, asked in [(0, 1), (29, 1), (1, 2), (1, 2)]:
        clock.pass_(after)
        assert brief(bench.handle(policy)) == (500, "outcome-unknown", False)
        assert len(hook.asked) == asked
    assert bench.world.record().lapsed


def test_dont_know_keeps_the_cause_of_a_parked_record(bench):
    """What is not known stays unknown for the same reason."""
    bench.finish(bench.run(), Raised())
    for _ in range(2):
        answer = bench.handle(Policy(reconcile=Hook(DontKnow())))
        assert b'"cause": "exception"' in (answer.body or b"")
    assert bench.world.record().state == "parked"


@pytest.mark.parametrize(
    "verdict",
    [
        pytest.param(LookupError("provider"), id="raises"),
        pytest.param(None, id="nothing"),
        pytest.param("completed", id="text"),
        pytest.param(Completed({"status": 201}), id="an answer that is none"),  # type: ignore[arg-type]
        pytest.param(Completed(Response(201, [("a", "b")])), id="fields that are text"),  # type: ignore[list-item]
        pytest.param(Completed(Response(1_000_000)), id="a status that is none"),
    ],
)
def test_a_hook_that_fails_knows_nothing(lost, verdict):
    """Whatever it does but give a verdict: the outcome stays unknown, and the next one may ask after a while."""
    _, bench = lost
    hook = Hook(verdict, FOUND)
    policy = Policy(reconcile=hook)
    assert brief(bench.handle(policy)) == (500, "outcome-unknown", False)
    bench.world.clock.pass_(30)
    assert brief(bench.handle(policy)) == (201, "", True)


@pytest.mark.parametrize("verdict", [FOUND, NothingHappened(), DontKnow()], ids=["completed", "nothing", "unknown"])
def test_a_hook_that_takes_too_long_decides_nothing(lost, verdict):
    """Its second claim lapsed, so its verdict is worth nothing; it is not asked again at once."""
    _, bench = lost
    hook = Hook(verdict, meanwhile=lambda: bench.world.clock.pass_(31))
    assert brief(bench.handle(Policy(reconcile=hook))) == (500, "outcome-unknown", False)
    assert (len(hook.asked), bench.effects) == (1, 0)
    assert bench.world.record().lapsed


def test_an_asynchronous_caller_does_not_wait_for_a_slow_hook(make, colour):
    """After `reconcile_timeout` the answer goes out; a blocking caller has nobody to hand the hook to."""
    if colour == "blocking":
        return
    bench = make()
    bench.finish(bench.run(), Raised())
    left = threading.Event()
    policy = Policy(reconcile=lambda record, request: left.wait(PATIENCE), reconcile_timeout=0.1)
    try:
        assert brief(bench.handle(policy)) == (500, "outcome-unknown", False)
    finally:
        left.set()


def test_an_asynchronous_hook_is_awaited(make, colour):
    """A coroutine function, and a plain function that returns an awaitable."""
    if colour == "blocking":
        return

    async def hook(record, request):
        return FOUND

    def plain(record, request):
        return hook(record, request)

    for key, each in [("k1", hook), ("k2", plain)]:
        bench = make()
        bench.finish(bench.run(key=key), Raised())
        assert brief(bench.handle(Policy(reconcile=each), key=key)) == (201, "", True)


def test_one_caller_at_a_time_asks_the_hook(lost):
    """The others are told 409 meanwhile, with the time that the hook may still take at most."""
    _, bench = lost
    asked, answered = threading.Event(), threading.Event()

    def hook(record, request):
        asked.set()
        assert answered.wait(PATIENCE)
        return FOUND

    policy = Policy(reconcile=hook)
    first = bench.start(policy)
    assert asked.wait(PATIENCE)
    bench.world.clock.pass_(3)
    second = bench.handle(policy)
    assert (brief(second), second.header(b"retry-after")) == ((409, "in-progress", False), b"3")
    answered.set()
    assert brief(first.result(PATIENCE)) == (201, "", True)


def test_a_caller_that_loses_the_race_to_ask_waits_as_its_policy_says(lost):
    """The second claim was taken between its look and its own asking."""
    _, bench = lost
    store = bench.world.memory
    id = bench.world.record().id

    def taken():
        store.claim_unsettled(id, 30.0, b"other", 0.0)

    bench.faults.next["claim_unsettled"] = [Fault(before=taken)]
    hook = Hook()
    assert brief(bench.handle(Policy(reconcile=hook))) == (409, "in-progress", False)
    assert hook.asked == []


def test_a_hook_that_dies_is_in_progress_for_its_own_lease_only(lost, make):
    """R29: then the next one asks."""
    _, bench = lost
    bench.world.memory.claim_unsettled(bench.world.record().id, 30.0, b"the dead one", 0.0)
    hook = Hook(FOUND)
    policy = Policy(reconcile=hook)
    bench.world.clock.pass_(29.9)
    assert brief(bench.handle(policy)) == (409, "in-progress", False)
    bench.world.clock.pass_(0.1)
    assert brief(bench.handle(policy)) == (201, "", True)


@pytest.mark.parametrize("verdict", [FOUND, NothingHappened(), DontKnow()], ids=["completed", "nothing", "unknown"])
def test_the_holders_answer_stands_if_it_completes_while_the_hook_thinks(lost, verdict):
    """The second claim fences nobody: the holder's answer is replayed, or told unknown for the last time."""
    before, bench = lost
    hook = Hook(verdict, meanwhile=lambda: before.finish(before.lost, LATE))
    answer = bench.handle(Policy(reconcile=hook))
    if isinstance(verdict, DontKnow):
        assert brief(answer) == (500, "outcome-unknown", False)
    else:
        assert (brief(answer), answer.body) == ((201, "", True), b"late")
    assert bench.handle().body == b"late"
    assert (before.names, bench.effects) == (["completed"], 0)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (LATE, (201, "", True)),
        (Answered(Response(429)), (201, "", False)),
    ],
    ids=["completed", "released"],
)
def test_a_record_that_is_settled_before_the_asking_is_not_asked_about(lost, state, expected):
    """Between the look and the second claim its holder came back."""
    before, bench = lost
    bench.faults.next["claim_unsettled"] = [Fault(before=lambda: before.finish(before.lost, state))]
    hook = Hook()
    assert brief(bench.handle(Policy(reconcile=hook))) == expected
    assert hook.asked == []


@pytest.mark.parametrize("fault", [DOWN, LOST, ACTED_AND_LOST], ids=["down", "lost", "acted and lost"])
def test_a_store_that_fails_at_the_asking_is_503_and_nobody_is_asked(lost, fault):
    """R48: also where the application would rather run unprotected; nothing is left behind."""
    _, bench = lost
    bench.faults.next["claim_unsettled"] = [fault]
    hook = Hook(FOUND)
    policy = Policy(reconcile=hook, fail_open=True, reconcile_every=0)
    assert brief(bench.handle(policy)) == (503, "store-unavailable", False)
    assert (hook.asked, bench.effects) == ([], 0)
    until(lambda: bench.world.record().reconcile_nonce is None)
    assert brief(bench.handle(policy)) == (201, "", True)


def test_a_verdict_that_cannot_be_stored_now_is_stored_later_and_given_then(lost):
    """R25: a replay is what is recorded. Its holder may still complete first, and that answer would stand (R28)."""
    _, bench = lost
    bench.faults.next["complete"] = [DOWN]
    assert brief(bench.handle(Policy(reconcile=Hook(FOUND)))) == (503, "store-unavailable", False)
    until(lambda: "complete_retried" in bench.names)
    assert bench.handle().body == b"found"


def test_a_verdict_that_cannot_be_stored_and_has_no_body_is_no_answer(lost):
    """There is nothing to give before the store says that it stands."""
    _, bench = lost
    bench.faults.now["complete"] = bench.faults.now["background.complete"] = DOWN
    verdict = Completed(Response(201, [], None))
    assert brief(bench.handle(Policy(reconcile=Hook(verdict)))) == (503, "store-unavailable", False)
    bench.faults.now.clear()
    until(lambda: "complete_retried" in bench.names)
    assert brief(bench.handle()) == (409, "replay-unavailable", False)


def test_a_dont_know_that_cannot_be_written_ends_in_the_background(lost):
    """Nobody waits for the hook's lease because a store hiccuped."""
    _, bench = lost
    bench.faults.next["park"] = [DOWN]
    assert brief(bench.handle(Policy(reconcile=Hook(DontKnow())))) == (500, "outcome-unknown", False)
    until(lambda: bench.world.record().reconcile_nonce is None)
    assert bench.names == ["refused:outcome-unknown"]


def test_a_claim_that_fails_after_nothing_happened_never_runs_unprotected(lost):
    """R48: the record is known, so the handler does not run without it."""
    _, bench = lost
    bench.faults.next["claim"] = [Fault(), DOWN]
    policy = Policy(reconcile=Hook(NothingHappened()), fail_open=True)
    assert brief(bench.handle(policy)) == (503, "store-unavailable", False)
    assert bench.effects == 0


def test_races_that_never_end_are_in_progress(lost):
    """A record that changes hands between every look and every asking is somebody else's business."""
    before, bench = lost
    store, new = bench.world.memory, before.lost.call.new

    def let_go():
        store.release(new.id, before.lost.call.nonce)

    def take():
        store.claim(new, 0.0, before.lost.call.nonce)

    bench.faults.now["claim"] = Fault(before=take)
    bench.faults.now["claim_unsettled"] = Fault(before=let_go)
    answer = bench.handle(Policy(reconcile=Hook()))
    assert (brief(answer), answer.header(b"retry-after")) == ((409, "in-progress", False), b"1")
    assert bench.faults.count()["claim"] == 8
