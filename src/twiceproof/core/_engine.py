"""The way of one request through the rules and the store, as a generator of steps.

It yields what it wants done and is sent what came back; `StoreUnavailable` is thrown into it where a store failed. It
calls nothing impure: nonce and request come in with the call, moments with the store's answers. `Engine` and
`AsyncEngine` run it, and so does the explorer.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never, cast

from twiceproof.core import _lifecycle as life
from twiceproof.core._codec import encode
from twiceproof.core._fingerprint import fingerprint
from twiceproof.core._kept import to_replay, to_store
from twiceproof.core._outcome import Completed, DontKnow, NothingHappened, Outcome, Verdict
from twiceproof.core._record import Absent, Fenced, Found, Granted, Guarantee, Held, NewRecord, Record
from twiceproof.core._policy import seconds
from twiceproof.core._scope import scope_of
from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable

if TYPE_CHECKING:
    from twiceproof.core._messages import Request
    from twiceproof.core._policy import Policy
    from twiceproof.core._record import ClaimAnswer, UnsettledAnswer, WriteAnswer
    from twiceproof.core._scope import Site

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
MOST_TURNS: Final = 8
"""How often a request looks again after a lost race that was not worth an answer."""


@dataclass(slots=True)
class Call:
    """One covered request with a key, ready for the store."""

    request: Request
    key: str
    policy: Policy
    site: Site
    new: NewRecord
    nonce: bytes


@dataclass(slots=True)
class DoClaim:
    """`Store.claim`; is sent its answer."""

    new: NewRecord
    lease: float
    nonce: bytes
    after: bytes | None = None


@dataclass(slots=True)
class DoClaimUnsettled:
    """`Store.claim_unsettled`; is sent its answer."""

    id: bytes
    lease: float
    nonce: bytes
    every: float


@dataclass(slots=True)
class DoComplete:
    """`Store.complete`; is sent its answer."""

    id: bytes
    nonce: bytes
    answer: bytes
    retention: float


@dataclass(slots=True)
class DoRelease:
    """`Store.release`; is sent its answer."""

    id: bytes
    nonce: bytes


@dataclass(slots=True)
class DoPark:
    """`Store.park`; is sent its answer."""

    id: bytes
    nonce: bytes
    cause: str


@dataclass(slots=True)
class DoAsk:
    """Ask the reconcile hook for at most ``timeout`` seconds; is sent its verdict (R28)."""

    record: Record
    timeout: float


@dataclass(slots=True)
class DoRun:
    """Run the handler and renew meanwhile; is sent the outcome."""

    granted: Granted


@dataclass(slots=True)
class DoPause:
    """Wait; is sent whether the client left (R23)."""

    seconds: float


@dataclass(slots=True)
class DoLater:
    """Repeat a write in the background until it is done, fenced or too old (R47, R48)."""

    write: Write
    withdrawal: bool = False


@dataclass(slots=True)
class DoNote:
    """An event happened (CONTRACT 7); ``code`` completes a name such as ``refused``."""

    name: str
    code: str = ""


Write: TypeAlias = DoComplete | DoRelease | DoPark
StoreStep: TypeAlias = DoClaim | DoClaimUnsettled | Write
Step: TypeAlias = StoreStep | DoAsk | DoRun | DoPause | DoLater | DoNote
Steps: TypeAlias = Generator[Step, Any, life.Reply | life.Bypass | None]


def make_call(request: Request, key: str, principal: str, policy: Policy, site: Site, nonce: bytes) -> Call:
    """Return the call for an admitted request: its scope, record id and fingerprint (R14-R20)."""
    scope = scope_of(site, principal, request, key, policy)
    new = NewRecord(
        scope.id,
        site.namespace,
        scope.principal,
        scope.operation,
        scope.path,
        scope.key,
        fingerprint(request, policy.fingerprint),
        cast("Guarantee", policy.guarantee),
        seconds(policy.unsettled_retention),
    )
    return Call(request, key, policy, site, new, nonce)


def steps(call: Call) -> Steps:
    """Take one request to its end. Returns a reply, a bypass, or None once the handler's run is settled."""
    granted = yield from _begin(call)
    if not isinstance(granted, Granted):
        return granted
    outcome: Outcome = yield DoRun(granted)
    yield from _finish(call, outcome)
    return None


def _begin(call: Call) -> Generator[Step, Any, Granted | life.Reply | life.Bypass]:
    """Claim, and follow the answer until the handler may run or a reply is due."""
    policy = call.policy
    after: bytes | None = None
    waiting_since: float | None = None
    pause = FIRST_PAUSE
    turns = 0
    while True:
        try:
            got = yield from _claim(call, after)
        except StoreUnavailable:
            return (yield from _store_down(call))
        answer = life.resolve(got, call.new.fingerprint, call.request, policy, call.site)
        turns += 1
        match answer:
            case life.Execute(granted):
                yield from _note_grant(granted)
                return granted
            case life.Reply():
                yield DoNote("refused", answer.code) if answer.code else DoNote("replayed")
                return answer
            case life.Wait(reply, now):
                waiting_since = now if waiting_since is None else waiting_since
                left = seconds(policy.wait) - (now - waiting_since)
                if left <= 0 or (yield DoPause(min(pause, left))):
                    yield DoNote("held")
                    return reply
                pause = min(pause * 2, LONGEST_PAUSE)
                turns = 0
            case life.Again(other):
                call.new = replace(call.new, fingerprint=other)
            case life.Reconcile(reply, record):
                verdict = yield from _reconcile(call, record, reply)
                if isinstance(verdict, life.Reply):
                    return verdict
                after = verdict
            case _:
                assert_never(answer)
        if turns >= MOST_TURNS:
            yield DoNote("held")
            return life.refuse("in-progress", call.site, retry_after=1)


def _claim(call: Call, after: bytes | None) -> Generator[Step, Any, ClaimAnswer]:
    """Claim; repeat once under the same nonce where the reply was lost (R48)."""
    step = DoClaim(call.new, seconds(call.policy.lease), call.nonce, after)
    try:
        got: ClaimAnswer = yield step
    except StoreOutcomeUnknown:
        try:
            got = yield step
        except StoreUnavailable:
            yield DoLater(DoRelease(call.new.id, call.nonce), withdrawal=True)
            raise
    return got


def _store_down(call: Call) -> Generator[Step, Any, life.Reply | life.Bypass]:
    if call.policy.fail_open:
        yield DoNote("failed_open")
        return life.Bypass(unprotected=True)
    yield DoNote("refused", "store-unavailable")
    return life.refuse("store-unavailable", call.site, retry_after=5)


def _note_grant(granted: Granted) -> Generator[Step, Any, None]:
    if granted.forgot:
        yield DoNote("purged", "unsettled")  # R42: the key is new, although nobody knew how it came out
    yield DoNote("taken_over" if granted.taken_over else "granted")


def _reconcile(
    call: Call, record: Record, unknown: life.Reply
) -> Generator[Step, Any, life.Reply | bytes | None]:
    """Ask the hook under a second claim (R28).

    Returns a reply, or the nonce whose verdict was that nothing happened, or None: look at the record again.
    """
    policy = call.policy
    nonce = b"r" + call.nonce
    if policy.reconcile is None:
        yield DoNote("refused", unknown.code)
        return unknown
    timeout, every = seconds(policy.reconcile_timeout), seconds(policy.reconcile_every)
    try:
        got: UnsettledAnswer = yield DoClaimUnsettled(record.id, timeout, nonce, every)
    except StoreUnavailable:
        yield DoNote("refused", "store-unavailable")
        return life.refuse("store-unavailable", call.site, retry_after=5)
    match got:
        case Absent():
            return None
        case Held():
            yield DoNote("held")
            return life.refuse("in-progress", call.site, retry_after=life.retry_after(got.record))
        case Found():
            if not got.record.unsettled:
                return None
            yield DoNote("refused", unknown.code)
            return unknown
        case Granted():
            verdict: Verdict = yield DoAsk(record, timeout)
            return (yield from _apply(call, record, nonce, verdict, unknown))
        case _:
            assert_never(got)


def _apply(
    call: Call, record: Record, nonce: bytes, verdict: Verdict, unknown: life.Reply
) -> Generator[Step, Any, life.Reply | bytes | None]:
    match verdict:
        case NothingHappened():
            yield DoNote("reconciled", "nothing-happened")
            return nonce
        case DontKnow():
            yield from _write(DoPark(record.id, nonce, record.cause or "lapsed"))
            yield DoNote("refused", unknown.code)
            return unknown
        case Completed(response):
            kept = to_store(response, call.policy)
            back = yield from _write(
                DoComplete(record.id, nonce, encode(kept), seconds(call.policy.retention))
            )
            if isinstance(back, Fenced):
                return None  # its holder completed meanwhile, and that answer stands
            yield DoNote("reconciled", "completed")
            return life.Reply(to_replay(kept)) if kept.body is not None else None
        case _:
            assert_never(verdict)


def _finish(call: Call, outcome: Outcome) -> Generator[Step, Any, None]:
    """Settle the claim with what the handler's run came to."""
    id, nonce = call.new.id, call.nonce
    settlement = life.settle(outcome, call.policy)
    match settlement:
        case life.Complete(answer):
            write: Write = DoComplete(id, nonce, encode(answer), seconds(call.policy.retention))
            name = "completed"
        case life.Release():
            write, name = DoRelease(id, nonce), "released"
        case life.Park(cause):
            write, name = DoPark(id, nonce, cause), "parked"
        case life.Leave():
            return
        case _:
            assert_never(settlement)
    back = yield from _write(write)
    if back is not None:
        yield DoNote("fenced" if isinstance(back, Fenced) else name)


def _write(write: Write) -> Generator[Step, Any, WriteAnswer | None]:
    """Write; where the store is down, leave it to the background (R47), never release instead. None: not yet known."""
    try:
        back: WriteAnswer = yield write
    except StoreUnavailable:
        yield DoLater(write)
        return None
    return back
