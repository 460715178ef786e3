"""Every store, held to the one contract, in both colours, on a clock of ours, so that its leases take no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.row_stores import DictStore
from twiceproof.stores import Store, in_threads
from twiceproof.stores.memory import AsyncMemoryStore, MemoryStore
from twiceproof.stores.sqlite import AsyncSqliteStore, SqliteStore
from twiceproof.testing import Driven, DurableStoreContract, FakeClock, StoreContract

VOLATILE: dict[str, Callable[[FakeClock], Any]] = {
    "memory": MemoryStore,
    "memory, async": lambda clock: Driven(AsyncMemoryStore(clock=clock)),
    "rows": DictStore,
    "rows, async": lambda clock: Driven(in_threads(DictStore(clock))),
}
DURABLE: dict[str, Callable[[Path, FakeClock], Any]] = {
    "sqlite": lambda file, clock: SqliteStore(file, _clock=clock),
    "sqlite, async": lambda file, clock: Driven(AsyncSqliteStore(file, _clock=clock)),
}


def ended(store: Any) -> None:
    """Close a store, and the loop that drives it."""
    getattr(store, "stop", store.close)()


class TestVolatileStores(StoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def advance(self, clock) -> Callable[[float], None]:
        return clock.advance

    @pytest.fixture(params=VOLATILE)
    def store(self, request, clock) -> Iterator[Store]:
        store = VOLATILE[request.param](clock)
        store.open()
        yield store
        ended(store)


class TestDurableStores(DurableStoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def advance(self, clock) -> Callable[[float], None]:
        return clock.advance

    @pytest.fixture(params=DURABLE)
    def another(self, request, tmp_path, clock) -> Iterator[Callable[[], Store]]:
        opened: list[Any] = []

        def open_another() -> Store:
            opened.append(DURABLE[request.param](tmp_path / "keys.db", clock))
            opened[-1].open()
            return opened[-1]

        yield open_another
        for store in opened:
            ended(store)

    @pytest.fixture
    def store(self, another) -> Store:
        return another()
