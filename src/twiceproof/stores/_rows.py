"""Rows as `MemoryStore` and `RowStore` keep them, and what becomes of one: pure, so that they can be read alone.

A row is an immutable tuple that a write replaces: a snapshot is cheap, and nothing handed out ever changes.
"""

from __future__ import annotations

from typing import NamedTuple

from twiceproof.core._record import FORMAT, Guarantee, NewRecord, Record, State, Token
from twiceproof.stores._protocol import Filter


class Subject(NamedTuple):
    """What a record is about; it stays over take-overs."""

    namespace: str
    principal: bytes
    operation: str
    path: str
    key: bytes
    fingerprint: bytes
    guarantee: Guarantee
    incarnation: bytes
    created_at: float


class Row(NamedTuple):
    """A record without its id. ``expires_at - lease_until`` is its keeping time until it is completed."""

    subject: Subject
    state: State
    number: int
    nonce: bytes
    lease_until: float
    attempts: int
    granted_at: float
    expires_at: float
    completed_at: float | None = None
    next_attempt_at: float | None = None
    cause: str | None = None
    reconcile_nonce: bytes | None = None
    reconcile_until: float | None = None
    reconcile_asked_at: float | None = None
    answer: bytes | None = None
    format: int = FORMAT

    def live(self, now: float) -> bool:
        """Whether it has not expired; a record in a format above ours never does, for us (R17)."""
        return self.expires_at > now or self.format > FORMAT

    def lapsed(self, now: float) -> bool:
        """Whether it is in flight and its lease ran out."""
        return self.state is State.IN_FLIGHT and self.lease_until <= now

    def reconciling(self, now: float) -> bool:
        """Whether a second claim is live (R28)."""
        return self.reconcile_until is not None and self.reconcile_until > now

    def settled_by(self, nonce: bytes, now: float) -> bool:
        """Whether ``nonce`` may settle it: the token's at any time, a second claim's while live (R42, R28)."""
        return self.state is not State.COMPLETED and (
            self.nonce == nonce or (self.reconcile_nonce == nonce and self.reconciling(now))
        )

    def same_call(self, nonce: bytes) -> bool:
        """Whether this claim made it what it is: the call is repeated because its reply was lost (R48)."""
        return self.nonce == nonce and self.state is State.IN_FLIGHT and self.format <= FORMAT

    def may_take_over(self, new: NewRecord, after: bytes | None, now: float) -> bool:
        """Whether a claim for ``new`` gets a new token for this live record of another's."""
        if self.format > FORMAT or self.state is State.COMPLETED or self.subject.fingerprint != new.fingerprint:
            return False
        if self.reconciling(now):
            return after is not None and self.reconcile_nonce == after  # R28: nothing happened
        both = self.subject.guarantee is Guarantee.AT_LEAST_ONCE and new.guarantee is Guarantee.AT_LEAST_ONCE
        return both and self.lapsed(now)  # R27

    def may_reconcile(self, nonce: bytes, every: float, now: float, *, force: bool) -> bool:
        """Whether ``nonce`` gets the second claim beside the token of this live record (R28)."""
        if self.format > FORMAT or self.state is State.COMPLETED:
            return False
        if force or self.reconcile_nonce == nonce:
            return True
        if self.reconciling(now) or not (self.state is State.PARKED or self.lapsed(now)):
            return False
        return self.reconcile_asked_at is None or self.reconcile_asked_at + every <= now

    def renewed(self, lease: float, now: float) -> Row:
        """In flight for ``lease`` seconds from now, whatever happened since; that ends a second claim (R42)."""
        return self._replace(
            state=State.IN_FLIGHT,
            lease_until=now + lease,
            expires_at=now + lease + (self.expires_at - self.lease_until),
            cause=None,
            reconcile_nonce=None,
            reconcile_until=None,
        )

    def taken_over(self, new: NewRecord, lease: float, nonce: bytes, now: float) -> Row:
        """One more attempt of the same incarnation, under a new token and today's guarantee."""
        return Row(
            self.subject._replace(guarantee=new.guarantee),
            State.IN_FLIGHT,
            self.number + 1,
            nonce,
            now + lease,
            self.attempts + 1,
            now,
            now + lease + new.keep,
        )

    def completed(self, nonce: bytes, answer: bytes, retention: float, now: float) -> Row:
        """Completed under ``nonce``; a hook's verdict fences the late holder (R28)."""
        number = self.number if self.nonce == nonce else self.number + 1
        return Row(
            self.subject,
            State.COMPLETED,
            number,
            nonce,
            self.lease_until,
            self.attempts,
            self.granted_at,
            now + retention,  # R33
            now,
            None,
            None,
            None,
            None,
            None,
            answer,
            self.format,
        )

    def parked(self, cause: str, now: float) -> Row:
        """Outcome unknown, kept for its keeping time from now; the token stays (R42)."""
        kept_until = now + (self.expires_at - self.lease_until)
        return self._replace(state=State.PARKED, cause=cause, lease_until=now, expires_at=kept_until)

    def selected(self, filter: Filter, now: float) -> bool:
        """Whether a scan with this filter returns it."""
        if filter.unsettled:
            if not (self.state is State.PARKED or self.lapsed(now)):
                return False
        elif filter.state is not None and self.state is not filter.state:
            return False
        return (
            (filter.operation is None or self.subject.operation == filter.operation)
            and (filter.path is None or self.subject.path == filter.path)
            and (filter.older_than is None or self.subject.created_at <= now - filter.older_than)
        )

    def record(self, id: bytes, now: float) -> Record:
        """Return it as stores hand records out."""
        subject = self.subject
        return Record(
            id,
            subject.namespace,
            subject.principal,
            subject.operation,
            subject.path,
            subject.key,
            subject.fingerprint,
            subject.guarantee,
            subject.incarnation,
            self.state,
            Token(self.number, self.nonce),
            self.lease_until,
            self.attempts,
            subject.created_at,
            self.granted_at,
            self.expires_at,
            self.completed_at,
            self.next_attempt_at,
            self.cause,
            self.reconcile_nonce,
            self.reconcile_until,
            self.reconcile_asked_at,
            self.answer,
            self.format,
            now,
        )


def granted(new: NewRecord, lease: float, nonce: bytes, now: float) -> Row:
    """Return the first grant of a new incarnation, named by its nonce (R21)."""
    subject = Subject(
        new.namespace,
        new.principal,
        new.operation,
        new.path,
        new.key,
        new.fingerprint,
        new.guarantee,
        nonce,
        now,
    )
    until = now + lease
    return Row(subject, State.IN_FLIGHT, 1, nonce, until, 1, now, until + new.keep)
