"""Debian's Redis 7.0, held to the one contract: another program, and errors in other words, than Valkey's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.stores.redis_support import client, own_prefix
from tests.stores.test_contract import OnOurClock, ended, passed
from twiceproof.errors import StoreFull
from twiceproof.stores import Store
from twiceproof.stores.redis import AsyncRedisStore, RedisStore
from twiceproof.testing import Driven, DurableStoreContract
from twiceproof.testing.servers import ValkeyServer
from twiceproof.testing.store_contract._ground import LEASE, new_record

pytestmark = pytest.mark.debian

COLOURS: dict[str, Callable[..., Any]] = {
    "blocking": RedisStore,
    "async": lambda url, **options: Driven(AsyncRedisStore(url, **options)),
}


@pytest.fixture(scope="module")
def redis_server() -> Iterator[ValkeyServer]:
    with ValkeyServer(executable="/usr/bin/redis-server") as server:
        yield server


class TestDebiansRedis(OnOurClock, DurableStoreContract):
    @pytest.fixture(params=COLOURS)
    def another(self, request, redis_server, clock) -> Iterator[Callable[[], Store]]:
        opened: list[Any] = []
        prefix = own_prefix()

        def open_another() -> Store:
            opened.append(COLOURS[request.param](redis_server.url, prefix=prefix, _offset=passed(clock)))
            opened[-1].check()
            return opened[-1]

        yield open_another
        for store in opened:
            ended(store)

    @pytest.fixture
    def store(self, another) -> Store:
        return another()


def test_it_is_full_and_flushed_like_the_other(redis_server):
    """R48: the same answers to a full memory and to scripts that are gone."""
    store = RedisStore(redis_server.url, prefix=own_prefix())
    new = new_record()
    with client(redis_server) as other:
        store.claim(new_record(), LEASE, b"n1")
        other.script_flush()
        store.claim(new, LEASE, b"n1")
        other.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            store.complete(new.id, b"n1", b"answer", LEASE)
        store.release(new.id, b"n1")
        other.config_set("maxmemory", 0)
    store.close()
