"""What a command says where its store can't answer: one sentence, exit code 2, and what to do."""

import sqlite3
from contextlib import closing

import pytest

from tests.support.cli_keys import KeysFile, invoke
from twiceproof.cli import _store
from twiceproof.errors import StoreFull, StoreOutcomeUnknown, StoreUnavailable, UnknownFormat
from twiceproof.stores.sqlite import SqliteStore


@pytest.fixture
def keys(tmp_path):
    file = KeysFile(tmp_path / "keys.db")
    yield file
    file.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreUnavailable("It is down."), "Error: It is down."),
        (
            StoreUnavailable("No turn within 0.2 s."),
            "Error: No turn within 0.2 s. Nothing was written; try again, with a larger --timeout.",
        ),
        (StoreOutcomeUnknown("It is lost."), "It is lost. 'twiceproof keys show' tells whether it did."),
        (StoreFull("It is full."), "It is full."),
        (UnknownFormat("It is newer."), "It is newer. Upgrade twiceproof to read it."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_a_store_raises_is_told_with_what_to_do(keys, monkeypatch, error, said):
    """R17, R48: and no trace of where it was raised."""

    def fail(*_):
        raise error

    monkeypatch.setattr(SqliteStore, "scan", fail)
    result = invoke("keys", "list", keys.url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert " ".join(result.stderr.split()).endswith(said)
    assert "Traceback" not in result.stderr


def test_a_file_that_another_process_keeps_for_itself_is_told(tmp_path):
    """R48: the command waits no longer than it was told to."""
    path = tmp_path / "keys.db"
    KeysFile(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        result = invoke("keys", "list", f"sqlite:///{path}", "--timeout", "0.1")
    assert result.exit_code == 2
    assert "somebody else holds its lock" in " ".join(result.stderr.split())


def test_what_is_no_file_is_not_looked_for(tmp_path, monkeypatch):
    """Looking makes none either."""
    monkeypatch.chdir(tmp_path)
    _store.check_file("memory://")
    assert list(tmp_path.iterdir()) == []
    assert "inside the process that made it" in " ".join(invoke("keys", "list", "memory://").stderr.split())
