"""The asynchronous colour of any blocking store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from twiceproof.core._record import ClaimAnswer, ClaimRef, NewRecord, Record, UnsettledAnswer, WriteAnswer
from twiceproof.stores._protocol import AsyncStore, Capabilities, Filter, Page, Purged, Store


def in_threads(store: Store) -> AsyncStore:
    """Return ``store`` for event loops: each verb runs on a thread of the loop's default executor.

    A cancelled call goes on in its thread, and its answer is dropped: the engine withdraws its claim by nonce (R48).
    """
    return _InThreads(store)


class _InThreads:
    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def open(self) -> None:
        await asyncio.to_thread(self._store.open)

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)

    def check(self) -> Sequence[str]:
        return self._store.check()

    async def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        return await asyncio.to_thread(self._store.claim, new, lease, nonce, after)

    async def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        return await asyncio.to_thread(self._store.claim_unsettled, id, lease, nonce, every, force=force)

    async def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        return await asyncio.to_thread(self._store.renew, claims, lease)

    async def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        return await asyncio.to_thread(self._store.complete, id, nonce, answer, retention)

    async def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        return await asyncio.to_thread(self._store.release, id, nonce)

    async def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        return await asyncio.to_thread(self._store.park, id, nonce, cause)

    async def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        return await asyncio.to_thread(self._store.forget, id, nonce)

    async def get(self, id: bytes) -> Record | None:
        return await asyncio.to_thread(self._store.get, id)

    async def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return await asyncio.to_thread(self._store.scan, filter, cursor, limit)

    async def purge(self, limit: int) -> Purged:
        return await asyncio.to_thread(self._store.purge, limit)

    def renewer(self) -> Store:
        return self._store.renewer()
