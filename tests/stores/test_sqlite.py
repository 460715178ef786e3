"""What the SQLite store promises beyond the contract: opening, closing, rows of other releases, its clock."""

from __future__ import annotations

import gc
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.stores.sqlite_support import SlowVerb, company, held_turn, left_beside, threads, write_lock
from twiceproof.core._record import FORMAT, Done, Fenced, Found, Granted, Held
from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable, UnknownFormat
from twiceproof.stores import Filter, Purged
from twiceproof.stores._sqlite_jobs import ThreadJob
from twiceproof.stores._sqlite_verbs import Verb
from twiceproof.stores.sqlite import SqliteStore
from twiceproof.testing import FakeClock
from twiceproof.testing.store_contract._ground import AGAIN, KEEP, LEASE, RETENTION, kept, new_record

# ---- opening, closing, forking ---------------------------------------------------------------------------------------


def test_use_after_close_opens_again(store, path):
    """Closing lets go of everything, also of the log; a later verb finds the records."""
    new = new_record()
    with company(store):
        store.claim(new, 60.0, b"n1")
    assert threads() == 1
    store.close()
    assert threads() == 0
    assert left_beside(path) == ["keys.db"]
    assert type(store.claim(new, LEASE, b"n2")) is Held


def test_closing_does_what_is_queued(path):
    """Nobody who waits is let down by a shutdown."""
    store = SqliteStore(path, timeout=5.0)
    store.open()
    new = new_record()
    with company(store), ThreadPoolExecutor(2) as pool:
        with held_turn(store):
            claim = pool.submit(store.claim, new, LEASE, b"n1")
            while not store._database.lanes.writer._queue:
                time.sleep(0.005)
            writer = store._database.lanes.writer
            closing_down = pool.submit(store.close)
            while not writer._closing:
                time.sleep(0.005)
            with pytest.raises(StoreUnavailable, match="being closed"):
                writer.put(ThreadJob(Verb(lambda _: None)))
        assert type(claim.result()) is Granted
        closing_down.result()
    assert threads() == 0


def test_closing_is_bounded(path):
    """A writer that is stuck on the disk keeps nobody longer than the time-out; it closes when it can."""
    store = SqliteStore(path, timeout=0.2)
    store.open()
    slow = SlowVerb()
    with company(store), pytest.raises(StoreOutcomeUnknown):
        store._run(Verb(slow))
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 1.5
    slow.go_on.set()
    while threads():
        time.sleep(0.01)


def test_a_store_that_is_dropped_is_closed(path):
    """No connection or thread outlives the last reference."""
    store = SqliteStore(path)
    with company(store):
        store.claim(new_record(), LEASE, b"n1")
    del store
    gc.collect()
    assert threads() == 0
    assert left_beside(path) == ["keys.db"]


def test_idle_readers_are_bounded(store):
    """Many threads at once read on connections of their own; few of those stay."""
    new = new_record()
    store.claim(new, LEASE, b"n1")
    gate = threading.Barrier(20)
    looks = []

    def read(connection: sqlite3.Connection) -> str:
        gate.wait()
        looks.append(id(connection))
        return "read"

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(lambda _: store._run(Verb(read, read, writes=False)), range(20))) == {"read"}
    assert len(set(looks)) == 20
    assert len(store._database.lanes._readers._free) == 8


def test_a_reader_lent_out_at_close_is_closed_when_it_comes_back(store):
    """A look that ends after the close leaves no mark in the log."""
    slow = SlowVerb()
    with ThreadPoolExecutor(1) as pool:
        look = pool.submit(store._run, Verb(slow, slow, writes=False))
        slow.begun.wait(5)
        lanes = store._database.lanes
        store.close()
        slow.go_on.set()
        assert look.result() == "done"
    assert lanes._readers._free == []


# ---- rows that this release doesn't know -----------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_record_of_a_later_release_is_never_granted_or_deleted(path, clock):
    """R17, R53: whatever its moments say, it is found as it is, and left alone but by its own token."""
    store = SqliteStore(path, _clock=clock)
    new = new_record(AGAIN)
    store.claim(new, LEASE, b"n1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE twiceproof_record SET format = ?", (FORMAT + 1,))
    assert type(store.claim(new, LEASE, b"n2")) is Found
    clock.advance(LEASE + KEEP * 2)
    assert type(store.claim(new, LEASE, b"n2")) is Found
    assert type(store.claim(new, LEASE, b"n1")) is Found
    assert type(store.claim_unsettled(new.id, LEASE, b"h1", 0.0, force=True)) is Found
    assert store.purge(10) == Purged(0, 0)
    assert kept(store, new.id).format == FORMAT + 1
    assert store.complete(new.id, b"n2", b"answer", RETENTION) == Fenced()
    assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()
    assert kept(store, new.id).format == FORMAT + 1
    store.close()


@pytest.mark.parametrize("column", ["state", "guarantee"])
def test_a_word_that_this_release_does_not_know_is_unknown_format(store, path, column):
    """R17: 503, never a run; inline, through the thread, and in a scan."""
    new = new_record()
    store.claim(new, LEASE, b"n1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"UPDATE twiceproof_record SET {column} = 'novel'")
    for verb in (
        lambda: store.claim(new, LEASE, b"n2"),
        lambda: store.get(new.id),
        lambda: store.scan(Filter()),
    ):
        with pytest.raises(UnknownFormat):
            verb()


def test_a_record_that_changes_hands_too_fast_is_unavailable(store, monkeypatch):
    """In autocommit a lost claim may find the winner gone; after some tries it hears that nothing was written."""
    new = new_record()
    store.claim(new, 60.0, b"n1")
    store.park(new.id, b"n1", "exception")
    sql = "twiceproof.stores._sqlite_statements"
    with monkeypatch.context() as patched:
        patched.setattr(f"{sql}.PRESENT", "SELECT 1 WHERE ? IS NULL")
        with pytest.raises(StoreUnavailable, match="too fast"):
            store.claim(new, LEASE, b"n2")
    with monkeypatch.context() as patched:
        patched.setattr(f"{sql}.LOOK_UNSETTLED", f"{_look_unsettled().replace('AND (expires', 'AND 1 AND (expires')}")
        patched.setattr(f"{sql}.CLAIM_UNSETTLED", f"{_claim_unsettled()} ".replace("WHERE id", "WHERE 0 AND id"))
        with pytest.raises(StoreUnavailable, match="too fast"):
            store.claim_unsettled(new.id, LEASE, b"h1", 0.0)


def _look_unsettled() -> str:
    from twiceproof.stores._sqlite_statements import LOOK_UNSETTLED

    return LOOK_UNSETTLED


def _claim_unsettled() -> str:
    from twiceproof.stores._sqlite_statements import CLAIM_UNSETTLED

    return CLAIM_UNSETTLED


# ---- the clock -------------------------------------------------------------------------------------------------------


def test_the_clock_is_the_hosts_wall_clock(store):
    """R34: epoch seconds, read by the statement itself, to the millisecond."""
    new = new_record(AGAIN)
    before = time.time()
    store.claim(new, 0.3, b"n1")
    record = store.get(new.id)
    assert before - 0.01 <= record.granted_at <= record.now <= time.time() + 0.01
    assert type(store.claim(new, 0.3, b"n2")) is Held
    time.sleep(0.35)
    assert store.claim(new, 0.3, b"n2").taken_over


def test_a_claim_that_waited_gets_a_whole_lease(store, path):
    """R34: the clock is read when the lock was taken, not when the claim was made."""
    new = new_record()
    with write_lock(path) as other, ThreadPoolExecutor(1) as pool:
        claim = pool.submit(store.claim, new, 60.0, b"n1")
        time.sleep(0.4)
        freed_at = time.time()
        other.execute("ROLLBACK")
        claim.result()
    assert kept(store, new.id).granted_at >= freed_at - 0.01


def test_purge_and_the_claim_use_their_indexes(store):
    """A million rows make neither slower: no statement of theirs walks the table."""
    from twiceproof.stores import _sqlite_statements as sql

    connection = store._database.file.reader()
    values = dict.fromkeys([*sql.INSERTED, "after", "limit", "every", "force", "retention", "answer", "cause"], 1)
    plans = {}
    for name in ("LOOK", "GET", "RELEASE", "PARK", "PURGE", "CLAIM_UNSETTLED", "SCAN"):
        statement = getattr(sql, name)
        values |= dict.fromkeys(["unsettled", "state", "operation", "path", "older_than"], 1)
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
        plans[name] = " ".join(row[3] for row in rows)
    renewal = connection.execute(f"EXPLAIN QUERY PLAN {sql.renewal(2)}", [1] * 5).fetchall()
    connection.close()
    plans["renewal"] = " ".join(row[3] for row in renewal if "mine" not in row[3] and "CONSTANT" not in row[3])
    assert {name: plan for name, plan in plans.items() if "SCAN twiceproof_record" in plan} == {}
    assert "twiceproof_record_expiry" in plans["PURGE"]
