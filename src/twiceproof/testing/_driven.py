"""An asynchronous store for tests that are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from twiceproof.core._record import ClaimAnswer, ClaimRef, NewRecord, Record, UnsettledAnswer, WriteAnswer
from twiceproof.stores import AsyncStore, Capabilities, Filter, Page, Purged, Store

T = TypeVar("T")


class Driven:
    """An asynchronous store as a blocking one: its event loop runs on a thread of its own until `stop`.

    So that one suite holds both colours to the same promises. Its methods may be called from any thread.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="twiceproof-driven", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the store and end its loop."""
        self.close()
        self._wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        return self._store.capabilities

    def open(self) -> None:
        """See `Store.open`."""
        self._wait(self._store.open())

    def close(self) -> None:
        """See `Store.close`; the loop goes on."""
        self._wait(self._store.close())

    def check(self) -> Sequence[str]:
        """See `Store.check`."""
        return self._store.check()

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`."""
        return self._wait(self._store.claim(new, lease, nonce, after))

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        return self._wait(self._store.claim_unsettled(id, lease, nonce, every, force=force))

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`."""
        return self._wait(self._store.renew(claims, lease))

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        return self._wait(self._store.complete(id, nonce, answer, retention))

    def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        return self._wait(self._store.release(id, nonce))

    def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        return self._wait(self._store.park(id, nonce, cause))

    def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        return self._wait(self._store.forget(id, nonce))

    def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        return self._wait(self._store.get(id))

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `Store.scan`."""
        return self._wait(self._store.scan(filter, cursor, limit))

    def purge(self, limit: int) -> Purged:
        """See `Store.purge`."""
        return self._wait(self._store.purge(limit))

    def renewer(self) -> Store:
        """See `Store.renewer`."""
        return self._store.renewer()
