"""Many records in a Redis: purges, renewals and scans go in steps that keep the server for milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.stores.redis_support import client, commands, keys_of, own_prefix, record_key
from twiceproof.core._record import ClaimRef, State
from twiceproof.stores import Filter, Purged, _redis_walks
from twiceproof.stores._redis_lanes import RedisLane
from twiceproof.stores.redis import RedisStore
from twiceproof.testing.store_contract._ground import all_records, kept, new_record

LONG = 600.0


@pytest.fixture
def prefix() -> str:
    return own_prefix()


@pytest.fixture
def store(valkey_server, prefix) -> Iterator[RedisStore]:
    store = RedisStore(valkey_server.url, prefix=prefix, timeout=10.0)
    yield store
    store.close()


def test_what_the_server_let_go_is_taken_out_of_the_indexes(store, valkey_server, prefix):
    """R33: evicted or past its own expiry: counted once, so that a step is bounded, and nothing stays behind."""
    gone, expired = new_record(), new_record()
    for new in (gone, expired):
        store.claim(new, LONG, b"n1")
        store.complete(new.id, b"n1", b"answer", -1.0)
    with client(valkey_server) as other:
        other.delete(record_key(prefix, gone.id))
        assert [record.id for record in all_records(store)] == []
        assert store.purge(1) == Purged(1)  # no more than its limit, whatever is left of them
        assert store.purge(10) == Purged(1)
        assert store.purge(10) == Purged(0)
    assert keys_of(valkey_server, prefix) == {}


def test_a_purge_of_many_goes_on_to_its_limit(store):
    """R33: in short steps, so that the server is never kept for long."""
    for _ in range(250):
        new = new_record()
        store.claim(new, LONG, b"n1")
        store.complete(new.id, b"n1", b"answer", -1.0)
    assert [store.purge(230), store.purge(230), store.purge(230)] == [Purged(230), Purged(20), Purged(0)]


def test_a_renewal_of_many_is_cut_up(store):
    """R31: more claims than one script takes, and those that are fenced are told wherever they stand."""
    news = [new_record() for _ in range(1100)]
    lane = RedisLane(store._address)
    for at in range(0, 1100, 100):
        lane.run([store._verbs.claim(new, 5.0, b"n1", None) for new in news[at : at + 100]])
    lane.close()
    refs = [ClaimRef(new.id, b"n2" if at in {3, 501, 1099} else b"n1") for at, new in enumerate(news)]
    assert list(store.renew(refs, LONG)) == [refs[3], refs[501], refs[1099]]
    record = kept(store, news[700].id)
    assert record.lease_until == pytest.approx(record.now + LONG, abs=5)


def test_a_scan_goes_through_records_of_the_same_microsecond(store, valkey_server, prefix):
    """Each record once, also where hundreds share a place in the order of creation."""
    news = [new_record() for _ in range(450)]
    lane = RedisLane(store._address)
    for at in range(0, 450, 50):
        lane.run([store._verbs.claim(new, LONG, b"n1", None) for new in news[at : at + 50]])
    lane.close()
    with client(valkey_server) as other:
        other.zadd(f"{{{prefix}}}:creation", {new.id.hex(): 1_000_000 for new in news})
    assert [record.id for record in all_records(store, limit=70)] == [new.id for new in news]
    assert [record.id for record in all_records(store, Filter(path=news[-1].path), limit=70)] == [news[-1].id]


def test_a_page_of_huge_answers_is_read_in_parts(store, valkey_server):
    """No reply of a scan holds many mebibytes, and no record is missed."""
    news = [new_record() for _ in range(5)]
    for new in news:
        store.claim(new, LONG, b"n1")
        store.complete(new.id, b"n1", b"x" * (1 << 20), LONG)
    pages: list[Any] = []
    seen = commands(valkey_server, lambda: pages.append(store.scan(Filter(state=State.COMPLETED))))
    assert [record.id for record in pages[0].records] == [new.id for new in news]
    assert len(seen) >= 5


def test_a_long_scan_ends_its_page_in_time(store):
    """R48: a page may be short, or empty, but none takes longer than the time-out; its cursor goes on."""
    news = [new_record() for _ in range(3)]
    for new in news:
        store.claim(new, LONG, b"n1")
    page = store._walk(_redis_walks.scan(store._verbs, Filter(path="/none"), None, 100, patience=-1.0))
    assert list(page.records) == []
    assert page.cursor is not None
    later = new_record()
    store.claim(later, LONG, b"n1")
    assert [record.id for record in store.scan(Filter(), page.cursor).records] == [later.id]
