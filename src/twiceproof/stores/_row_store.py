"""A base for stores of your own: you keep rows, it knows what every verb makes of one."""

from __future__ import annotations

import heapq
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

import twiceproof.stores._row_verbs as verbs
from twiceproof.core._record import (
    ClaimAnswer,
    ClaimRef,
    Fenced,
    NewRecord,
    Record,
    State,
    UnsettledAnswer,
    WriteAnswer,
)
from twiceproof.errors import ConfigurationError, StoreError, UnknownFormat
from twiceproof.stores._cursor import checked_limit, decode_cursor, encode_cursor
from twiceproof.stores._protocol import Capabilities, Filter, Page, Purged, Store
from twiceproof.stores._row_codec import decode_row, encode_row
from twiceproof.stores._rows import Row

T = TypeVar("T")

Step: TypeAlias = Callable[[bytes | None], bytes | None]
"""What `RowStore.change` calls: from the row that is stored, or None, to the row to store, or None."""

_NOBODY: Final = bytes(32)  # an id that no record has


class RowStore(ABC):
    """A whole `Store` over three things that you write: `change` one row atomically, list `rows`, tell the time.

    A row is bytes that mean nothing to you. Set ``capabilities`` to what your rows can do; the one given here promises
    nothing, so that an engine takes the store only with ``accept_volatile=True``.
    """

    capabilities: Capabilities = Capabilities(durable=False)

    @abstractmethod
    def change(self, id: bytes, step: Step) -> None:
        """Read the row of ``id``, give it to ``step``, and store what that returns: all of it, or nothing.

        No other `change` of this id, on any thread and in any process, may come between reading and storing (R22): hold
        a lock, open a transaction as a writer, or compare and swap and begin again; ``step`` may be called several
        times, and its last answer counts. It is given None where there is no row, and returns None for "delete it",
        and the very object that it was given for "leave it". On return the row is as durable as ``capabilities`` say
        (R21). What ``step`` raises goes to the caller, and nothing is stored. Where your storage does not answer in
        time, raise `StoreUnavailable` if nothing was stored, else `StoreOutcomeUnknown` (R48).
        """

    @abstractmethod
    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        """Return the id and the row of all records, in any order; one that is written or deleted meanwhile may miss.

        Read by `scan` and `purge`, which change rows only after they have seen them all.
        """

    def now(self) -> float:
        """Return the store's clock in seconds, read now (R34): the host's wall clock.

        Override it where several hosts share the store: all must read one clock, the server's.
        """
        return time.time()

    def read(self, id: bytes) -> bytes | None:
        """Return the row of ``id`` as it is; override it where that needs no lock."""
        seen: list[bytes | None] = [None]

        def look(stored: bytes | None) -> bytes | None:
            seen[0] = stored
            return stored

        self.change(id, look)
        return seen[0]

    # ------------------------------------------------------------------ the verbs

    def open(self) -> None:  # noqa: B027  # most stores have nothing to open
        """Do nothing; override it where there is something to open."""

    def close(self) -> None:  # noqa: B027  # the same
        """Do nothing; override it where there is something to let go of. A verb after it opens again."""

    def check(self) -> Sequence[str]:
        """Read one row and report nothing; raise `ConfigurationError` where even that fails.

        Override it where `read` leaves a connection open (R41), or where an operator should know something.
        """
        try:
            self.read(_NOBODY)
        except (OSError, StoreError) as error:
            raise ConfigurationError(f"{type(self).__name__} can't keep records: {error}") from error
        return ()

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`."""
        return self._decided(new.id, lambda row, now: verbs.claim(row, new, lease, nonce, after, now))

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        return self._decided(id, lambda row, now: verbs.claim_unsettled(row, id, lease, nonce, every, now, force=force))

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`; each claim is a change of its own."""
        return [ref for ref in claims if self._renewed(ref, lease) == Fenced()]  # R30

    def _renewed(self, ref: ClaimRef, lease: float) -> WriteAnswer:
        return self._decided(ref.id, lambda row, now: verbs.renew(row, ref.nonce, lease, now))

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        return self._decided(id, lambda row, now: verbs.complete(row, nonce, answer, retention, now))

    def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        return self._decided(id, lambda row, now: verbs.release(row, nonce, now))

    def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        return self._decided(id, lambda row, now: verbs.park(row, nonce, cause, now))

    def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        return self._decided(id, lambda row, now: verbs.forget(row, nonce, now))

    def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        stored = self.read(id)
        if stored is None:
            return None
        row, now = decode_row(stored), self.now()
        return row.record(id, now) if row.live(now) else None

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `Store.scan`; it reads all rows. Raises `ValueError` for a cursor that no page carried."""
        checked_limit(limit)
        after = (float("-inf"), b"") if cursor is None else decode_cursor(cursor)
        now = self.now()
        decoded = ((id, decode_row(stored)) for id, stored in self.rows())
        places = (
            (row.subject.created_at, id, row)
            for id, row in decoded
            if (row.subject.created_at, id) > after and row.live(now) and row.selected(filter, now)
        )
        page = heapq.nsmallest(limit + 1, places)  # ids are unique: rows never compare
        records = [row.record(id, now) for _, id, row in page[:limit]]
        return Page(records, encode_cursor(*page[limit - 1][:2]) if len(page) > limit else None)

    def purge(self, limit: int) -> Purged:
        """See `Store.purge`; it reads all rows, and leaves alone those of a later release (R17)."""
        now = self.now()
        expired = list(itertools.islice((id for id, stored in self.rows() if _expired(stored, now)), limit))
        states = [state for id in expired if (state := self._decided(id, _swept)) is not None]
        return Purged(len(states), sum(state is not State.COMPLETED for state in states))

    def renewer(self) -> Store:
        """Return this store; override it where a connection belongs to one thread."""
        return self

    def _decided(self, id: bytes, verb: Callable[[Row | None, float], tuple[T, Row | None]]) -> T:
        """Let a verb of one row decide, inside `change`, and return its last answer."""
        answers: list[T] = []

        def step(stored: bytes | None) -> bytes | None:
            row = None if stored is None else decode_row(stored)
            answer, after = verb(row, self.now())
            answers.append(answer)
            if after is row:
                return stored
            return None if after is None else encode_row(after)

        self.change(id, step)
        return answers[-1]


def _expired(stored: bytes, now: float) -> bool:
    try:
        return not decode_row(stored).live(now)
    except UnknownFormat:
        return False


def _swept(row: Row | None, now: float) -> tuple[State | None, Row | None]:
    """Delete the row if it is still expired, and say what it was."""
    return (None, row) if row is None or row.live(now) else (row.state, None)
