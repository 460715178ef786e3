"""Records in this process's memory: for tests, the explorer, and services that accept to forget."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Self, TypeAlias

import twiceproof.stores._row_verbs as verbs
from twiceproof.core._record import (
    ClaimAnswer,
    ClaimRef,
    Fenced,
    Granted,
    NewRecord,
    Record,
    State,
    Token,
    UnsettledAnswer,
    WriteAnswer,
)
from twiceproof.errors import ConfigurationError, StoreFull
from twiceproof.stores._cursor import checked_limit, decode_cursor, encode_cursor
from twiceproof.stores._protocol import Capabilities, Filter, Page, Purged
from twiceproof.stores._rows import Row, granted

Clock: TypeAlias = Callable[[], float]
Snapshot: TypeAlias = tuple[int, tuple[tuple[bytes, Row], ...]]

_SWEPT_PER_CLAIM: Final = 2  # more than one, so that expired rows can't pile up faster than they are swept
_SLACK: Final = 1024  # outdated entries that the heap may hold beyond one for each row
_CAPABILITIES: Final = Capabilities(durable=False)
_CHECKED: Final = ("The memory store forgets every record when its process ends, and serves one process only.",)


class MemoryStore:
    """Keep records in memory: they are gone when the process ends, and no other process sees them.

    ``clock`` returns seconds, `time.monotonic` by default (R34). A store of ``max_records`` live records raises
    `StoreFull` for one more: it evicts none that has not expired (R42). Safe to use from any thread.
    """

    def __init__(self, clock: Clock | None = None, max_records: int = 100_000) -> None:
        if max_records < 1:
            raise ConfigurationError(f"max_records must be at least 1, not {max_records}.")
        self._clock = time.monotonic if clock is None else clock
        self._max_records = max_records
        self._lock = threading.Lock()
        self._rows: dict[bytes, Row] = {}
        self._expiries: list[tuple[float, bytes]] = []  # a heap: each row's expiry, and outdated entries
        self._forgotten = 0  # unsettled records that claims swept since the last purge

    @classmethod
    def restored(cls, snapshot: Snapshot, clock: Clock | None = None, max_records: int = 100_000) -> Self:
        """Return a new store in the state that `snapshot` returned."""
        store = cls(clock, max_records)
        store._forgotten, rows = snapshot
        store._rows = dict(rows)
        store._rebuild_expiries()
        return store

    def snapshot(self) -> Snapshot:
        """Return the state as a hashable value: stores with equal ones answer alike at the same moment."""
        with self._lock:
            return self._forgotten, tuple(sorted(self._rows.items()))  # ids are unique: rows never compare

    @property
    def capabilities(self) -> Capabilities:
        """Not durable, not shared between hosts."""
        return _CAPABILITIES

    def open(self) -> None:
        """Do nothing: it is always open."""

    def close(self) -> None:
        """Do nothing: the records live as long as this object."""

    def check(self) -> Sequence[str]:
        """Say that this store forgets."""
        return _CHECKED

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`; raises `StoreFull` where there is no room for one more."""
        with self._lock:
            now = self._clock()
            row = self._rows.get(new.id)
            if row is not None and row.live(now):
                answer, taken = verbs.claim_live(row, new, lease, nonce, after, now)
                self._write(new.id, row, taken)
                return answer
            if row is None and len(self._rows) >= self._max_records:
                self._make_room(now)
            taken = self._rows[new.id] = granted(new, lease, nonce, now)  # R21
            heapq.heappush(self._expiries, (taken.expires_at, new.id))
            if self._expiries[0][0] <= now:
                self._sweep(now, _SWEPT_PER_CLAIM)
        forgot = row is not None and row.state is not State.COMPLETED  # R42
        return Granted(Token(1, nonce), nonce, 1, False, forgot)  # noqa: FBT003  # 0.2 us less than by name

    def _make_room(self, now: float) -> None:
        self._sweep(now, len(self._rows))
        if len(self._rows) >= self._max_records:
            raise StoreFull(f"The memory store holds {self._max_records} live records and evicts none.")

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        with self._lock:
            row = self._rows.get(id)
            answer, after = verbs.claim_unsettled(row, id, lease, nonce, every, self._clock(), force=force)
            self._write(id, row, after)
        return answer

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`."""
        fenced: list[ClaimRef] = []
        with self._lock:
            now = self._clock()
            for ref in claims:
                row = self._rows.get(ref.id)
                answer, after = verbs.renew(row, ref.nonce, lease, now)
                self._write(ref.id, row, after)
                if type(answer) is Fenced:
                    fenced.append(ref)  # R30
        return fenced

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        with self._lock:
            row = self._rows.get(id)
            done, after = verbs.complete(row, nonce, answer, retention, self._clock())
            self._write(id, row, after)
        return done

    def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        with self._lock:
            row = self._rows.get(id)
            done, after = verbs.release(row, nonce, self._clock())
            self._write(id, row, after)
        return done

    def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        with self._lock:
            row = self._rows.get(id)
            done, after = verbs.park(row, nonce, cause, self._clock())
            self._write(id, row, after)
        return done

    def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        with self._lock:
            row = self._rows.get(id)
            done, after = verbs.forget(row, nonce, self._clock())
            self._write(id, row, after)
        return done

    def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        with self._lock:
            now = self._clock()
            row = self._live(id, now)
            return None if row is None else row.record(id, now)

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `Store.scan`; raises `ValueError` for a cursor that no page carried."""
        checked_limit(limit)
        after = (float("-inf"), b"") if cursor is None else decode_cursor(cursor)
        with self._lock:
            now = self._clock()
            places = (
                (row.subject.created_at, id)
                for id, row in self._rows.items()
                if row.live(now) and row.selected(filter, now)
            )
            page = heapq.nsmallest(limit + 1, (place for place in places if place > after))
            records = [self._rows[id].record(id, now) for _, id in page[:limit]]
        return Page(records, encode_cursor(*page[limit - 1]) if len(page) > limit else None)

    def purge(self, limit: int) -> Purged:
        """See `Store.purge`; ``unsettled`` includes those that claims swept since the last purge."""
        with self._lock:
            records = self._sweep(self._clock(), limit)
            unsettled, self._forgotten = self._forgotten, 0
            return Purged(records, unsettled)

    def renewer(self) -> MemoryStore:
        """Return this store: it is safe on any thread."""
        return self

    def _live(self, id: bytes, now: float) -> Row | None:
        row = self._rows.get(id)
        return row if row is not None and row.live(now) else None

    def _write(self, id: bytes, before: Row | None, after: Row | None) -> None:
        """Keep what a verb left of a row."""
        if after is before:
            return
        if after is None:
            del self._rows[id]
        else:
            self._rows[id] = after
            if before is None or after.expires_at != before.expires_at:
                heapq.heappush(self._expiries, (after.expires_at, id))
        if len(self._expiries) > 2 * len(self._rows) + _SLACK:
            self._rebuild_expiries()

    def _rebuild_expiries(self) -> None:
        self._expiries = [(row.expires_at, id) for id, row in self._rows.items()]
        heapq.heapify(self._expiries)

    def _sweep(self, now: float, limit: int) -> int:
        """Delete at most ``limit`` expired rows, the earliest first, and return how many (R33, R42)."""
        swept = 0
        while swept < limit and self._expiries and self._expiries[0][0] <= now:
            expires_at, id = heapq.heappop(self._expiries)
            row = self._rows.get(id)
            if row is not None and row.expires_at == expires_at and not row.live(now):
                del self._rows[id]
                swept += 1
                self._forgotten += row.state is not State.COMPLETED
        return swept


class AsyncMemoryStore:
    """The asynchronous colour of `MemoryStore`: over ``store``, or over one of its own with these options."""

    def __init__(
        self, store: MemoryStore | None = None, clock: Clock | None = None, max_records: int = 100_000
    ) -> None:
        self._store = MemoryStore(clock, max_records) if store is None else store

    @property
    def capabilities(self) -> Capabilities:
        """See `MemoryStore.capabilities`."""
        return _CAPABILITIES

    async def open(self) -> None:
        """See `MemoryStore.open`."""

    async def close(self) -> None:
        """See `MemoryStore.close`."""

    def check(self) -> Sequence[str]:
        """See `MemoryStore.check`."""
        return self._store.check()

    async def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `MemoryStore.claim`."""
        return self._store.claim(new, lease, nonce, after)

    async def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `MemoryStore.claim_unsettled`."""
        return self._store.claim_unsettled(id, lease, nonce, every, force=force)

    async def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `MemoryStore.renew`."""
        return self._store.renew(claims, lease)

    async def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `MemoryStore.complete`."""
        return self._store.complete(id, nonce, answer, retention)

    async def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `MemoryStore.release`."""
        return self._store.release(id, nonce)

    async def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `MemoryStore.park`."""
        return self._store.park(id, nonce, cause)

    async def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `MemoryStore.forget`."""
        return self._store.forget(id, nonce)

    async def get(self, id: bytes) -> Record | None:
        """See `MemoryStore.get`."""
        return self._store.get(id)

    async def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `MemoryStore.scan`."""
        return self._store.scan(filter, cursor, limit)

    async def purge(self, limit: int) -> Purged:
        """See `MemoryStore.purge`."""
        return self._store.purge(limit)

    def renewer(self) -> MemoryStore:
        """Return the blocking store underneath: the same records, safe on any thread."""
        return self._store
