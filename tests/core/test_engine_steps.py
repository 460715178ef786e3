"""The way of one request as steps: what the rules ask for, answer by answer, without any runner (CONTRACT 4)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.records import NOW, REQUEST, SITE, record
from twiceproof import Completed, DontKnow, FingerprintOptions, Guarantee, NothingHappened, Policy, Response, State
from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._codec import encode
from twiceproof.core._fingerprint import fingerprint
from twiceproof.core._kept import to_replay
from twiceproof.core._outcome import Abandoned, Answered, Raised
from twiceproof.core._record import Absent, Done, Fenced, Found, Granted, Held, Token
from twiceproof.core._scope import make_scope
from twiceproof.errors import StoreError, StoreOutcomeUnknown, StoreUnavailable, UnknownFormat

NONCE = b"n" * 16
SECOND = b"r" + NONCE
MINE = fingerprint(REQUEST, FingerprintOptions())
VARIED = fingerprint(REQUEST, FingerprintOptions(vary_headers=("accept",)))
GRANTED = Granted(Token(1, NONCE), NONCE)
TAKEN_OVER = Granted(Token(2, NONCE), b"first", 2, taken_over=True)
HELD = Held(record(fingerprint=MINE))
LAPSED = Found(record(fingerprint=MINE, lease_until=NOW))
COMPLETED = Found(record(State.COMPLETED, fingerprint=MINE, answer=encode(Response(201, [], b"stored"))))
OTHERS = Found(replace(COMPLETED.record, fingerprint=fingerprint(replace(REQUEST, body=b"{}"), FingerprintOptions())))
OK = Answered(Response(201, [], b"ok"))
ASKED = Policy(reconcile=lambda record, request: DontKnow())


def call(policy=None):
    return core.make_call(REQUEST, "key", "alice", policy or Policy(), SITE, NONCE)


def played(made, *answers):
    """The steps that are asked for while these answers come back, and what the request ended with."""
    steps, seen = core.steps(made), []
    rest = list(answers)
    try:
        step = steps.send(None)
        while True:
            seen.append(step)
            if isinstance(step, core.DoNote | core.DoLater):
                back = None
            elif rest:
                back = rest.pop(0)
            else:
                return seen, "more"
            step = steps.throw(back) if isinstance(back, StoreError) else steps.send(back)
    except StopIteration as end:
        assert rest == [], "not all of it was asked for"
        return seen, end.value


def brief(steps):
    """Each step in a word or two."""
    words = []
    for step in steps:
        match step:
            case core.DoNote(name, code):
                words.append(f"({name} {code})".replace(" )", ")"))
            case core.DoLater(write, note):
                words.append(f"later {type(write).__name__[2:].lower()} {note or 'unsaid'}")
            case _:
                words.append(type(step).__name__[2:].lower())
    return " ".join(words)


@pytest.mark.parametrize(
    ("policy", "answers", "expected", "end"),
    [
        ({}, [GRANTED, OK, Done()], "claim (granted) run complete (completed)", "settled"),
        ({}, [GRANTED, OK, Fenced()], "claim (granted) run complete (fenced)", "settled"),
        ({}, [GRANTED, Raised(), Done()], "claim (granted) run park (parked)", "settled"),
        ({}, [GRANTED, NothingHappened(), Done()], "claim (granted) run release (released)", "settled"),
        ({}, [GRANTED, Abandoned()], "claim (granted) run", "settled"),
        (
            {},
            [GRANTED, OK, StoreUnavailable()],
            "claim (granted) run complete later complete complete_retried",
            "settled",
        ),
        ({}, [GRANTED, Raised(), StoreUnavailable()], "claim (granted) run park later park parked", "settled"),
        ({}, [TAKEN_OVER, OK, Done()], "claim (taken_over) run complete (completed)", "settled"),
        (
            {},
            [replace(GRANTED, forgot=True), OK, Done()],
            "claim (purged unsettled) (granted) run complete (completed)",
            "settled",
        ),
        ({}, [COMPLETED], "claim (replayed)", ""),
        ({}, [HELD], "claim (held)", "in-progress"),
        ({}, [OTHERS], "claim (refused idempotency-key-reuse)", "idempotency-key-reuse"),
        ({"wait": 1.0}, [HELD, False, COMPLETED], "claim pause claim (replayed)", ""),
        ({"wait": 1.0}, [HELD, True], "claim pause (held)", "in-progress"),
        ({}, [LAPSED], "claim (refused outcome-unknown)", "outcome-unknown"),
        ({}, [StoreUnavailable()], "claim (refused store-unavailable)", "store-unavailable"),
        ({}, [UnknownFormat()], "claim (refused store-unavailable)", "store-unavailable"),
        ({"fail_open": True}, [StoreUnavailable()], "claim (failed_open)", "bypass"),
        ({"fail_open": True}, [UnknownFormat()], "claim (refused store-unavailable)", "store-unavailable"),
        (
            {},
            [StoreOutcomeUnknown(), StoreUnavailable()],
            "claim claim later release unsaid (refused store-unavailable)",
            "store-unavailable",
        ),
        ({}, [StoreOutcomeUnknown(), COMPLETED], "claim claim later release unsaid (replayed)", ""),
        (
            {"wait": 1.0, "reconcile": ASKED.reconcile},
            [StoreOutcomeUnknown(), HELD],
            "claim claim later release unsaid (held)",
            "in-progress",
        ),
        (
            {"reconcile": ASKED.reconcile},
            [StoreOutcomeUnknown(), LAPSED],
            "claim claim later release unsaid (refused outcome-unknown)",
            "outcome-unknown",
        ),
        (
            {},
            [StoreOutcomeUnknown(), GRANTED, NothingHappened(), Done()],
            "claim claim (granted) run release (released) later release unsaid",
            "settled",
        ),
        (
            {},
            [StoreOutcomeUnknown(), GRANTED, OK, Done()],
            "claim claim (granted) run complete (completed)",
            "settled",
        ),
    ],
)
def test_the_way_of_a_request(policy, answers, expected, end):
    """From the claim to its end."""
    seen, ended = played(call(Policy(**policy)), *answers)
    assert brief(seen) == expected
    assert ("settled" if ended is None else "bypass" if isinstance(ended, life.Bypass) else ended.code) == end


def writes(steps):
    """The steps that reach the store or the handler, whole."""
    return [step for step in steps if not isinstance(step, core.DoNote | core.DoPause)]


ID = make_scope(SITE, "alice", "POST /orders", "/orders", "key").id
STORED = encode(OK.response)


@pytest.mark.parametrize(
    ("policy", "answers", "expected"),
    [
        ({"retention": 90_000}, [OK, Done()], [core.DoComplete(ID, NONCE, STORED, 90_000)]),
        (
            {},
            [OK, StoreUnavailable()],
            [
                core.DoComplete(ID, NONCE, STORED, 86_400),
                core.DoLater(core.DoComplete(ID, NONCE, STORED, 86_400), "complete_retried"),
            ],
        ),
        ({}, [NothingHappened(), Done()], [core.DoRelease(ID, NONCE)]),
        ({}, [Raised(), Done()], [core.DoPark(ID, NONCE, "exception")]),
    ],
    ids=["completed", "completed later", "released", "parked"],
)
def test_the_writes_of_a_run_are_these(policy, answers, expected):
    """R30, R33: of this record, under this claim, with the answer as it is stored."""
    seen, _ = played(call(Policy(**policy)), GRANTED, *answers)
    claim, run, *rest = writes(seen)
    assert isinstance(claim, core.DoClaim)
    assert [run, *rest] == [core.DoRun(GRANTED), *expected]


def test_a_doubtful_claim_that_is_released_is_released_again():
    """R48: its first send may come after the first release."""
    seen, _ = played(call(), StoreOutcomeUnknown(), GRANTED, NothingHappened(), Done())
    again = core.DoRelease(ID, NONCE, again=True)
    assert writes(seen)[2:] == [core.DoRun(replace(GRANTED, doubtful=True)), again, core.DoLater(again)]


HOOKED = Policy(reconcile=ASKED.reconcile, reconcile_timeout=7, reconcile_every=11, retention=90_000)
PARK = core.DoPark(b"id", SECOND, "lapsed")
VERDICT = core.DoComplete(b"id", SECOND, STORED, 90_000)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([StoreOutcomeUnknown()], [core.DoLater(PARK)]),
        ([GRANTED, DontKnow(), Done()], [core.DoAsk(LAPSED.record, 7, SECOND), PARK]),
        (
            [GRANTED, DontKnow(), StoreUnavailable()],
            [core.DoAsk(LAPSED.record, 7, SECOND), PARK, core.DoLater(PARK)],
        ),
        ([GRANTED, Completed(OK.response), Done()], [core.DoAsk(LAPSED.record, 7, SECOND), VERDICT]),
    ],
    ids=["in doubt", "unknown", "unknown, later", "completed"],
)
def test_the_writes_of_a_reconciliation_are_these(answers, expected):
    """R28: of the record that was found, under the second claim, with the durations of the policy."""
    seen, _ = played(call(HOOKED), LAPSED, *answers)
    assert writes(seen)[1:] == [core.DoClaimUnsettled(b"id", 7, SECOND, 11), *expected]


def test_a_verdict_of_completed_is_replayed():
    """R28, R25."""
    _, reply = played(call(ASKED), LAPSED, GRANTED, Completed(OK.response), Done())
    assert reply == life.Reply(to_replay(OK.response))


def test_a_request_that_runs_without_protection_is_marked():
    """R48: `fail_open`."""
    _, ended = played(call(Policy(fail_open=True)), StoreUnavailable())
    assert ended == life.Bypass(unprotected=True)


def test_a_refusal_for_want_of_the_store_says_when_to_come_again():
    """R48."""
    _, reply = played(call(), StoreUnavailable())
    assert reply.response.header(b"retry-after") == b"5"


def test_a_claim_is_repeated_with_the_records_own_fingerprint():
    """R17, R27: the store compares bytes, so a lapsed record of other options is claimed under those."""
    lapsed = Found(replace(LAPSED.record, fingerprint=VARIED, guarantee=Guarantee.AT_LEAST_ONCE))
    seen, _ = played(call(Policy(guarantee="at_least_once")), lapsed, TAKEN_OVER)
    claims = [step.new for step in seen if isinstance(step, core.DoClaim)]
    assert claims == [replace(claims[0], fingerprint=MINE), replace(claims[0], fingerprint=VARIED)]


@pytest.mark.parametrize("waited", [False, True])
def test_a_request_that_loses_every_race_ends(waited):
    """R23: after eight looks it is told to come again; what it waited does not count."""
    first = [HELD, False] if waited else []
    lost = [LAPSED, Absent()] * core.MOST_TURNS  # whoever had it settled it, and the next one lost it
    seen, reply = played(call(replace(ASKED, wait=1)), *first, *lost)
    assert seen[-1] == core.DoNote("held")
    assert (reply.code, reply.response.status, reply.response.header(b"retry-after")) == ("in-progress", 409, b"1")


def test_a_wait_looks_again_at_growing_pauses_until_it_is_over():
    """R23: by the store's clock, from the first look on, and never longer than the policy says."""
    moments = [0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.0]
    answers = []
    for at in moments:
        answers += [Held(replace(HELD.record, now=NOW + at)), False]
    seen, reply = played(call(Policy(wait=3)), *answers[:-1])
    pauses = [step.seconds for step in seen if isinstance(step, core.DoPause)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 0.45])
    assert reply.code == "in-progress"


def test_nobody_is_told_where_nobody_listens():
    """The two events of every first request are spared; the others are rare."""
    made = core.make_call(REQUEST, "key", "alice", Policy(), SITE, NONCE, heard=False)
    assert brief(played(made, GRANTED, OK, Done())[0]) == "claim run complete"


REPLY = "claim claimunsettled "


@pytest.mark.parametrize(
    ("answers", "expected", "end"),
    [
        ([Absent(), GRANTED], "claim (granted) run", "more"),
        ([Held(LAPSED.record), HELD], "claim (held)", "in-progress"),
        ([LAPSED], "(refused outcome-unknown)", "outcome-unknown"),
        ([COMPLETED, COMPLETED], "claim (replayed)", ""),
        ([StoreUnavailable()], "(refused store-unavailable)", "store-unavailable"),
        ([StoreOutcomeUnknown()], "later park unsaid (refused store-unavailable)", "store-unavailable"),
        ([GRANTED, DontKnow(), Done()], "ask park (refused outcome-unknown)", "outcome-unknown"),
        ([GRANTED, DontKnow(), Fenced()], "ask park (refused outcome-unknown)", "outcome-unknown"),
        (
            [GRANTED, DontKnow(), StoreUnavailable()],
            "ask park later park unsaid (refused outcome-unknown)",
            "outcome-unknown",
        ),
        ([GRANTED, Completed(OK.response), Done()], "ask complete (reconciled completed) (replayed)", ""),
        ([GRANTED, Completed(OK.response), Fenced(), COMPLETED], "ask complete (fenced verdict) claim (replayed)", ""),
        (
            [GRANTED, Completed(OK.response), Fenced(), LAPSED],
            "ask complete (fenced verdict) claim (refused outcome-unknown)",
            "outcome-unknown",
        ),
        (
            [GRANTED, Completed(OK.response), StoreUnavailable()],
            "ask complete later complete complete_retried (refused store-unavailable)",
            "store-unavailable",
        ),
        (
            [GRANTED, NothingHappened(), TAKEN_OVER],
            "ask (reconciled nothing-happened) claim (taken_over) run",
            "more",
        ),
        (
            [GRANTED, NothingHappened(), LAPSED],
            "ask (reconciled nothing-happened) claim (refused outcome-unknown)",
            "outcome-unknown",
        ),
    ],
)
def test_the_way_of_a_reconciliation(answers, expected, end):
    """R28: from the second claim to its end."""
    seen, ended = played(call(ASKED), LAPSED, *answers)
    assert brief(seen) == REPLY + expected
    assert (ended if isinstance(ended, str) else ended.code) == end


def test_every_write_bears_the_nonce_of_its_claim():
    """R30: and the second claim one of its own."""
    seen, _ = played(call(), GRANTED, OK, Done())
    assert [step.nonce for step in seen if hasattr(step, "nonce")] == [NONCE, NONCE]
    seen, _ = played(call(ASKED), LAPSED, GRANTED, Completed(OK.response), Done())
    assert [step.nonce for step in seen if hasattr(step, "nonce")] == [NONCE, SECOND, SECOND, SECOND]


def test_a_verdict_of_nothing_happened_is_shown_to_the_store():
    """R28: the claim names the second claim under which it was given, and the record's own fingerprint."""
    lapsed = Found(replace(LAPSED.record, fingerprint=VARIED))
    seen, _ = played(call(ASKED), lapsed, GRANTED, NothingHappened(), TAKEN_OVER)
    first, second = (step for step in seen if isinstance(step, core.DoClaim))
    assert (first.after, first.new.fingerprint) == (None, MINE)
    assert (second.after, second.new.fingerprint) == (SECOND, VARIED)


def test_what_a_claim_would_write_is_all_of_the_record():
    """R54: and the durations are the policy's."""
    made = call(Policy(guarantee="at_least_once", lease=7, unsettled_retention=99, operation="pay"))
    [claim], _ = played(made)
    assert (claim.lease, claim.new.keep, claim.new.guarantee) == (7, 99, "at_least_once")
    assert (claim.new.namespace, claim.new.operation, claim.new.path) == ("tests", "pay", "/orders")
    assert (claim.new.fingerprint, claim.nonce) == (MINE, NONCE)
    scope = make_scope(SITE, "alice", "pay", "/orders", "key")
    assert (claim.new.id, claim.new.principal, claim.new.key) == (scope.id, scope.principal, scope.key)
    assert made.key == "key"


def test_a_call_can_be_played_again():
    """The explorer replays a request from its answers: nothing is remembered outside of them."""
    made = call(ASKED)
    lapsed = Found(replace(LAPSED.record, fingerprint=VARIED))
    once = played(made, lapsed, GRANTED, NothingHappened(), TAKEN_OVER, OK)
    assert played(made, lapsed, GRANTED, NothingHappened(), TAKEN_OVER, OK) == once


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (core.DoClaim(call().new, 30.0, NONCE), core.DoLater(core.DoRelease(call().new.id, NONCE, again=True))),
        (core.DoClaimUnsettled(b"id", 30.0, SECOND, 30.0), core.DoLater(core.DoPark(b"id", SECOND, "lapsed"))),
        (core.DoAsk(LAPSED.record, 30.0, SECOND), core.DoLater(core.DoPark(b"id", SECOND, "lapsed"))),
        (
            core.DoComplete(b"id", NONCE, b"a", 1.0),
            core.DoLater(core.DoComplete(b"id", NONCE, b"a", 1.0), "complete_retried"),
        ),
        (core.DoRelease(b"id", NONCE), core.DoLater(core.DoRelease(b"id", NONCE), "released")),
        (core.DoPark(b"id", NONCE, "x"), core.DoLater(core.DoPark(b"id", NONCE, "x"), "parked")),
        (core.DoRun(GRANTED), None),
        (core.DoPause(1.0), None),
        (core.DoNote("granted"), None),
        (core.DoLater(core.DoRelease(b"id", NONCE)), None),
    ],
    ids=lambda value: type(value).__name__ if type(value).__module__ == core.__name__ else "",
)
def test_what_is_left_to_write_where_a_step_is_cancelled(step, expected):
    """R40: a claim is taken back, a write takes place, and nothing else needs either."""
    assert core.cleanup(step) == expected


ANSWERS: dict[type, list[Any]] = {
    core.DoClaim: [
        GRANTED,
        TAKEN_OVER,
        HELD,
        LAPSED,
        COMPLETED,
        StoreUnavailable(),
        StoreOutcomeUnknown(),
        UnknownFormat(),
    ],
    core.DoClaimUnsettled: [
        GRANTED,
        Absent(),
        Held(LAPSED.record),
        LAPSED,
        COMPLETED,
        StoreUnavailable(),
        StoreOutcomeUnknown(),
    ],
    core.DoAsk: [DontKnow(), NothingHappened(), Completed(OK.response), Completed(Response(201, [], None))],
    core.DoRun: [OK, Raised(), NothingHappened(), Answered(Response(429))],
    core.DoPause: [True, False],
    core.DoComplete: [Done(), Fenced(), StoreUnavailable(), StoreOutcomeUnknown(), UnknownFormat()],
}
ANSWERS[core.DoRelease] = ANSWERS[core.DoPark] = ANSWERS[core.DoComplete]
ENDS = {"granted", "taken_over", "replayed", "refused", "held", "failed_open"}


@settings(max_examples=500)
@given(
    st.data(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from(["at_most_once", "at_least_once"]),
)
def test_whatever_a_store_answers_a_request_ends(data, asks, fail_open, wait, guarantee):
    """Bounded steps; exactly one event for how it began or was answered; it runs only on a grant, and at most once."""
    hook = ASKED.reconcile if asks else None
    policy = Policy(reconcile=hook, fail_open=fail_open, wait=wait, guarantee=guarantee)
    steps, seen, now = core.steps(call(policy)), [], NOW
    step = steps.send(None)
    ended = None
    try:
        while True:
            seen.append(step)
            assert len(seen) < 100
            back = data.draw(st.sampled_from(ANSWERS[type(step)])) if type(step) in ANSWERS else None
            if isinstance(back, Held):
                now += 0.05
                back = Held(replace(back.record, now=now))
            step = steps.throw(back) if isinstance(back, StoreError) else steps.send(back)
    except StopIteration as end:
        ended = end.value
    notes = [step.name for step in seen if isinstance(step, core.DoNote)]
    assert len([name for name in notes if name in ENDS]) == 1
    runs = [step for step in seen if isinstance(step, core.DoRun)]
    assert len(runs) == (ended is None) == (len({"granted", "taken_over"} & set(notes)))
    if isinstance(ended, life.Bypass):
        assert fail_open
        assert len(seen) <= 4
    assert len([step for step in seen if isinstance(step, core.DoAsk)]) <= 1
