"""What each verb answers about one row, and the row that it leaves: pure, one body for every store that keeps rows.

A function takes the row that is there, expired or not, or None, and the store's clock, read now (R34). It returns the
answer and the row to keep: the very same object where nothing is to be written, None where there is none any more.
"""

from __future__ import annotations

from twiceproof.core._record import (
    Absent,
    ClaimAnswer,
    Done,
    Fenced,
    Granted,
    NewRecord,
    State,
    Token,
    UnsettledAnswer,
    WriteAnswer,
)
from twiceproof.stores._answers import held_or_found
from twiceproof.stores._rows import Row, granted


def claim(
    row: Row | None, new: NewRecord, lease: float, nonce: bytes, after: bytes | None, now: float
) -> tuple[ClaimAnswer, Row | None]:
    """See `Store.claim`."""
    if row is not None and row.live(now):
        return claim_live(row, new, lease, nonce, after, now)
    forgot = row is not None and row.state is not State.COMPLETED  # R42
    return Granted(Token(1, nonce), nonce, forgot=forgot), granted(new, lease, nonce, now)  # R21


def claim_live(
    row: Row, new: NewRecord, lease: float, nonce: bytes, after: bytes | None, now: float
) -> tuple[ClaimAnswer, Row]:
    """Claim what has a live row."""
    if row.same_call(nonce):  # R48: the reply was lost; no new attempt, but a whole lease
        taken = row.renewed(lease, now)
    elif row.may_take_over(new, after, now):  # R27, R28
        taken = row.taken_over(new, lease, nonce, now)
    else:
        return held_or_found(row.record(new.id, now)), row
    token = Token(taken.number, nonce)
    return Granted(token, taken.subject.incarnation, taken.attempts, taken.attempts > 1), taken


def claim_unsettled(
    row: Row | None, id: bytes, lease: float, nonce: bytes, every: float, now: float, *, force: bool
) -> tuple[UnsettledAnswer, Row | None]:
    """See `Store.claim_unsettled`."""
    if row is None or not row.live(now):
        return Absent(), row
    if not row.may_reconcile(nonce, every, now, force=force):
        return held_or_found(row.record(id, now)), row
    asked = row._replace(reconcile_nonce=nonce, reconcile_until=now + lease, reconcile_asked_at=now)
    token = Token(row.number, row.nonce)
    return Granted(token, row.subject.incarnation, row.attempts, row.attempts > 1), asked


def renew(row: Row | None, nonce: bytes, lease: float, now: float) -> tuple[WriteAnswer, Row | None]:
    """Renew one claim: see `Store.renew`."""
    if row is None or not row.live(now) or row.nonce != nonce:
        return Fenced(), row  # R30
    if row.state is State.IN_FLIGHT or row.state is State.PARKED:  # R42
        return Done(), row.renewed(lease, now)
    return Done(), row


def complete(
    row: Row | None, nonce: bytes, answer: bytes, retention: float, now: float
) -> tuple[WriteAnswer, Row | None]:
    """See `Store.complete`."""
    if row is None or not row.live(now):
        return Fenced(), row  # R30
    if row.settled_by(nonce, now):
        return Done(), row.completed(nonce, answer, retention, now)
    return (Done() if row.nonce == nonce else Fenced()), row  # it did before, or R30


def release(row: Row | None, nonce: bytes, now: float) -> tuple[WriteAnswer, Row | None]:
    """See `Store.release`."""
    if row is None or not row.live(now) or not row.settled_by(nonce, now):
        return Fenced(), row  # R30
    return Done(), None


def park(row: Row | None, nonce: bytes, cause: str, now: float) -> tuple[WriteAnswer, Row | None]:
    """See `Store.park`."""
    if row is None or not row.live(now) or row.state is State.COMPLETED:
        return Fenced(), row  # R30
    if row.nonce == nonce:
        return Done(), row.parked(cause, now)
    if row.reconcile_nonce == nonce:  # R28: the hook doesn't know; its own claim alone ends
        return Done(), row._replace(reconcile_nonce=None, reconcile_until=None)
    return Fenced(), row


def forget(row: Row | None, nonce: bytes, now: float) -> tuple[WriteAnswer, Row | None]:
    """See `Store.forget`."""
    if row is None or not row.live(now) or row.nonce != nonce:
        return Fenced(), row
    return Done(), None
