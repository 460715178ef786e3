"""Every store, held to the one contract, in both colours, on a clock of ours, so that its leases take no time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stores.postgresql_support import STORES as POSTGRESQL
from tests.support.row_stores import DictStore
from twiceproof.stores import Store, in_threads
from twiceproof.stores.memory import AsyncMemoryStore, MemoryStore
from twiceproof.stores.redis import AsyncRedisStore, RedisStore
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
SERVED: dict[str, tuple[str, Callable[[str, str, FakeClock], Any]]] = {  # the server's fixture; its URL, our own name
    "redis": ("valkey_server", lambda url, name, clock: RedisStore(url, prefix=name, _offset=passed(clock))),
    "redis, async": (
        "valkey_server",
        lambda url, name, clock: Driven(AsyncRedisStore(url, prefix=name, _offset=passed(clock))),
    ),
}


def passed(clock: FakeClock) -> Callable[[], float]:
    """Return what says how much further this clock is than when it was new."""
    began = FakeClock().now
    return lambda: clock.now - began


def ended(store: Any) -> None:
    """Close a store, and the loop that drives it."""
    getattr(store, "stop", store.close)()


class OnOurClock:
    """Stores that read a clock of the test's."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def advance(self, clock) -> Callable[[float], None]:
        return clock.advance


class TestVolatileStores(OnOurClock, StoreContract):
    @pytest.fixture(params=VOLATILE)
    def store(self, request, clock) -> Iterator[Store]:
        store = VOLATILE[request.param](clock)
        store.open()
        yield store
        ended(store)


class TestDurableStores(OnOurClock, DurableStoreContract):
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


class TestServedStores(OnOurClock, DurableStoreContract):
    @pytest.fixture(params=SERVED)
    def another(self, request, clock) -> Iterator[Callable[[], Store]]:
        server, make = SERVED[request.param]
        url, name = request.getfixturevalue(server).url, f"t{uuid.uuid4().hex}"
        opened: list[Any] = []

        def open_another() -> Store:
            opened.append(make(url, name, clock))
            opened[-1].check()  # some know only then whether their server forgets
            opened[-1].open()
            return opened[-1]

        yield open_another
        for store in opened:
            ended(store)

    @pytest.fixture
    def store(self, another) -> Store:
        return another()


class TestPostgresqlStores(DurableStoreContract):
    @pytest.fixture
    def advance(self, place) -> Callable[[float], None]:
        return place.advance

    @pytest.fixture(params=POSTGRESQL)
    def another(self, request, place) -> Iterator[Callable[[], Store]]:
        opened: list[Any] = []

        def open_another() -> Store:
            store = place.store(POSTGRESQL[request.param])
            opened.append(Driven(store) if "async" in request.param else store)
            opened[-1].open()
            return opened[-1]

        yield open_another
        for store in opened:
            ended(store)

    @pytest.fixture
    def store(self, another) -> Store:
        return another()
