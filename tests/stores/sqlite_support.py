"""Levers of the SQLite tests: the lock of the file, the turn of the writer, its thread, what is left on disk."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from twiceproof.stores.sqlite import AsyncSqliteStore, SqliteStore


@contextmanager
def write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the file's write lock, as another process would."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other
        if other.in_transaction:
            other.execute("ROLLBACK")


@contextmanager
def company(store: SqliteStore | AsyncSqliteStore) -> Iterator[None]:
    """Make every verb go through the writer's thread."""
    store._database.flights.begin(b"somebody else", 60.0)
    yield
    store._database.flights.end(b"somebody else")


@contextmanager
def held_turn(store: SqliteStore | AsyncSqliteStore) -> Iterator[None]:
    """Keep the writer's thread from beginning, as a slow disk would."""
    turn = store._database.lanes.writer._turn
    turn.acquire()
    try:
        yield
    finally:
        turn.release()


def connection_of(store: SqliteStore | AsyncSqliteStore) -> Any:
    """Return the writing connection of this process."""
    return store._database.lanes.writer._connection


def traced(store: SqliteStore | AsyncSqliteStore) -> list[str]:
    """Collect the statements that the writing connection runs from now on."""
    statements: list[str] = []
    connection_of(store).set_trace_callback(statements.append)
    return statements


def threads() -> int:
    return sum(thread.name == "twiceproof-sqlite" for thread in threading.enumerate())


class SlowVerb:
    """A write that is begun and then takes its time."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, _: sqlite3.Connection) -> str:
        self.begun.set()
        self.go_on.wait(5)
        return "done"


def left_beside(path: Path) -> list[str]:
    """Return the names of the files in its folder."""
    return sorted(file.name for file in path.parent.iterdir())
