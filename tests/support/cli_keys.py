"""Records of every state in a real SQLite file, and the command line run on it."""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from twiceproof.cli._root import twiceproof
from twiceproof.core._codec import encode
from twiceproof.core._messages import Response
from twiceproof.core._record import Granted, Guarantee, NewRecord
from twiceproof.core._scope import Site, make_scope
from twiceproof.stores.sqlite import SqliteStore

SITE = Site("default")
DAY = 86_400.0


@dataclass(frozen=True)
class Kept:
    """A record that a test made: its id, in hexadecimal too, and the nonce of its holder."""

    id: bytes
    nonce: bytes
    key: str

    @property
    def hex(self) -> str:
        return self.id.hex()


class KeysFile:
    """A SQLite file with records; the store is the application's side of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.store = SqliteStore(path)
        self.store.open()
        self._made = 0

    def close(self) -> None:
        self.store.close()

    def claim(
        self,
        key: str = "",
        *,
        lease: float = 60.0,
        operation: str = "POST /transfers",
        path: str = "/transfers",
        guarantee: Guarantee = Guarantee.AT_MOST_ONCE,
        principal: str = "acct_1",
        site: Site = SITE,
        keep: float = 30 * DAY,
    ) -> Kept:
        """A record in flight; with a lease of 0 it has lapsed."""
        self._made += 1
        key = key or f"key-{self._made}"
        scope = make_scope(site, principal, operation, path, key)
        new = NewRecord(
            scope.id,
            site.namespace,
            scope.principal,
            operation,
            path,
            scope.key,
            b"1:" + b"0" * 64,
            guarantee,
            keep,
        )
        nonce = os.urandom(16)
        assert isinstance(self.store.claim(new, lease, nonce), Granted)
        return Kept(scope.id, nonce, key)

    def lapsed(self, key: str = "", **options: Any) -> Kept:
        return self.claim(key, lease=0.0, **options)

    def parked(self, key: str = "", cause: str = "exception", **options: Any) -> Kept:
        kept = self.claim(key, **options)
        self.store.park(kept.id, kept.nonce, cause)
        return kept

    def completed(self, key: str = "", answer: Response | None = None, retention: float = DAY, **options: Any) -> Kept:
        kept = self.claim(key, **options)
        stored = answer or Response(201, [(b"content-type", b"application/json")], b'{"id": "tr_81"}')
        self.store.complete(kept.id, kept.nonce, encode(stored), retention)
        return kept

    def copy(self, kept: Kept, ids: Iterable[bytes]) -> None:
        """More records like that one, many at once: by SQL, since claims are made durable one by one."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            columns = [row[1] for row in connection.execute("PRAGMA table_info(twiceproof_record)")]
            rest = ", ".join(column for column in columns if column not in ("seq", "id"))
            connection.executemany(
                f"INSERT INTO twiceproof_record (id, {rest}) SELECT ?, {rest} FROM twiceproof_record WHERE id = ?",
                ((id, kept.id) for id in ids),
            )

    def change(self, assignment: str, where: str = "1") -> None:
        """Change records as no verb of the store does: into those of another time, or of another release."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(f"UPDATE twiceproof_record SET {assignment} WHERE {where}")


def invoke(*arguments: str, stdin: bytes | None = None, env: dict[str, str] | None = None) -> Result:
    """Run the command in this process, its two streams apart."""
    return CliRunner().invoke(twiceproof, list(arguments), input=stdin, env=env, catch_exceptions=False)


def document(*arguments: str, **options: Any) -> Any:
    """Run the command with --json and return what it printed, which is one document."""
    result = invoke(*arguments, "--json", **options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def command(*arguments: str) -> list[str]:
    """The command line of a process of its own."""
    return [sys.executable, "-m", "twiceproof.cli", *arguments]


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the real command as a process."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, **options)


def fill(keys: KeysFile, count: int, answer: bytes = b"") -> list[str]:
    """Many completed records at once, all like the first; returns their ids."""
    first = keys.completed(answer=Response(201, [], answer))
    ids = [os.urandom(32) for _ in range(count - 1)]
    keys.copy(first, ids)
    return [first.hex, *(id.hex() for id in ids)]


def seen_by(*filters: str, url: str) -> list[str]:
    return [record["id"] for record in document("keys", "list", url, *filters)["records"]]


def on_a_terminal(arguments: list[str], columns: int = 120, **options: Any) -> tuple[str, int]:
    """Run a command whose stdout and stderr are a terminal; return what it showed and its exit code."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=env, **options) as process:
        os.close(theirs)
        shown = bytearray()
        with suppress(OSError):  # EIO: the other side is closed
            while chunk := os.read(ours, 65_536):
                shown += chunk
        os.close(ours)
        code = process.wait(60)
    return shown.decode().replace("\r\n", "\n"), code
