"""The claim of the PostgreSQL store: one statement, which gives a definite answer in one round trip.

It reads the record first, without a lock, so that a replay writes nothing. Only where that does not stand in its way
it inserts; where somebody was faster, the update of the conflict returns the record as it is now, changed or not. The
forms that were tried and fail: insert or nothing gives the loser no row, and an update with a condition locks and
writes for every replay.

Each row is decided with one reading of the clock, after its lock was got (R34): `clock_timestamp` moves within a
statement, and the sub-selects keep the planner from reading it once for each column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from twiceproof.core._record import FORMAT
from twiceproof.stores._postgresql_asked import COLUMNS, Asked, columns_of

CLAIMED: Final = {
    "id": "bytea",
    "nonce": "bytea",
    "namespace": "text",
    "principal": "bytea",
    "operation": "text",
    "path": "text",
    "key": "bytea",
    "fingerprint": "bytea",
    "guarantee": "text",
    "keep": "float8",
    "lease": "float8",
}
"""The values of a claim, in order; that of one record takes ``after`` as one more."""

# What becomes of a row `r` under a claim `a`, at `a.now`.
_NOTHING, _SAME_CALL, _TAKE_OVER, _BEGIN = range(4)
_MOVE: Final = f"""
    CASE
        WHEN r.format > {FORMAT} THEN {_NOTHING} -- R17
        WHEN r.expires_at <= a.now THEN {_BEGIN} -- R21
        WHEN r.state = 'in_flight' AND r.nonce = a.nonce THEN {_SAME_CALL} -- R48
        WHEN r.state = 'completed' OR r.fingerprint <> a.fingerprint THEN {_NOTHING}
        WHEN r.reconcile_until > a.now THEN -- R28
            CASE WHEN r.reconcile_nonce = a.after THEN {_TAKE_OVER} ELSE {_NOTHING} END
        WHEN r.state = 'in_flight' AND r.lease_until <= a.now
            AND r.guarantee = 'at_least_once' AND a.guarantee = 'at_least_once' THEN {_TAKE_OVER} -- R27
        ELSE {_NOTHING}
    END"""

_MOVED: Final[Mapping[str, tuple[str, str | None, str | None]]] = {  # None: as it is
    # column: (begins, is taken over, is the same call)
    "namespace": ("a.namespace", None, None),
    "principal": ("a.principal", None, None),
    "operation": ("a.operation", None, None),
    "path": ("a.path", None, None),
    "key": ("a.key", None, None),
    "fingerprint": ("a.fingerprint", None, None),
    "guarantee": ("a.guarantee", "a.guarantee", None),
    "incarnation": ("a.nonce", None, None),
    "state": ("'in_flight'", "'in_flight'", None),
    "number": ("1", "r.number + 1", None),
    "nonce": ("a.nonce", "a.nonce", None),
    "lease_until": ("a.now + a.lease", "a.now + a.lease", "a.now + a.lease"),
    "attempts": ("1", "r.attempts + 1", None),
    "created_at": ("a.now", None, None),
    "granted_at": ("a.now", "a.now", None),
    "expires_at": (
        "a.now + a.lease + a.keep",
        "a.now + a.lease + a.keep",
        "a.now + a.lease + (r.expires_at - r.lease_until)",
    ),
    "completed_at": ("NULL", "NULL", None),
    "next_attempt_at": ("NULL", "NULL", None),
    "cause": ("NULL", "NULL", "NULL"),
    "reconcile_nonce": ("NULL", "NULL", "NULL"),
    "reconcile_until": ("NULL", "NULL", "NULL"),
    "reconcile_asked_at": ("NULL", "NULL", None),
    "answer": ("NULL", "NULL", None),
    "format": (f"{FORMAT}", f"{FORMAT}", None),
}


def _moved(column: str) -> str:
    begins, taken_over, same_call = _MOVED[column]
    if begins == taken_over == same_call:
        return f"CASE WHEN a.move = {_NOTHING} THEN r.{column} ELSE {begins} END"
    cases = [(_BEGIN, begins), (_TAKE_OVER, taken_over), (_SAME_CALL, same_call)]
    if begins == taken_over and same_call is None:
        return f"CASE WHEN a.move >= {_TAKE_OVER} THEN {begins} ELSE r.{column} END"
    whens = " ".join(f"WHEN a.move = {move} THEN {value}" for move, value in cases if value is not None)
    return f"CASE {whens} ELSE r.{column} END"


_FORGOT: Final = 9  # in place of a move, in the answer: nobody ever knew how the record before came out (R42)


def claim_statement(table: str, asked: Asked) -> str:
    """Return the claim: the record as it is, with the clock and what was decided (`FORGOT` among it)."""
    return f"""
    WITH {asked.head}
    seen AS MATERIALIZED (
        SELECT {columns_of("r")}, a.now, {_MOVE} AS move
        FROM ({asked.now}) a JOIN {table} r ON {asked.found("r.id")}
    ),
    taken AS (
        INSERT INTO {table} AS r ({", ".join(COLUMNS)})
        SELECT
            a.id, a.namespace, a.principal, a.operation, a.path, a.key, a.fingerprint, a.guarantee, a.nonce,
            'in_flight', 1, a.nonce, a.now + a.lease, 1, a.now, a.now, a.now + a.lease + a.keep,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, {FORMAT}
        FROM ({asked.now}) a
        WHERE a.id NOT IN (SELECT seen.id FROM seen WHERE seen.move = {_NOTHING})
        {asked.sorted("a.id")}
        ON CONFLICT (id) DO UPDATE SET ({", ".join(_MOVED)}) = (
            SELECT {", ".join(map(_moved, _MOVED))}
            FROM (SELECT a.*, {_MOVE} AS move FROM ({asked.now}) a WHERE {asked.same("a.id", "r.id")} OFFSET 0) a
        )
        RETURNING {columns_of("r")}, {asked.clock} AS now, CASE WHEN r.attempts = 1 THEN (
            SELECT {_FORGOT} FROM seen
            WHERE {asked.same("seen.id", "r.id")} AND seen.move = {_BEGIN} AND seen.state <> 'completed'
        ) END AS move
    )
    SELECT * FROM seen WHERE move = {_NOTHING}
    UNION ALL
    SELECT * FROM taken
    """
