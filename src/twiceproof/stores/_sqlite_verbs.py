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
from twiceproof.stores import _sqlite_statements as sql
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
    """One call. ``begins`` is the nonce and lease that a grant sets going here, ``ends`` a nonce that it ends."""

    write: Callable[[sqlite3.Connection], T]
    read: Callable[[sqlite3.Connection], T | Undecided] | None = None
    begins: tuple[bytes, float] | None = None
    ends: bytes | None = None


def ready() -> Verb[None]:
    """Nothing but an opened file."""

    def nothing(_: sqlite3.Connection) -> None:
        return None

    return Verb(nothing, nothing)


def claim(new: NewRecord, lease: float, nonce: bytes, after: bytes | None) -> Verb[ClaimAnswer]:
    """See `Store.claim`."""
    values = {
        "id": new.id,
        "namespace": new.namespace,
        "principal": new.principal,
        "operation": new.operation,
        "path": new.path,
        "key": new.key,
        "fingerprint": new.fingerprint,
        "guarantee": new.guarantee.value,
        "keep": new.keep,
        "lease": lease,
        "nonce": nonce,
        "after": after,
    }
    forgets = False

    def look(connection: sqlite3.Connection) -> ClaimAnswer | Undecided:
        nonlocal forgets
        row = connection.execute(sql.LOOK, values).fetchone()
        if row is None:
            return UNDECIDED
        *columns, grantable = row
        record = _record(columns)
        if not grantable:
            return held_or_found(record)
        # R42: the event is told by who saw it. No claim can come between that look and a grant of attempt 1.
        forgets = record.expires_at <= record.now and record.state is not State.COMPLETED
        return UNDECIDED

    def take(connection: sqlite3.Connection) -> ClaimAnswer:
        for _ in range(_TRIES):
            for number, incarnation, attempts in connection.execute(sql.CLAIM, values).fetchall():
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
    values = {"id": id, "nonce": nonce, "answer": answer, "retention": retention}

    def write(connection: sqlite3.Connection) -> WriteAnswer:
        if connection.execute(sql.COMPLETE, values).rowcount:
            return Done()
        return Done() if connection.execute(sql.COMPLETED_BY, values).fetchall() else Fenced()

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

    return Verb(read, read)


def scan(filter: Filter, cursor: str | None, limit: int, timeout: float) -> Verb[Page]:
    """See `Store.scan`; raises `ValueError` at once for a cursor that no page carried."""
    checked_limit(limit)
    created_at, id = (float("-inf"), b"") if cursor is None else decode_cursor(cursor)
    values = {
        "created_at": created_at,
        "id": id,
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
        records = [_record(row) for row in rows]
        page = records[:limit]
        more = len(records) > limit
        return Page(page, encode_cursor(page[-1].created_at, page[-1].id) if more else None)

    return Verb(read, read)


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
    return Record(*row[:7], guarantee, row[8], state, Token(row[10], row[11]), *row[12:])
