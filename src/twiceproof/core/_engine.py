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
from twiceproof.core._policy import seconds
from twiceproof.core._record import Absent, Fenced, Found, Granted, Guarantee, Held, NewRecord, Record
from twiceproof.core._scope import operation_of
from twiceproof.errors import StoreError, StoreOutcomeUnknown, UnknownFormat

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
    heard: bool = True
    """Whether anybody listens to events: where nobody does, the two of every first request are spared."""


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
    """`Store.release`; is sent its answer.

    ``again``: a claim under this nonce may still be on its way to the store, so one release is not enough (R48).
    """

    id: bytes
    nonce: bytes
    again: bool = False


@dataclass(slots=True)
class DoPark:
    """`Store.park`; is sent its answer."""

    id: bytes
    nonce: bytes
    cause: str


@dataclass(slots=True)
class DoAsk:
    """Ask the reconcile hook for at most ``timeout`` seconds; is sent its verdict (R28).

    ``nonce`` is that of the second claim under which it is asked.
    """

    record: Record
    timeout: float
    nonce: bytes


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
    """Repeat a write in the background until it is done, fenced or too old (R47, R48).

    ``note`` is the event that tells of its success. Without one it takes back what nobody needs any more: that is
    nobody's news, and where it finds nothing, what it takes back may still be on its way.
    """

    write: Write
    note: str = ""


@dataclass(slots=True)
class DoNote:
    """An event happened (CONTRACT 7); ``code`` completes a name such as ``refused``."""

    name: str
    code: str = ""


Write: TypeAlias = DoComplete | DoRelease | DoPark
StoreStep: TypeAlias = DoClaim | DoClaimUnsettled | Write
Step: TypeAlias = StoreStep | DoAsk | DoRun | DoPause | DoLater | DoNote
Steps: TypeAlias = Generator[Step, Any, life.Reply | life.Bypass | None]


def make_call(
    request: Request, key: str, principal: str, policy: Policy, site: Site, nonce: bytes, *, heard: bool = True
) -> Call:
    """Return the call for an admitted request: its scope, record id and fingerprint (R14-R20)."""
    operation, path = operation_of(request, policy)
    who, key_digest = site.principal(principal), site.digest(key)
    new = NewRecord(
        site.record_id(operation, who, key_digest),
        site.namespace,
        who,
        operation,
        path,
        key_digest,
        fingerprint(request, policy.fingerprint, path),
        cast("Guarantee", policy.guarantee),
        seconds(policy.unsettled_retention),
    )
    return Call(request, key, policy, site, new, nonce, heard)


def note_of(write: Write, *, late: bool = False) -> str:
    """Return the event that tells of a write; ``late`` where the background did it."""
    match write:
        case DoComplete():
            return "complete_retried" if late else "completed"
        case DoRelease():
            return "released"
        case DoPark():
            return "parked"
        case _:
            assert_never(write)


def cleanup(step: Step) -> DoLater | None:
    """Return what must still be written where a request is cancelled in the middle of a step, if anything (R40)."""
    match step:
        case DoClaim():
            return _withdrawal(step)
        case DoClaimUnsettled():
            return DoLater(DoPark(step.id, step.nonce, life.LAPSED))
        case DoAsk():
            return DoLater(DoPark(step.record.id, step.nonce, life.LAPSED))
        case DoComplete() | DoRelease() | DoPark():
            return DoLater(step, note_of(step, late=True))  # it may be on its way, and is safe to repeat
        case DoRun() | DoPause() | DoLater() | DoNote():
            return None
        case _:
            assert_never(step)


def _withdrawal(claim: DoClaim) -> DoLater:
    """Take back a claim that may still be on its way to the store (R48)."""
    return DoLater(DoRelease(claim.new.id, claim.nonce, again=True))


def steps(call: Call) -> Steps:
    """Take one request to its end. Returns a reply, a bypass, or None once the handler's run is settled."""
    granted = yield from _begin(call)
    if not isinstance(granted, Granted):
        return granted
    outcome: Outcome = yield DoRun(granted)
    yield from _finish(call, granted, outcome)
    return None


@dataclass(slots=True)
class _Asked:
    """The hook gave its verdict: look again. ``after`` is the nonce under which it said that nothing happened."""

    after: bytes | None = None


def _begin(  # noqa: C901, PLR0912, PLR0915  # one case per answer, and no step between claim and handler
    call: Call,
) -> Generator[Step, Any, Granted | life.Reply | life.Bypass]:
    """Claim, and follow the answer until the handler may run or a reply is due.

    A request that must take an earlier send of its claim back neither waits nor asks the hook: it ends at once.
    """
    policy, new = call.policy, call.new
    asked: _Asked | None = None
    waiting_since: float | None = None
    pause = FIRST_PAUSE
    turns = 0
    doubtful = False
    while turns < MOST_TURNS:
        claim = DoClaim(new, seconds(policy.lease), call.nonce, asked.after if asked else None)
        try:
            try:
                got: ClaimAnswer = yield claim
            except StoreOutcomeUnknown:
                doubtful = True
                got = yield claim
        except StoreError as error:
            if doubtful:
                yield _withdrawal(claim)
            known = turns > 0 or waiting_since is not None or isinstance(error, UnknownFormat)
            if policy.fail_open and not known:  # R48; a record that is known, or can't be read (R17), is never run over
                yield DoNote("failed_open")
                return life.Bypass(unprotected=True)
            return (yield from _store_down(call))
        answer = life.resolve(got, new.fingerprint, call.request, policy, call.site)
        turns += 1
        if doubtful and not isinstance(answer, Granted | life.Again):
            yield _withdrawal(claim)
        match answer:
            case Granted():
                if answer.forgot:
                    yield DoNote("purged", "unsettled")  # R42: the key is new, although nobody knew how it came out
                if call.heard:
                    yield DoNote("taken_over" if answer.taken_over else "granted")
                return replace(answer, doubtful=True) if doubtful else answer
            case life.Reply():
                yield DoNote("refused", answer.code) if answer.code else DoNote("replayed")
                return answer
            case life.Wait(reply, now):
                waiting_since = now if waiting_since is None else waiting_since
                left = seconds(policy.wait) - (now - waiting_since)
                if left <= 0 or doubtful or (yield DoPause(min(pause, left))):
                    yield DoNote("held")
                    return reply
                pause = min(pause * 2, LONGEST_PAUSE)
                turns = 0
            case life.Again(other):
                new = replace(new, fingerprint=other)
            case life.Reconcile(reply, record):
                if asked is not None or policy.reconcile is None or doubtful:
                    yield DoNote("refused", reply.code)
                    return reply
                verdict = yield from _reconcile(call, record, reply)
                if isinstance(verdict, life.Reply):
                    return verdict
                asked = verdict
                new = replace(new, fingerprint=record.fingerprint)  # the same request, by the record's parameters
            case _:
                assert_never(answer)
    yield DoNote("held")
    return life.refuse("in-progress", call.site, retry_after=1)


def _store_down(call: Call) -> Generator[Step, Any, life.Reply]:
    yield DoNote("refused", "store-unavailable")
    return life.refuse("store-unavailable", call.site, retry_after=5)


def _reconcile(call: Call, record: Record, unknown: life.Reply) -> Generator[Step, Any, life.Reply | _Asked | None]:
    """Ask the hook under a second claim (R28). Returns a reply or the verdict, or None: look at the record again."""
    policy = call.policy
    nonce = b"r" + call.nonce
    timeout, every = seconds(policy.reconcile_timeout), seconds(policy.reconcile_every)
    try:
        got: UnsettledAnswer = yield DoClaimUnsettled(record.id, timeout, nonce, every)
    except StoreError as error:
        if isinstance(error, StoreOutcomeUnknown):
            yield DoLater(DoPark(record.id, nonce, life.LAPSED))
        return (yield from _store_down(call))
    match got:
        case Absent() | Held():
            return None
        case Found():
            if not got.record.unsettled:
                return None
            yield DoNote("refused", unknown.code)  # asked too recently
            return unknown
        case Granted():
            verdict: Verdict = yield DoAsk(record, timeout, nonce)
            return (yield from _apply(call, record, nonce, verdict, unknown))
        case _:
            assert_never(got)


def _apply(
    call: Call, record: Record, nonce: bytes, verdict: Verdict, unknown: life.Reply
) -> Generator[Step, Any, life.Reply | _Asked]:
    match verdict:
        case NothingHappened():
            yield DoNote("reconciled", "nothing-happened")
            return _Asked(nonce)
        case DontKnow():
            yield from _write(DoPark(record.id, nonce, life.LAPSED), "")
            yield DoNote("refused", unknown.code)
            return unknown
        case Completed(response):
            kept = to_store(response, call.policy)
            write = DoComplete(record.id, nonce, encode(kept), seconds(call.policy.retention))
            back = yield from _write(write, note_of(write, late=True))
            if back is None:
                return (yield from _store_down(call))  # R25: what is not recorded is not replayed
            if isinstance(back, Fenced):
                yield DoNote("fenced", "verdict")  # R28: its holder completed meanwhile, and that answer stands
                return _Asked()
            yield DoNote("reconciled", "completed")
            if kept.body is None:
                return _Asked()
            yield DoNote("replayed")
            return life.Reply(to_replay(kept))
        case _:
            assert_never(verdict)


def _finish(call: Call, granted: Granted, outcome: Outcome) -> Generator[Step, Any, None]:
    """Settle the claim with what the handler's run came to."""
    id, nonce = call.new.id, call.nonce
    settlement = life.settle(outcome, call.policy)
    match settlement:
        case life.Complete():
            write: Write = DoComplete(id, nonce, encode(settlement.answer), seconds(call.policy.retention))
        case life.Release():
            write = DoRelease(id, nonce, granted.doubtful)
        case life.Park():
            write = DoPark(id, nonce, settlement.cause)
        case life.Leave():
            return
        case _:
            assert_never(settlement)
    try:
        back: WriteAnswer = yield write
    except StoreError:
        yield DoLater(write, note_of(write, late=True))  # R47
        return
    if call.heard:
        yield DoNote("fenced" if isinstance(back, Fenced) else note_of(write))
    if granted.doubtful and isinstance(write, DoRelease):
        yield DoLater(write)  # R48


def _write(write: Write, note: str) -> Generator[Step, Any, WriteAnswer | None]:
    """Write; where the store is down, leave it to the background (R47), never release instead. None: not yet known."""
    try:
        back: WriteAnswer = yield write
    except StoreError:
        yield DoLater(write, note)
        return None
    return back
