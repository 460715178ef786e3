"""The verbs of the SQLite store, as values: what to run on a connection, in either colour.

`Verb.read` looks on a read connection first, so that a replay never takes the writer. `Verb.write` decides: in
autocommit, where its one deciding statement is a transaction, or inside the writer's transaction.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar

import twiceproof.stores._sqlite_statements as sql
from twiceproof.core._record import (
    Absent,
    ClaimAnswer,
    ClaimRef,
    Done,
    Fenced,
    Granted,
    Guarantee,
    NewRecord,
    Record,
    State,
    Token,
    UnsettledAnswer,
    WriteAnswer,
)
from twiceproof.errors import StoreUnavailable, UnknownFormat
from twiceproof.stores._answers import held_or_found
from twiceproof.stores._cursor import checked_limit, decode_cursor, encode_cursor
from twiceproof.stores._protocol import Filter, Page, Purged

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]


class Undecided(Enum):
    """The answer of a look that leaves the decision to the writer."""

    UNDECIDED = "undecided"


UNDECIDED: Final = Undecided.UNDECIDED
_STEPS: Final = 100_000  # SQLite's, between two looks at the time: some milliseconds
_TRIES: Final = 3  # in autocommit, the record may change between the claim that lost and the look at the winner


@dataclass(slots=True)
class Verb(Generic[T]):
    """One call. ``begins`` is the nonce and lease that a grant sets going here, ``ends`` a nonce that it ends.

    ``writes`` is False where ``read`` always decides, and ``write`` is only for a file that can't be looked at yet.
    """

    write: Callable[[sqlite3.Connection], T]
    read: Callable[[sqlite3.Connection], T | Undecided] | None = None
    writes: bool = True
    begins: tuple[bytes, float] | None = None
    ends: bytes | None = None


def ready() -> Verb[None]:
    """Nothing but an opened file."""

    def nothing(_: sqlite3.Connection) -> None:
        return None

    return Verb(nothing, nothing, writes=False)


def claim(new: NewRecord, lease: float, nonce: bytes, after: bytes | None) -> Verb[ClaimAnswer]:
    """See `Store.claim`."""
    values = (
        new.id,
        new.namespace,
        new.principal,
        new.operation,
        new.path,
        new.key,
        new.fingerprint,
        new.guarantee.value,
        new.keep,
        lease,
        nonce,
    )

    def named() -> dict[str, Any]:
        return {"after": after, **dict(zip(sql.INSERTED, values, strict=True))}

    forgets = False

    def look(connection: sqlite3.Connection) -> ClaimAnswer | Undecided:
        nonlocal forgets
        if connection.execute(sql.PRESENT, (new.id,)).fetchone() is None:
            return UNDECIDED
        row = connection.execute(sql.LOOK, named()).fetchone()
        if row is None:
            return UNDECIDED
        *columns, grantable = row
        record = _record(columns)
        if not grantable:
            return held_or_found(record)
        # R42: told by who saw it. Nobody can claim it between that look and a grant of its first attempt.
        forgets = record.expires_at <= record.now and record.state is not State.COMPLETED
        return UNDECIDED

    def take(connection: sqlite3.Connection) -> ClaimAnswer:
        if connection.execute(sql.INSERT, values).rowcount:
            return Granted(Token(1, nonce), nonce)  # R21
        for _ in range(_TRIES):
            for number, incarnation, attempts in connection.execute(sql.CLAIM, named()).fetchall():
                forgot = forgets and attempts == 1
                return Granted(Token(number, nonce), incarnation, attempts, attempts > 1, forgot)
            if (seen := look(connection)) is not UNDECIDED:  # a lost race is an answer (R22, R23)
                return seen
        raise StoreUnavailable("The record changed hands too fast to be read; the same call may be made again.")

    return Verb(take, look, begins=(nonce, lease))


def claim_unsettled(id: bytes, lease: float, nonce: bytes, every: float, *, force: bool) -> Verb[UnsettledAnswer]:
    """See `Store.claim_unsettled`."""
    values = {"id": id, "lease": lease, "nonce": nonce, "every": every, "force": force}

    def look(connection: sqlite3.Connection) -> UnsettledAnswer | Undecided:
        row = connection.execute(sql.LOOK_UNSETTLED, values).fetchone()
        if row is None:
            return Absent()
        *columns, reconcilable = row
        return UNDECIDED if reconcilable else held_or_found(_record(columns))

    def take(connection: sqlite3.Connection) -> UnsettledAnswer:
        for _ in range(_TRIES):
            for number, token, incarnation, attempts in connection.execute(sql.CLAIM_UNSETTLED, values).fetchall():
                return Granted(Token(number, token), incarnation, attempts, attempts > 1)
            if (seen := look(connection)) is not UNDECIDED:
                return seen
        raise StoreUnavailable("The record changed hands too fast to be read; the same call may be made again.")

    return Verb(take, look)


def renew(claims: Sequence[ClaimRef], lease: float) -> Verb[Sequence[ClaimRef]]:
    """See `Store.renew`."""

    def some(connection: sqlite3.Connection, refs: Sequence[ClaimRef]) -> list[ClaimRef]:
        pairs = [value for ref in refs for value in (ref.id, ref.nonce)]
        renewed = set(connection.execute(sql.renewal(len(refs)), (lease, *pairs)).fetchall())
        if all((ref.id, ref.nonce) in renewed for ref in refs):
            return []
        held = set(connection.execute(sql.unfenced(len(refs)), pairs).fetchall())
        return [ref for ref in refs if (ref.id, ref.nonce) not in held]  # R30

    def write(connection: sqlite3.Connection) -> Sequence[ClaimRef]:
        steps = range(0, len(claims), sql.RENEWED_AT_ONCE)
        return [ref for at in steps for ref in some(connection, claims[at : at + sql.RENEWED_AT_ONCE])]

    return Verb(write)


def complete(id: bytes, nonce: bytes, answer: bytes, retention: float) -> Verb[WriteAnswer]:
    """See `Store.complete`."""

    def write(connection: sqlite3.Connection) -> WriteAnswer:
        if connection.execute(sql.COMPLETE, (id, nonce, answer, retention)).rowcount:
            return Done()
        before = connection.execute(sql.COMPLETED_BY, {"id": id, "nonce": nonce}).fetchone()
        return Fenced() if before is None else Done()  # R30

    return Verb(write, ends=nonce)


def release(id: bytes, nonce: bytes) -> Verb[WriteAnswer]:
    """See `Store.release`."""
    return _change(sql.RELEASE, {"id": id, "nonce": nonce})


def park(id: bytes, nonce: bytes, cause: str) -> Verb[WriteAnswer]:
    """See `Store.park`."""
    return _change(sql.PARK, {"id": id, "nonce": nonce, "cause": cause})


def forget(id: bytes, nonce: bytes) -> Verb[WriteAnswer]:
    """See `Store.forget`."""
    return _change(sql.FORGET, {"id": id, "nonce": nonce})


def _change(statement: str, values: dict[str, Any]) -> Verb[WriteAnswer]:
    def write(connection: sqlite3.Connection) -> WriteAnswer:
        return Done() if connection.execute(statement, values).rowcount else Fenced()  # R30

    return Verb(write, ends=values["nonce"])


def get(id: bytes) -> Verb[Record | None]:
    """See `Store.get`."""

    def read(connection: sqlite3.Connection) -> Record | None:
        row = connection.execute(sql.GET, {"id": id}).fetchone()
        return None if row is None else _record(row)

    return Verb(read, read, writes=False)


def scan(filter: Filter, cursor: str | None, limit: int, timeout: float) -> Verb[Page]:
    """See `Store.scan`; raises `ValueError` at once for a cursor that no page carried."""
    checked_limit(limit)
    values = {
        "after": 0 if cursor is None else int(decode_cursor(cursor)[0]),
        "unsettled": filter.unsettled,
        "state": None if filter.state is None else filter.state.value,
        "operation": filter.operation,
        "path": filter.path,
        "older_than": filter.older_than,
        "limit": limit + 1,
    }

    def read(connection: sqlite3.Connection) -> Page:
        give_up_at = time.monotonic() + timeout
        connection.set_progress_handler(lambda: time.monotonic() > give_up_at, _STEPS)
        try:
            rows = connection.execute(sql.SCAN, values).fetchall()
        finally:
            connection.set_progress_handler(None, 0)
        records = [_record(columns) for *columns, _ in rows[:limit]]
        return Page(records, encode_cursor(rows[limit - 1][-1]) if len(rows) > limit else None)

    return Verb(read, read, writes=False)


def purge(limit: int) -> Verb[Purged]:
    """See `Store.purge`."""

    def write(connection: sqlite3.Connection) -> Purged:
        rows = connection.execute(sql.PURGE, {"limit": limit}).fetchall()
        return Purged(len(rows), sum(unsettled for (unsettled,) in rows))

    return Verb(write)


def _record(row: Sequence[Any]) -> Record:
    try:
        guarantee, state = Guarantee(row[7]), State(row[9])
    except ValueError:
        raise UnknownFormat("A record bears a word that this release does not know.") from None
    fields: list[Any] = [*row[:7], guarantee, row[8], state, Token(row[10], row[11]), *row[12:]]
    return Record(*fields)
