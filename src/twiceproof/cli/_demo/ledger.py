"""The books of the demo's payments service: accounts, and every effect as one committed row."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS tokens (token TEXT PRIMARY KEY, account TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS workers (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, account TEXT NOT NULL, intent TEXT NOT NULL, worker INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS effects (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, account TEXT NOT NULL, intent TEXT NOT NULL,
    amount INTEGER NOT NULL, worker INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS one_refund ON effects (account, intent) WHERE kind = 'refund';
INSERT OR IGNORE INTO tokens VALUES ('demo-alice', 'alice'), ('demo-bob', 'bob');
"""


@dataclass(frozen=True, slots=True)
class Count:
    """What became of one intent: how often its handler ran, in which workers, and how many effects it had."""

    account: str
    intent: str
    effects: int
    runs: int
    workers: tuple[int, ...]


class Ledger:
    """One SQLite file, apart from the one with the keys. Every call is a connection and a transaction of its own."""

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)

    def create(self) -> None:
        """Make the tables and the two accounts, where they are not there yet."""
        with self._writing() as connection:
            for statement in SCHEMA.split(";\n"):
                connection.execute(statement)

    def enter(self, pid: int) -> None:
        """Note that a worker has started."""
        with self._writing() as connection:
            connection.execute("INSERT INTO workers (pid) VALUES (?)", (pid,))

    def workers(self) -> list[int]:
        """Return the process ids of all workers so far, in the order of their start."""
        with self._connected() as connection:
            return [pid for (pid,) in connection.execute("SELECT pid FROM workers ORDER BY id")]

    def transfer(self, account: str, intent: str, amount: int, pid: int) -> int:
        """Move money, every time it is called: nothing here knows of keys. Returns the effect's number."""
        with self._writing() as connection:
            connection.execute("INSERT INTO runs (account, intent, worker) VALUES (?, ?, ?)", (account, intent, pid))
            row = connection.execute(
                "INSERT INTO effects (kind, account, intent, amount, worker) VALUES ('transfer', ?, ?, ?, ?) "
                "RETURNING id",
                (account, intent, amount, pid),
            ).fetchone()
            return int(row[0])

    def refund(self, account: str, intent: str, amount: int, pid: int) -> int:
        """Pay back once per intent, however often it is called: safe to repeat, as at-least-once asks for."""
        with self._writing() as connection:
            connection.execute("INSERT INTO runs (account, intent, worker) VALUES (?, ?, ?)", (account, intent, pid))
            connection.execute(
                "INSERT INTO effects (kind, account, intent, amount, worker) VALUES ('refund', ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (account, intent, amount, pid),
            )
            row = connection.execute(
                "SELECT id FROM effects WHERE kind = 'refund' AND account = ? AND intent = ?", (account, intent)
            ).fetchone()
            return int(row[0])

    def counts(self, intent: str | None = None) -> list[Count]:
        """Return what became of every intent, or of one of them in every account."""
        counted = (
            "SELECT account, intent, group_concat(worker), count(*), (SELECT count(*) FROM effects"
            " WHERE effects.account = runs.account AND effects.intent = runs.intent)"
            " FROM runs WHERE ?1 IS NULL OR intent = ?1 GROUP BY account, intent ORDER BY min(id)"
        )
        with self._connected() as connection:
            return [
                Count(account, name, effects, runs, tuple(int(pid) for pid in workers.split(",")))
                for account, name, workers, runs, effects in connection.execute(counted, (intent,))
            ]

    def account_of(self, token: str) -> str | None:
        """Return the account that a token stands for, or None where there is none, or no more."""
        with self._connected() as connection:
            row = connection.execute("SELECT account FROM tokens WHERE token = ?", (token,)).fetchone()
            return None if row is None else str(row[0])

    def grant(self, account: str) -> str:
        """Return a new token for an account."""
        token = "demo-" + secrets.token_hex(8)
        with self._writing() as connection:
            connection.execute("INSERT INTO tokens VALUES (?, ?)", (token, account))
        return token

    def revoke(self, token: str) -> None:
        """Make a token worthless, in every worker at once."""
        with self._writing() as connection:
            connection.execute("DELETE FROM tokens WHERE token = ?", (token,))

    @contextlib.contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        connection = sqlite3.connect(self.file, timeout=20, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")  # closing without it rolls back
