"""The life of a record: the table of states, and the three questions that decide a request.

`admit`: is this request ours?  `resolve`: what does the store's answer to the claim mean?  `settle`: what does the
handler's outcome mean for the claim?
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from twiceproof.core import _outcome as outcomes
from twiceproof.core._codec import decode
from twiceproof.core._field import BadKey, find_key
from twiceproof.core._fingerprint import refingerprint, same_parameters
from twiceproof.core._guarantee import SETTLING, TEMPORARY_STATUSES, Ending, Settling
from twiceproof.core._kept import to_replay, to_store
from twiceproof.core._problems import is_ours, problem
from twiceproof.core._record import FORMAT, Found, Granted, Guarantee, Held, Record, State
from twiceproof.errors import UnknownFormat

if TYPE_CHECKING:
    from twiceproof.core._messages import Headers, Request, Response
    from twiceproof.core._policy import Policy
    from twiceproof.core._record import ClaimAnswer
    from twiceproof.core._scope import Site

ABSENT: Final = "absent"
UNSETTLED: Final = "unsettled"
TRANSITIONS: Final[tuple[tuple[str, str, str], ...]] = (
    (ABSENT, "claim", State.IN_FLIGHT),  # R21
    (State.IN_FLIGHT, "complete", State.COMPLETED),  # R25
    (State.IN_FLIGHT, "release", ABSENT),  # R37, R38
    (State.IN_FLIGHT, "park", UNSETTLED),  # R28
    (State.IN_FLIGHT, "lapse", UNSETTLED),  # R28
    (State.IN_FLIGHT, "lapse and claim, at least once", State.IN_FLIGHT),  # R27
    (UNSETTLED, "complete by its holder or by a verdict", State.COMPLETED),  # R28, R42
    (UNSETTLED, "release by its holder or by an operator", ABSENT),  # R42
    (UNSETTLED, "renew by its holder", State.IN_FLIGHT),  # R42
    (UNSETTLED, "verdict: nothing happened", State.IN_FLIGHT),  # R28
    (UNSETTLED, "unsettled_retention runs out", ABSENT),  # R42
    (State.COMPLETED, "retention runs out", ABSENT),  # R33
    (State.COMPLETED, "forgotten by an operator", ABSENT),
)
"""Every change that a live record can undergo. The diagram in the documentation is this table."""

MOST_RETRY_AFTER: Final = 30.0
LAPSED: Final = "lapsed"
"""The cause of an unsettled record that nobody parked. What a second claim's parking gives as cause is not kept."""


@dataclass(slots=True)
class Bypass:
    """Run the handler without protection: not covered, no key (R1, R9), or the store is down (``unprotected``)."""

    unprotected: bool = False


@dataclass(slots=True)
class Reply:
    """Send this answer; the handler does not run. ``code`` is one of ours, or empty on a replay."""

    response: Response
    code: str = ""


@dataclass(slots=True)
class Keyed:
    """The request is covered and bears this key."""

    key: str


@dataclass(slots=True)
class Wait:
    """Somebody else is at it: wait as the policy says, then send this (R23)."""

    reply: Reply
    now: float


@dataclass(slots=True)
class Reconcile:
    """Nobody knows how it came out: ask the hook, or send this (R28)."""

    reply: Reply
    record: Record


@dataclass(slots=True)
class Again:
    """The record was fingerprinted with other parameters and is the same request: claim with its fingerprint."""

    fingerprint: bytes


@dataclass(slots=True)
class Complete:
    """Store this answer."""

    answer: Response


@dataclass(slots=True)
class Release:
    """Delete the record: nothing happened."""


@dataclass(slots=True)
class Park:
    """Keep the record: the outcome is unknown."""

    cause: str


@dataclass(slots=True)
class Leave:
    """Write nothing; the lease lapses (R40)."""


Settlement: TypeAlias = Complete | Release | Park | Leave
Resolution: TypeAlias = Granted | Reply | Wait | Reconcile | Again


def admit(method: str, headers: Headers, policy: Policy, site: Site) -> Bypass | Reply | Keyed:
    """Decide on the head of a request alone: before the body is read, before any store I/O (R1-R9)."""
    if method not in policy.methods:  # R1
        return Bypass()
    found = find_key(headers, field_names(policy), strict=policy.syntax == "strict", key_format=policy.key_format)
    if found is None:
        if not policy.required:  # R9
            return Bypass()
        return refuse("idempotency-key-missing", site, status=policy.missing_status)  # R8
    if isinstance(found, BadKey):  # R3, R6, R7
        return refuse("idempotency-key-invalid", site, reason=str(found.reason))
    return Keyed(found)


def resolve(got: ClaimAnswer, fingerprint: bytes, request: Request, policy: Policy, site: Site) -> Resolution:
    """Decide what the answer to a claim means (CONTRACT 4)."""
    if isinstance(got, Granted):
        return got  # R21, R27: run the handler
    record = got.record
    if record.format > FORMAT:  # R17, R53
        return refuse("store-unavailable", site, retry_after=5)
    other = record.fingerprint
    if other != fingerprint:
        if same_parameters(other, fingerprint):  # R24, before R23
            return refuse("idempotency-key-reuse", site)
        recomputed = refingerprint(request, other, policy.fingerprint)
        if recomputed is None:  # R17: an id that this process does not know is never a mismatch
            return refuse("store-unavailable", site, retry_after=5)
        if recomputed != other:  # R24 again
            return refuse("idempotency-key-reuse", site)
    match got:
        case Held():
            return Wait(refuse("in-progress", site, retry_after=retry_after(record)), record.now)  # R23
        case Found():
            if record.state is State.COMPLETED:
                return _recorded(record, site)
            if other != fingerprint and record.lapsed and repeatable(record, policy):
                return Again(other)  # R27, under the parameters of the record
            unknown = refuse(
                "outcome-unknown",
                site,
                may_have_taken_effect=True,
                cause=record.cause if record.state is State.PARKED else LAPSED,
            )
            return Reconcile(unknown, record)  # R28
        case _:
            assert_never(got)


def repeatable(record: Record, policy: Policy) -> bool:
    """Whether a retry may take a lapsed record over: both sides say at-least-once (R27)."""
    return record.guarantee == policy.guarantee == Guarantee.AT_LEAST_ONCE


def settle(outcome: outcomes.Outcome, policy: Policy) -> Settlement:
    """Decide what becomes of the claim: the table of CONTRACT 5."""
    if isinstance(outcome, outcomes.Abandoned):
        return Leave()  # R40
    end = ending(outcome, policy)
    settling = SETTLING[policy.guarantee][end]
    if policy.record != "default" and isinstance(outcome, outcomes.Answered):
        settling = _by_option(outcome.response, end, settling, policy)
    match settling:
        case Settling.COMPLETE:
            assert isinstance(outcome, outcomes.Answered)  # the table completes nothing else
            return Complete(to_store(outcome.response, policy))
        case Settling.RELEASE:
            return Release()
        case Settling.PARK:
            return Park(CAUSES[end])
        case _:
            assert_never(settling)


def ending(outcome: outcomes.Known, policy: Policy) -> Ending:
    """Return the row of the table that an outcome belongs to."""
    match outcome:
        case outcomes.Answered():
            return _ending_of_answer(outcome, policy)
        case outcomes.Raised():
            return Ending.EXCEPTION
        case outcomes.Cancelled():
            return Ending.CANCELLED
        case outcomes.CutShort():
            return Ending.CUT_SHORT
        case outcomes.NothingHappened():
            return Ending.NOTHING
        case _:
            assert_never(outcome)


def _ending_of_answer(outcome: outcomes.Answered, policy: Policy) -> Ending:
    status = outcome.response.status
    if is_ours(outcome.response) or (outcome.released and status >= 400):
        return Ending.NOTHING  # R36: an inner twiceproof keeps its own record
    if status in policy.released_statuses:
        return Ending.GATE  # R37
    if status < 400:
        return Ending.SUCCESS
    if status in TEMPORARY_STATUSES:
        return Ending.TEMPORARY
    return Ending.CLIENT_ERROR if status < 500 else Ending.SERVER_ERROR


def _by_option(response: Response, end: Ending, settling: Settling, policy: Policy) -> Settling:
    """Apply the `record` option (R36) where the table leaves a choice.

    Successes are always stored (R35), gates never (R37), and at-most-once always keeps its 5xx.
    """
    refused = end in _REFUSALS and response.status < 500
    repeats = end in _REPEATED and settling is Settling.RELEASE
    if not (refused or repeats):
        return settling
    if policy.record == "2xx":
        return Settling.RELEASE
    if callable(policy.record):
        try:
            return Settling.COMPLETE if policy.record(response) else Settling.RELEASE
        except Exception:  # noqa: BLE001  # an answer that is stored repeats nothing: the safe side of a broken rule
            return Settling.COMPLETE
    return Settling.COMPLETE


def retry_after(record: Record) -> int:
    """Return the seconds to wait for a held record (R23): as long as it ran so far, at most its lease and 30."""
    if record.state is State.WAITING and record.next_attempt_at is not None:
        return max(1, math.ceil(record.next_attempt_at - record.now))
    since, until = record.granted_at, record.lease_until
    if record.reconciling and record.reconcile_until is not None:
        since, until = record.reconcile_asked_at or record.now, record.reconcile_until
    return max(1, math.ceil(min(record.now - since, until - record.now, MOST_RETRY_AFTER)))


def refuse(
    code: str, site: Site, *, status: int | None = None, retry_after: int | None = None, **members: object
) -> Reply:
    """Return an answer of ours (CONTRACT 7)."""
    return Reply(problem(code, docs_url=site.docs_url, status=status, retry_after=retry_after, **members), code)


def _recorded(record: Record, site: Site) -> Reply:
    try:
        stored = decode(record.answer or b"")
    except UnknownFormat:  # R17, R53
        return refuse("store-unavailable", site, retry_after=5)
    if stored.body is not None:
        return Reply(to_replay(stored))  # R25
    reply = refuse("replay-unavailable", site, original_status=stored.status)  # R26
    reply.response.headers = [*reply.response.headers, *stored.headers]
    return reply


@lru_cache(maxsize=64)
def _names(aliases: tuple[str, ...]) -> tuple[bytes, ...]:
    return (b"idempotency-key", *(name.lower().encode() for name in aliases))


def field_names(policy: Policy) -> tuple[bytes, ...]:
    """Return the names of the field in lower case, the standard one first (R2)."""
    return _names(policy.aliases)


_REPEATED: Final = frozenset({Ending.TEMPORARY, Ending.SERVER_ERROR})
_REFUSALS: Final = frozenset({Ending.CLIENT_ERROR, Ending.TEMPORARY})
CAUSES: Final = {
    Ending.EXCEPTION: "exception",
    Ending.CANCELLED: "cancelled",
    Ending.CUT_SHORT: "cut-short",
}
"""Why a record was parked, as `outcome-unknown` tells it."""
