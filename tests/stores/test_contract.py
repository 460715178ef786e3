"""The four stores, held to the one contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stores.contract import Driven, FakeClock, StoreContract

from twiceproof.stores import Store
from twiceproof.stores.memory import AsyncMemoryStore, MemoryStore
from twiceproof.stores.sqlite import AsyncSqliteStore, SqliteStore

STORES: dict[str, Callable[[Path, FakeClock], Any]] = {
    "memory": lambda _, clock: MemoryStore(clock),
    "memory, async": lambda _, clock: Driven(AsyncMemoryStore(clock=clock)),
    "sqlite": lambda folder, clock: SqliteStore(folder / "keys.db", _clock=clock),
    "sqlite, async": lambda folder, clock: Driven(AsyncSqliteStore(folder / "keys.db", _clock=clock)),
}
ENDINGS: dict[str, Callable[[Any], None]] = {
    "memory": lambda store: store.close(),
    "memory, async": lambda store: store.stop(),
    "sqlite": lambda store: store.close(),
    "sqlite, async": lambda store: store.stop(),
}


class TestEveryStore(StoreContract):
    """On a clock of ours, so that the leases of the contract take no time."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def advance(self, clock) -> Callable[[float], None]:
        return clock.advance

    @pytest.fixture(params=STORES)
    def store(self, request, tmp_path, clock) -> Iterator[Store]:
        store = STORES[request.param](tmp_path, clock)
        store.open()
        yield store
        ENDINGS[request.param](store)
