"""The verbs of the PostgreSQL store, as values: a statement, its values, and what its rows answer; for all drivers.

`exchange` is what a lane does with a batch of them: a generator that yields a statement with its values and is sent the
rows, or thrown the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from twiceproof.core._record import (
    FORMAT,
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
from twiceproof.stores._lanes import all_failed
from twiceproof.stores._postgresql_asked import COLUMNS
from twiceproof.stores._postgresql_errors import RefusedRow, RolledBack
from twiceproof.stores._postgresql_statements import Statement, Statements
from twiceproof.stores._protocol import Filter, Page, Purged

T = TypeVar("T")
Row: TypeAlias = Sequence[Any]
Asked: TypeAlias = tuple[str, Sequence[Any]]
Exchange: TypeAlias = Generator[Asked, Sequence[Row], list[object]]

# After a serialization failure or a deadlock the second try is nearly always definite; but where a database is
# serializable by default and pgbouncer keeps us from saying otherwise, large batches hinder each other for long.
_TRIES: Final = 50
_TRIES_TOGETHER: Final = 4
_MOST_BYTES: Final = 8 << 20  # of answers in one statement, which the server holds several times over

_NUMBER, _NONCE, _STATE, _ATTEMPTS, _INCARNATION, _FORMAT = map(
    list(COLUMNS).index, ("number", "nonce", "state", "attempts", "incarnation", "format")
)
_STATES: Final = {state.value: state for state in State}
_GUARANTEES: Final = {guarantee.value: guarantee for guarantee in Guarantee}


@dataclass(slots=True)
class Verb(Generic[T]):
    """One call. ``group`` and ``id`` are what the lanes go by, ``weight`` how many bytes it moves beside the usual."""

    statement: Statement
    values: tuple[Any, ...]
    answer: Callable[[Sequence[Row]], T]
    group: str | None = None
    id: bytes = b""
    weight: int = 0


def claim(sql: Statements, new: NewRecord, lease: float, nonce: bytes, after: bytes | None) -> Verb[ClaimAnswer]:
    """See `Store.claim`."""
    values = (
        new.id,
        nonce,
        escaped(new.namespace),
        new.principal,
        escaped(new.operation),
        escaped(new.path),
        new.key,
        new.fingerprint,
        new.guarantee.value,
        float(new.keep),
        float(lease),
        *(() if after is None else (after,)),
    )

    def answer(rows: Sequence[Row]) -> ClaimAnswer:
        (row,) = rows
        if row[_NONCE] == nonce and row[_STATE] == "in_flight" and row[_FORMAT] <= FORMAT:
            attempts = row[_ATTEMPTS]
            return Granted(Token(row[_NUMBER], nonce), row[_INCARNATION], attempts, attempts > 1, row[-1] is not None)
        return held_or_found(_record(row[:-1]))

    if after is not None:  # R28: rare, and so a statement of its own
        return Verb(sql.claim_after, values, answer)
    return Verb(sql.claim, values, answer, "claim", new.id)


def claim_unsettled(
    sql: Statements, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool
) -> Verb[UnsettledAnswer]:
    """See `Store.claim_unsettled`."""

    def answer(rows: Sequence[Row]) -> UnsettledAnswer:
        for row in rows:
            if not row[-1]:
                return held_or_found(_record(row[:-1]))
            attempts = row[_ATTEMPTS]
            return Granted(Token(row[_NUMBER], row[_NONCE]), row[_INCARNATION], attempts, attempts > 1)
        return Absent()

    return Verb(sql.claim_unsettled, (id, lease, nonce, every, force), answer)


def renew(sql: Statements, claims: Sequence[ClaimRef], lease: float) -> Verb[Sequence[ClaimRef]]:
    """See `Store.renew`."""
    claims = list(claims)

    def answer(rows: Sequence[Row]) -> Sequence[ClaimRef]:
        held = {(row[0], row[1]) for row in rows}
        return [ref for ref in claims if (ref.id, ref.nonce) not in held]  # R30

    return Verb(sql.renew, ([ref.id for ref in claims], [ref.nonce for ref in claims], lease), answer)


def complete(sql: Statements, id: bytes, nonce: bytes, answer: bytes, retention: float) -> Verb[WriteAnswer]:
    """See `Store.complete`."""
    return Verb(sql.complete, (id, nonce, answer, float(retention)), _written, "complete", id, len(answer))


def release(sql: Statements, id: bytes, nonce: bytes) -> Verb[WriteAnswer]:
    """See `Store.release`."""
    return Verb(sql.release, (id, nonce), _written, "release", id)


def park(sql: Statements, id: bytes, nonce: bytes, cause: str) -> Verb[WriteAnswer]:
    """See `Store.park`."""
    return Verb(sql.park, (id, nonce, escaped(cause)), _written, "park", id)


def forget(sql: Statements, id: bytes, nonce: bytes) -> Verb[WriteAnswer]:
    """See `Store.forget`."""
    return Verb(sql.forget, (id, nonce), _written, "forget", id)


def _written(rows: Sequence[Row]) -> WriteAnswer:
    return Done() if rows else Fenced()  # R30


def get(sql: Statements, id: bytes) -> Verb[Record | None]:
    """See `Store.get`."""
    return Verb(sql.get, (id,), lambda rows: _record(rows[0]) if rows else None)


def scan(sql: Statements, filter: Filter, cursor: str | None, limit: int) -> Verb[Page]:
    """See `Store.scan`; raises `ValueError` at once for a cursor that no page carried."""
    checked_limit(limit)
    created_at, id = (float("-inf"), b"") if cursor is None else decode_cursor(cursor)
    values = (
        created_at,
        id,
        filter.unsettled,
        None if filter.state is None else filter.state.value,
        None if filter.operation is None else escaped(filter.operation),
        None if filter.path is None else escaped(filter.path),
        filter.older_than,
        limit + 1,
    )

    def answer(rows: Sequence[Row]) -> Page:
        records = [_record(row) for row in rows[:limit]]
        last = records[-1] if len(rows) > limit else None
        return Page(records, None if last is None else encode_cursor(last.created_at, last.id))

    return Verb(sql.scan, values, answer)


def purge(sql: Statements, limit: int) -> Verb[Purged]:
    """See `Store.purge`."""
    return Verb(sql.purge, (limit,), lambda rows: Purged(*rows[0]))


def exchange(verbs: Sequence[Verb[Any]]) -> Exchange:
    """Return the answers of verbs of one group, in their order; an answer may be the error to raise for its verb."""
    if len(verbs) == 1:
        return [(yield from _alone(verbs[0]))]
    answers: list[object] = []
    for some in _statements_of(verbs):
        try:
            answers += yield from _together(some)
        except (RefusedRow, RolledBack):  # nothing of it was done, and the others are not to suffer for the one
            for verb in some:
                answers.append((yield from _alone(verb)))
        except StoreUnavailable as error:
            answers += all_failed(error, len(some))
    return answers


def _statements_of(verbs: Sequence[Verb[Any]]) -> Sequence[Sequence[Verb[Any]]]:
    """Return the verbs in as few parts as a statement's size allows: one, as a rule."""
    if sum(verb.weight for verb in verbs) <= _MOST_BYTES:
        return (verbs,)
    parts: list[list[Verb[Any]]] = [[]]
    weight = 0
    for verb in verbs:
        weight += verb.weight
        if weight > _MOST_BYTES and parts[-1]:
            parts.append([])
            weight = verb.weight
        parts[-1].append(verb)
    return parts


def _together(verbs: Sequence[Verb[Any]]) -> Exchange:
    statement = verbs[0].statement.many
    rows = yield from _sent(
        statement, _TRIES_TOGETHER, [list(column) for column in zip(*(verb.values for verb in verbs), strict=True)]
    )
    found: dict[bytes, list[Row]] = {row[0]: [row] for row in rows}
    return [_answered(verb, found.get(verb.id, [])) for verb in verbs]


def _alone(verb: Verb[Any]) -> Generator[Asked, Sequence[Row], object]:
    try:
        rows = yield from _sent(verb.statement.one, _TRIES, verb.values)
    except StoreUnavailable as error:
        return error
    return _answered(verb, rows)


def _answered(verb: Verb[Any], rows: Sequence[Row]) -> object:
    """Return what the rows answer, or the error to raise for what this release can't read."""
    try:
        return verb.answer(rows)
    except UnknownFormat as error:
        return error


def _sent(statement: str, tries: int, values: Sequence[Any]) -> Generator[Asked, Sequence[Row], Sequence[Row]]:
    for _ in range(tries):
        try:
            return (yield statement, values)
        except RolledBack:
            continue
    raise RolledBack("Others changed the same records again and again; the same call may be made again.")


_NOT_PLAIN: Final = re.compile(r"[^\x01-\x5b\x5d-\x7f]")


def escaped(text: str) -> str:
    r"""Return ``text`` in ASCII: ``\xe9``, ``\u20ac``, ``\\``; no server or encoding then refuses or changes it."""
    if _NOT_PLAIN.search(text) is None:
        return text
    return text.replace("\\", "\\\\").replace("\0", "\\x00").encode("ascii", "backslashreplace").decode("ascii")


def unescaped(text: str) -> str:
    """Return what `escaped` was given."""
    return text if "\\" not in text else text.encode("ascii").decode("unicode_escape")


def _record(row: Row) -> Record:
    """Return the record of a row that ends with the clock."""
    try:
        guarantee, state = _GUARANTEES[row[7]], _STATES[row[9]]
    except KeyError:
        raise UnknownFormat("A record bears a word that this release does not know.") from None
    cause = row[19]
    fields: list[Any] = [
        row[0],
        unescaped(row[1]),
        row[2],
        unescaped(row[3]),
        unescaped(row[4]),
        row[5],
        row[6],
        guarantee,
        row[8],
        state,
        Token(row[10], row[11]),
        *row[12:19],
        cause if cause is None else unescaped(cause),
        *row[20:],
    ]
    return Record(*fields)
