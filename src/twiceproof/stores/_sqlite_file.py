"""One SQLite file: how it is connected, made, checked, and how its errors are told."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from twiceproof.errors import ConfigurationError, StoreOutcomeUnknown, StoreUnavailable, UnknownFormat
from twiceproof.stores._sqlite_statements import SCHEMA, SCHEMA_VERSION

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]

_LOG_PAGES: Final = 4000  # 16 MB: a batch of 64 fills a tenth of that; SQLite's own 1000 is copied back too often
_OLDEST_SQLITE: Final = (3, 35, 0)  # RETURNING
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_CERTAIN: Final = frozenset(  # of these, a failed commit has written nothing that anybody can read
    {
        *_BUSY,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_INTERRUPT,
    }
)
_SENTENCES: Final = {
    sqlite3.SQLITE_BUSY: "another process holds its lock",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it can't be written",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database",
    sqlite3.SQLITE_INTERRUPT: "it took too long to read",
}


@dataclass(frozen=True, slots=True)
class File:
    """Where the records are. ``clock`` replaces the host's wall clock, in tests only."""

    path: str
    timeout: float
    synchronous: Synchronous
    clock: Callable[[], float] | None = None

    def connect(self, path: str | None = None, *, uri: bool = False) -> sqlite3.Connection:
        """Return a connection in autocommit that never waits for a lock; whoever uses it sees to the waiting."""
        connection = sqlite3.connect(
            path or self.path, timeout=0, isolation_level=None, check_same_thread=False, uri=uri
        )
        if (clock := self.clock) is not None:

            def julianday(_: str) -> float:
                return clock() / 86400.0 + 2440587.5

            connection.create_function("julianday", 1, julianday)
        return connection

    def identity(self) -> tuple[int, int] | None:
        """Return which file the path names right now; None where it names none."""
        try:
            found = os.stat(self.path)  # noqa: PTH116  # on every write: a Path would cost as much again
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def reader(self) -> sqlite3.Connection:
        """Return a connection that can only read, and makes no new file; one without our schema is SQLite's error."""
        connection = self.connect(f"{Path(self.path).as_uri()}?mode=rw", uri=True)
        try:
            connection.execute("PRAGMA query_only = ON")
            if self._version(connection) < SCHEMA_VERSION:
                raise sqlite3.OperationalError("it has no schema yet")
        except BaseException:
            connection.close()
            raise
        return connection

    def writer(self) -> sqlite3.Connection:
        """Return a connection that can write, on a file that it prepares; raises a busy error where it can't yet.

        Several processes may prepare a file at once: one makes the schema, the others try again.
        """
        connection = self.connect()
        try:
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            version = self._version(connection)
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise StoreUnavailable(f"{self.path} can't use write-ahead logging: is it on a network drive?")
            if version < SCHEMA_VERSION:
                self._make(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            if self._version(connection) < SCHEMA_VERSION:
                for statement in SCHEMA:
                    connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _version(self, connection: sqlite3.Connection) -> int:
        """Return the schema version, or raise `UnknownFormat` for one that this release doesn't know (R54)."""
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise UnknownFormat(
                f"{self.path} has schema version {version} and this release knows {SCHEMA_VERSION}: upgrade "
                "twiceproof, or name a file that no other program uses."
            )
        return version

    def told(self, error: sqlite3.Error, *, commits: bool) -> StoreUnavailable:
        """Return what to raise for SQLite's error; ``commits`` where a commit may have been under way."""
        code = _primary(error)
        said = _SENTENCES.get(code, str(error))
        if commits and code not in _CERTAIN:
            return StoreOutcomeUnknown(f"{self.path}: {said}; the write may have taken place.")
        return StoreUnavailable(f"{self.path}: {said}.")

    def check(self) -> Sequence[str]:
        """Try the file and leave nothing open or new behind; see `Store.check`."""
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigurationError(
                f"This Python links SQLite {sqlite3.sqlite_version}; the SQLite store needs 3.35 or later."
            )
        folder = Path(self.path).parent
        if not folder.is_dir():
            raise ConfigurationError(f"The folder {folder} does not exist; make it, or name another file.")
        try:
            with tempfile.TemporaryFile(dir=folder):  # also holds for root; the log lies beside the file
                pass
        except OSError as error:
            raise ConfigurationError(
                f"The folder {folder} can't be written ({error.strerror}); allow it, or name another file."
            ) from None
        notes: list[str] = []
        if self.synchronous == "NORMAL":
            notes.append(
                "synchronous=NORMAL: a power cut may lose the last claims and answers; a retry then runs again."
            )
        if Path(self.path).exists():
            notes += self._check_existing()
        return notes

    def _check_existing(self) -> list[str]:
        if not Path(self.path).is_file():
            raise ConfigurationError(f"{self.path} is not a file; name one that is, or one that does not exist yet.")
        if not os.access(self.path, os.W_OK):  # a transaction on it would begin all the same
            raise ConfigurationError(f"{self.path} can't be written; allow it, or name another file.")
        try:
            with closing(self.connect(f"{Path(self.path).as_uri()}?mode=rw", uri=True)) as connection:
                if self._version(connection) == SCHEMA_VERSION:
                    connection.execute("SELECT 1 FROM twiceproof_record LIMIT 1").fetchall()
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        except UnknownFormat as error:
            raise ConfigurationError(str(error)) from None
        except sqlite3.Error as error:
            if busy(error):
                return [f"{self.path}: another process holds its lock right now."]
            said = _SENTENCES.get(_primary(error), str(error))
            raise ConfigurationError(f"{self.path}: {said}; name another file.") from None
        return []


def resolved(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, fixed now: a later change of the working folder doesn't move the file."""
    name = os.fspath(path)
    if not name or name == ":memory:" or name.startswith("file:"):
        raise ConfigurationError(
            f"{name!r} is no file of its own; name a file, such as keys.db, or use memory:// for records in memory."
        )
    if "\0" in name:
        raise ConfigurationError("A file name can't hold a NUL character.")
    return str(Path(name).absolute())


def busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds a lock that this needed; nothing was read or written."""
    return _primary(error) in _BUSY


def _primary(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # the module's own errors have none
    return code & 0xFF
