"""Stores that are little more than `RowStore`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import ClassVar

from twiceproof.stores import Capabilities, RowStore, Step


class DictStore(RowStore):
    """Rows in a dictionary under one lock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.stored: dict[bytes, bytes] = {}
        self.lock = threading.RLock()

    def change(self, id: bytes, step: Step) -> None:
        with self.lock:
            after = step(self.stored.get(id))
            if after is None:
                self.stored.pop(id, None)
            else:
                self.stored[id] = after

    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        with self.lock:
            return list(self.stored.items())

    def now(self) -> float:
        return self.clock()


class SharedRows(DictStore):
    """As if the rows were on disk: several objects may share them. What has one fault says who catches it."""

    capabilities = Capabilities(durable=True)
    caught_by: ClassVar[str] = ""

    @classmethod
    def sharing(cls) -> Callable[[Callable[[], float]], SharedRows]:
        """Return what makes stores over the same rows, one with each call."""
        stored: dict[bytes, bytes] = {}
        lock = threading.RLock()

        def one_more(clock: Callable[[], float]) -> SharedRows:
            store = cls(clock)
            store.stored, store.lock = stored, lock
            return store

        return one_more

    def nonce_of(self, id: bytes, otherwise: bytes) -> bytes:
        record = self.get(id)
        return otherwise if record is None else record.token.nonce
