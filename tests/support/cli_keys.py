"""Records of every state in a real SQLite file, and the command line run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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

    def completed(
        self, key: str = "", answer: Response | None = None, retention: float = DAY, **options: Any
    ) -> Kept:
        kept = self.claim(key, **options)
        stored = answer or Response(201, [(b"content-type", b"application/json")], b'{"id": "tr_81"}')
        self.store.complete(kept.id, kept.nonce, encode(stored), retention)
        return kept


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
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=60, **options
    )
