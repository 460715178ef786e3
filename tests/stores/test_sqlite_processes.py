"""Several processes on one SQLite file: races, deaths and forks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.stores.sqlite_child import record
from tests.stores.sqlite_support import connection_of, left_beside, write_lock
from twiceproof.core._record import Done, Fenced, Found, Granted, Held
from twiceproof.stores._sqlite_file import Synchronous
from twiceproof.stores.sqlite import SqliteStore
from twiceproof.testing.store_contract._ground import LEASE, RETENTION

ROOT = Path(__file__).parents[2]


def start(verb: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stores.sqlite_child", verb, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def finish(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines that it printed, once it has ended well."""
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    return output.split()


@pytest.mark.slow
def test_eight_processes_with_fifty_duplicates_grant_each_key_once(path):
    """R22, B34: on a file that all of them find missing, each key is granted to one, and nobody meets an error."""
    keys = 6
    begin_at = time.time() + 2.0
    children = [start("duplicates", path, f"p{number}", begin_at, keys) for number in range(8)]
    lines = [finish(child) for child in children]
    assert [line[-1] for line in lines] == ["end"] * 8
    assert Counter(key for line in lines for key in line[:-1]) == {str(key): 1 for key in range(keys)}
    store = SqliteStore(path)
    answers = [store.claim(record(key), LEASE, b"late") for key in range(keys)]
    assert [type(answer) for answer in answers] == [Found] * keys
    store.close()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert other.execute("SELECT count(*) FROM twiceproof_record").fetchone() == (keys,)


def test_a_killed_holder_leaves_a_claim_that_lapses(path):
    """R28, R42, B08: its record is there, held until the lease is over, then unsettled, and can be settled."""
    child = start("hold", path)
    assert child.stdout
    assert child.stdout.readline() == "Granted\n"
    store = SqliteStore(path)
    assert type(store.claim(record(1), LEASE, b"n2")) is Held
    child.send_signal(signal.SIGKILL)
    child.communicate()
    time.sleep(1.1)
    answer = store.claim(record(1), LEASE, b"n2")
    assert type(answer) is Found
    assert answer.record.unsettled
    assert type(store.claim_unsettled(record(1).id, LEASE, b"h1", 0.0)) is Granted
    assert store.complete(record(1).id, b"h1", b"verdict", RETENTION) == Done()
    assert store.complete(record(1).id, b"held", b"late", RETENTION) == Fenced()
    store.close()


def test_a_claim_is_in_the_file_before_it_is_answered(path):
    """R21: a process that dies the moment its claim was granted has left the record."""
    child = start("vanish", path)
    child.communicate(timeout=60)
    assert child.returncode == 9
    store = SqliteStore(path)
    answer = store.claim(record(1), LEASE, b"n2")
    assert type(answer) is Held
    assert answer.record.token.nonce == b"held"
    store.close()


def test_a_program_that_just_ends_has_closed_the_store(path):
    """R41: at exit the queue is done and the connections are closed."""
    assert finish(start("leave", path)) == []
    assert left_beside(path) == ["keys.db"]
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM twiceproof_record").fetchone() == (29,)


def test_a_fresh_process_looks_while_another_holds_the_lock(path):
    """R23, R25: opening, listing, 409 and replay need no turn to write, also where nothing was ever written here."""
    store = SqliteStore(path)
    store.claim(record(1), 60.0, b"n1")
    store.complete(record(1).id, b"n1", b"answer", RETENTION)
    store.claim(record(2), 60.0, b"n1")
    store.close()
    with write_lock(path):
        lines = finish(start("look", path))
    assert lines == ["2", "Record", "Found", "Found", "StoreUnavailable", "Held", "2"]
    assert left_beside(path) == ["keys.db"]


def test_a_forked_child_opens_the_file_for_itself(path):
    """R41: the child is held by the parent's claim, makes its own, and the parent goes on unharmed."""
    lines = finish(start("fork", path))
    assert lines == ["Held", "Granted", "Done", "Found", "Granted", "Done"]
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_normal_and_full_are_what_the_connection_runs_with(path):
    """R21: FULL waits for the disk at each commit (2), NORMAL doesn't (1)."""
    levels: dict[Synchronous, int] = {"FULL": 2, "NORMAL": 1}
    for synchronous, level in levels.items():
        store = SqliteStore(path, synchronous=synchronous)
        store.claim(record(level), LEASE, b"n1")
        connection = connection_of(store)
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        store.close()
