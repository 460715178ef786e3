"""The SQLite store's file: what `check` refuses, and what happens when the file fails."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from tests.stores.sqlite_support import company, connection_of, held_turn, left_beside, write_lock
from twiceproof.core._record import Done, Granted, Held, NewRecord, State, WriteAnswer
from twiceproof.errors import ConfigurationError, StoreOutcomeUnknown, StoreUnavailable, UnknownFormat
from twiceproof.stores import Filter
from twiceproof.stores._sqlite_statements import SCHEMA_VERSION
from twiceproof.stores.sqlite import AsyncSqliteStore, SqliteStore
from twiceproof.testing.store_contract._ground import LEASE, RETENTION, kept, new_record

# ---- check -----------------------------------------------------------------------------------------------------------


def refused(store: SqliteStore) -> str:
    with pytest.raises(ConfigurationError) as caught:
        store.check()
    return str(caught.value)


def test_check_leaves_nothing_behind(path):
    """R41: neither a new file nor an open one, whether it was there before or not."""
    assert SqliteStore(path).check() == []
    assert left_beside(path) == []
    store = SqliteStore(path)
    store.open()
    store.close()
    assert AsyncSqliteStore(path).check() == []
    assert left_beside(path) == ["keys.db"]


def test_check_tells_what_normal_risks(path):
    """The operator hears of it at start-up."""
    [note] = SqliteStore(path, synchronous="NORMAL").check()
    assert "power cut" in note


def test_check_names_a_missing_folder(tmp_path):
    """One sentence that says what to change."""
    assert "folder" in refused(SqliteStore(tmp_path / "nowhere" / "keys.db"))


def test_check_refuses_a_folder_that_cannot_be_written():
    """Also for root: the log and its index lie beside the file."""
    assert "can't be written" in refused(SqliteStore("/proc/keys.db"))


def test_check_refuses_a_folder_as_a_file(tmp_path):
    """A folder holds no records."""
    assert "is not a file" in refused(SqliteStore(tmp_path))


def test_check_refuses_what_is_no_database(path):
    """A file of another kind is not overwritten."""
    path.write_bytes(b"a text that is long enough to have a header" * 50)
    assert "not a SQLite database" in refused(SqliteStore(path))


def test_check_and_open_refuse_a_later_schema(path):
    """R54: a sentence at start-up, and `UnknownFormat` from every verb afterwards."""
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    store = SqliteStore(path)
    assert "upgrade twiceproof" in refused(store)
    with pytest.raises(ConfigurationError, match="schema version 2"):
        store.open()
    with pytest.raises(UnknownFormat, match="schema version 2"):
        store.claim(new_record(), LEASE, b"n1")
    with pytest.raises(UnknownFormat):
        store.get(b"id")
    store.close()

    async def main() -> None:
        store = AsyncSqliteStore(path)
        with pytest.raises(ConfigurationError, match="schema version 2"):
            await store.open()
        with pytest.raises(UnknownFormat):
            await store.claim(new_record(), LEASE, b"n1")
        await store.close()

    asyncio.run(main())


def test_check_refuses_another_programs_file(path):
    """The same schema version without our table: some other program counts there."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (a)")
        other.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    assert "no such table" in refused(SqliteStore(path))


def test_check_only_notes_a_lock(path):
    """Somebody writes right now: that is no fault of the set-up."""
    store = SqliteStore(path)
    store.open()
    with write_lock(path):
        [note] = SqliteStore(path).check()
    assert "holds its lock" in note
    store.close()


def test_check_refuses_an_old_sqlite(path, monkeypatch):
    """RETURNING came with 3.35."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    assert "3.35 or later" in refused(SqliteStore(path))


# ---- a file that fails -----------------------------------------------------------------------------------------------


def test_a_damaged_file_is_unavailable_and_heals_when_replaced(path, caplog):
    """A corrupt file is a sentence in the log and a 503, without key or body; a good one is taken up by itself."""
    store = SqliteStore(path, timeout=0.5)
    new = new_record(key=b"SECRET-KEY")
    store.claim(new, LEASE, b"n1")
    store.close()
    good = path.read_bytes()
    path.write_bytes(b"garbage!" * 1000)
    with caplog.at_level(logging.WARNING, "twiceproof.stores"):
        for verb in (lambda: store.claim(new, LEASE, b"n2"), lambda: store.get(new.id)):
            with pytest.raises(StoreUnavailable, match="not a SQLite database"):
                verb()
    assert "not a SQLite database" in caplog.text
    assert "SECRET" not in caplog.text
    path.write_bytes(good)
    assert type(store.claim(new, LEASE, b"n2")) is Held
    store.close()


def test_a_reader_that_fails_has_the_file_opened_anew(store, path):
    """The table is gone under a running store: unavailable once, then made again."""
    new = new_record()
    store.claim(new, LEASE, b"n1")
    store.complete(new.id, b"n1", b"answer", RETENTION)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE twiceproof_record")
        other.execute("PRAGMA user_version = 0")
    with pytest.raises(StoreUnavailable):
        store.get(new.id)
    assert type(store.claim(new, LEASE, b"n2")) is Granted


def test_after_one_reader_failed_none_of_the_old_is_used(store, path):
    """Connections that were open before are let go of: the next look makes the file anew and finds nothing."""
    store._database.lanes._readers._free += [store._database.file.reader() for _ in range(3)]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE twiceproof_record")
        other.execute("PRAGMA user_version = 0")
    with pytest.raises(StoreUnavailable, match="no such table"):
        store.get(b"id")
    assert store.get(b"id") is None


def test_an_inline_error_of_the_file_is_told_and_survived(store, path):
    """The same, met by a verb that writes on the calling thread."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE twiceproof_record")
        other.execute("PRAGMA user_version = 0")
    with pytest.raises(StoreUnavailable, match="no such table"):
        store.claim(new_record(), LEASE, b"n1")
    assert type(store.claim(new_record(), LEASE, b"n1")) is Granted


def full_disk(store: SqliteStore) -> None:
    """Let the file not grow any more."""
    connection = connection_of(store)
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_unavailable_inline(store):
    """Nothing was written; what fits goes on."""
    new = new_record()
    store.claim(new, 60.0, b"n1")
    full_disk(store)
    with pytest.raises(StoreUnavailable, match="the disk is full") as caught:
        store.complete(new.id, b"n1", b"x" * 100_000, RETENTION)
    assert type(caught.value) is StoreUnavailable
    assert kept(store, new.id).state is State.IN_FLIGHT
    assert store.complete(new.id, b"n1", b"small", RETENTION) == Done()


def test_a_full_disk_spoils_only_what_does_not_fit(store):
    """A batch that SQLite undid as a whole is sent again, one by one."""
    news = [new_record() for _ in range(3)]
    for new in news:
        store.claim(new, 60.0, b"n1" + new.id)
    full_disk(store)
    answers = [b"small", b"x" * 100_000, b"small"]
    with company(store), ThreadPoolExecutor(3) as pool:
        with held_turn(store):
            verbs = [
                pool.submit(store.complete, new.id, b"n1" + new.id, answer, RETENTION)
                for new, answer in zip(news, answers, strict=True)
            ]
            while len(store._database.lanes.writer._queue) < 3:
                time.sleep(0.005)
        assert verbs[0].result() == Done()
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            verbs[1].result()
        assert verbs[2].result() == Done()
    assert [kept(store, new.id).state for new in news] == [State.COMPLETED, State.IN_FLIGHT, State.COMPLETED]


class FailingCommit:
    """A connection whose commits fail as a disk's do."""

    def __init__(self, connection: Any, code: int, times: int, *, begin: bool = False) -> None:
        self._connection = connection
        self._code = code
        self._times = times
        self._word = "BEGIN IMMEDIATE" if begin else "COMMIT"
        self.seen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *values: Any) -> Any:
        if statement == self._word:
            self.seen += 1
            if self.seen <= self._times:
                error = sqlite3.OperationalError("told by the disk")
                error.sqlite_errorcode = self._code
                raise error
        return self._connection.execute(statement, *values)


def failing(store: SqliteStore, code: int, times: int, *, begin: bool = False) -> FailingCommit:
    connection: Any = FailingCommit(connection_of(store), code, times, begin=begin)
    store._database.lanes.writer._connection = connection
    return connection


def test_a_commit_whose_outcome_is_unknown_says_so(store):
    """R48: the disk failed while it wrote: whoever asked must repeat under the same nonce."""
    new = new_record()
    failed = failing(store, sqlite3.SQLITE_IOERR, 1)
    with company(store), pytest.raises(StoreOutcomeUnknown, match="may have taken place"):
        store.claim(new, LEASE, b"n1")
    assert type(store.claim(new, LEASE, b"n1")) is Granted
    assert connection_of(store) is not failed  # such a connection is not trusted again


def test_a_commit_that_certainly_failed_is_sent_again_one_by_one(store):
    """Nothing was written: each of the batch gets a transaction of its own."""
    news = [new_record() for _ in range(3)]
    with company(store), ThreadPoolExecutor(3) as pool:
        with held_turn(store):
            connection = failing(store, sqlite3.SQLITE_FULL, 1)
            claims = [pool.submit(store.claim, new, LEASE, b"n1") for new in news]
            while len(store._database.lanes.writer._queue) < 3:
                time.sleep(0.005)
        assert [type(claim.result()) for claim in claims] == [Granted] * 3
    assert connection.seen == 4


def test_a_lock_that_cannot_be_taken_is_told_to_all(store):
    """The file turned read-only, say: nothing was begun, and each hears it."""
    with company(store), ThreadPoolExecutor(2) as pool:
        with held_turn(store):
            failing(store, sqlite3.SQLITE_READONLY, 1, begin=True)
            claims = [pool.submit(store.claim, new_record(), LEASE, b"n1") for _ in range(2)]
            while len(store._database.lanes.writer._queue) < 2:
                time.sleep(0.005)
        for claim in claims:
            with pytest.raises(StoreUnavailable, match="can't be written"):
                claim.result()
    assert type(store.claim(new_record(), LEASE, b"n1")) is Granted


def test_a_fault_of_the_writer_is_told_to_all(store, monkeypatch, caplog):
    """A bug of ours must not leave anybody waiting, nor end the thread."""
    writer = store._database.lanes.writer
    with company(store):
        with monkeypatch.context() as patched:
            patched.setattr(writer, "_locked", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.claim(new_record(), LEASE, b"n1")
        assert "failed" in caplog.text
        assert type(store.claim(new_record(), LEASE, b"n1")) is Granted


def test_a_scan_that_takes_too_long_is_cut_short(path, monkeypatch):
    """R48 for operators: a scan of a large file ends within the time-out."""
    monkeypatch.setattr("twiceproof.stores._sqlite_verbs._STEPS", 1)
    store = SqliteStore(path, timeout=1e-6)
    store._database.file.writer().close()
    with pytest.raises(StoreUnavailable, match="too long"):
        store.scan(Filter())
    store.close()


def test_a_file_that_was_taken_away_under_a_running_process_takes_no_claim(path):
    """R48: whoever starts later would make a new file and grant the same keys again; put back, it goes on."""
    with closing(SqliteStore(path)) as store:
        first = new_record()
        assert isinstance(store.claim(first, LEASE, b"one"), Granted)
        path.rename(path.with_suffix(".away"))
        with pytest.raises(StoreUnavailable, match="can't be opened"):
            store.claim(new_record(), LEASE, b"two")
        with closing(SqliteStore(path)) as other:
            other.open()  # makes a new file under the old name
            for late in (lambda: store.claim(new_record(), LEASE, b"three"), lambda: complete(store, first)):
                with pytest.raises(StoreUnavailable, match="deleted or replaced"):
                    late()
        path.unlink()
        path.with_suffix(".away").rename(path)
        assert isinstance(store.claim(new_record(), LEASE, b"four"), Granted)


def complete(store: SqliteStore, new: NewRecord) -> WriteAnswer:
    return store.complete(new.id, b"one", b"answer", RETENTION)


def test_check_refuses_a_file_that_can_only_be_read(path, monkeypatch):
    """R41: a transaction on such a file begins all the same, and every claim would be 503."""
    with closing(SqliteStore(path)) as store:
        store.open()
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everything
    assert "can't be written" in refused(SqliteStore(path))
