"""The statements of the PostgreSQL store: built once for a table, readable alone, shared by all drivers and colours.

Each verb is one of them, and none commits by itself, so they also work inside a foreign transaction. ``one`` takes a
value for each placeholder, ``many`` an array. Rows are locked in the order of ids: two processes whose batches lock the
same rows in different orders would kill each other's for ever. Where a verb decides, it locks the row, reads the clock
(R34), and decides on what the row has become; the claim is in `_postgresql_claim`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from twiceproof.core._record import FORMAT
from twiceproof.stores._postgresql_asked import Asked, asked_many, asked_one, columns_of
from twiceproof.stores._postgresql_claim import CLAIMED, claim_statement

SCHEMA_VERSION: Final = 1
"""What the comment of a table that this release makes says."""

CLOCK: Final = "clock_timestamp()"
"""R34: the server's clock, read where it stands and not at the start of the statement."""

_NAMED: Final = {"id": "bytea", "nonce": "bytea"}
_COMPLETED: Final = {**_NAMED, "answer": "bytea", "retention": "float8"}


@dataclass(frozen=True, slots=True)
class Statement:
    """One verb, for one record with a value for each placeholder, and for many with an array for each."""

    one: str
    many: str = ""


@dataclass(frozen=True, slots=True)
class Statements:
    """All of them, for one table."""

    claim: Statement
    claim_after: Statement
    claim_unsettled: Statement
    renew: Statement
    complete: Statement
    release: Statement
    park: Statement
    forget: Statement
    get: Statement
    scan: Statement
    purge: Statement


def _decided(table: str, asked: Asked, decision: str, write: str, answer: str) -> str:
    """Return a statement that locks the rows asked about in the order of ids, decides on each, and writes."""
    return f"""
    WITH {asked.head}
    locked AS MATERIALIZED (
        SELECT a.*, {_DECIDING}
        FROM ({asked.rows}) a JOIN {table} r ON {asked.found("r.id")}
        {asked.sorted("r.id")}
        FOR UPDATE OF r
    ),
    decided AS MATERIALIZED (
        SELECT a.*, {decision} FROM (SELECT locked.*, {asked.clock} AS now FROM locked) a
    ),
    written AS ({write})
    {answer}
    """


# What a decision looks at, of the locked row; `LIVE` and `SETTLED_BY` read it from `a`.
_DECIDING: Final = (
    "r.state AS its_state, r.nonce AS its_nonce, r.expires_at AS its_end, r.format AS its_format,"
    " r.reconcile_nonce AS its_reconcile_nonce, r.reconcile_until AS its_reconcile_until"
)
_LIVE: Final = f"(a.its_end > a.now OR a.its_format > {FORMAT})"  # one of a later release never expires for us (R17)
_SETTLED_BY: Final = """(
    a.its_state <> 'completed'
    AND (a.its_nonce = a.nonce OR a.its_reconcile_nonce = a.nonce AND a.its_reconcile_until > a.now)
)"""  # R42: the token's nonce at any time; R28: a second claim's while it is live


def _complete(table: str, asked: Asked) -> str:
    return _decided(
        table,
        asked,
        f"{_LIVE} AND coalesce({_SETTLED_BY}, false) AS settles,"
        f" {_LIVE} AND a.its_state = 'completed' AND a.its_nonce = a.nonce AS did_before",
        f"""
        UPDATE {table} r SET
            state = 'completed',
            number = CASE WHEN r.nonce = a.nonce THEN r.number ELSE r.number + 1 END,
            nonce = a.nonce,
            expires_at = a.now + a.retention, -- R33
            completed_at = a.now,
            next_attempt_at = NULL,
            cause = NULL,
            reconcile_nonce = NULL,
            reconcile_until = NULL,
            reconcile_asked_at = NULL,
            answer = a.answer
        FROM decided a
        WHERE {asked.found("r.id")} AND a.settles""",
        "SELECT id FROM decided WHERE settles OR did_before",
    )


def _release(table: str, asked: Asked) -> str:
    return _decided(
        table,
        asked,
        f"{_LIVE} AND coalesce({_SETTLED_BY}, false) AS settles",
        f"DELETE FROM {table} r USING decided a WHERE {asked.found('r.id')} AND a.settles",
        "SELECT id FROM decided WHERE settles",
    )


def _forget(table: str, asked: Asked) -> str:
    return _decided(
        table,
        asked,
        f"{_LIVE} AND a.its_nonce = a.nonce AS settles",
        f"DELETE FROM {table} r USING decided a WHERE {asked.found('r.id')} AND a.settles",
        "SELECT id FROM decided WHERE settles",
    )


def _park(table: str, asked: Asked) -> str:
    return _decided(
        table,
        asked,
        f"{_LIVE} AND a.its_state <> 'completed' AND a.its_nonce = a.nonce AS parks,"
        f" {_LIVE} AND a.its_state <> 'completed' AND a.its_nonce <> a.nonce"
        " AND coalesce(a.its_reconcile_nonce = a.nonce, false) AS ends_asking",
        f"""
        UPDATE {table} r SET
            state = CASE WHEN a.parks THEN 'parked' ELSE r.state END,
            cause = CASE WHEN a.parks THEN a.cause ELSE r.cause END,
            lease_until = CASE WHEN a.parks THEN a.now ELSE r.lease_until END,
            expires_at = CASE WHEN a.parks THEN a.now + (r.expires_at - r.lease_until) ELSE r.expires_at END,
            reconcile_nonce = CASE WHEN a.parks THEN r.reconcile_nonce END, -- R28
            reconcile_until = CASE WHEN a.parks THEN r.reconcile_until END
        FROM decided a
        WHERE {asked.found("r.id")} AND (a.parks OR a.ends_asking)""",
        "SELECT id FROM decided WHERE parks OR ends_asking",
    )


def _renew(table: str, now: str) -> str:
    asked = asked_many(_NAMED, now, ", $3::float8 AS lease")
    return _decided(
        table,
        asked,
        f"{_LIVE} AND a.its_nonce = a.nonce AS holds",
        f"""
        UPDATE {table} r SET
            state = 'in_flight',
            lease_until = a.now + a.lease,
            expires_at = a.now + a.lease + (r.expires_at - r.lease_until),
            cause = NULL,
            reconcile_nonce = NULL,
            reconcile_until = NULL
        FROM decided a
        WHERE {asked.found("r.id")} AND a.holds AND a.its_state IN ('in_flight', 'parked')""",
        "SELECT id, nonce FROM decided WHERE holds",
    )


_RECONCILABLE: Final = f"""
    r.format <= {FORMAT} AND r.state <> 'completed' AND (
        $5::boolean
        OR coalesce(r.reconcile_nonce = $3::bytea, false)
        OR (r.state = 'parked' OR r.state = 'in_flight' AND r.lease_until <= r.now)
            AND coalesce(r.reconcile_until <= r.now, true)
            AND coalesce(r.reconcile_asked_at + $4::float8 <= r.now, true)
    )"""


def _claim_unsettled(table: str, now: str) -> str:
    def look(source: str) -> str:
        return f"""
        SELECT r.*, {_RECONCILABLE} AS open
        FROM (SELECT r.*, {now} AS now FROM {source}) r
        WHERE r.expires_at > r.now OR r.format > {FORMAT}"""

    return f"""
    WITH seen AS MATERIALIZED ({look(f"{table} r WHERE r.id = $1::bytea")}),
    locked AS MATERIALIZED (
        SELECT {columns_of("r")} FROM seen JOIN {table} r ON r.id = $1::bytea WHERE seen.open FOR UPDATE OF r
    ),
    decided AS MATERIALIZED ({look("locked r")}),
    written AS (
        UPDATE {table} r
        SET reconcile_nonce = $3::bytea, reconcile_until = a.now + $2::float8, reconcile_asked_at = a.now
        FROM decided a
        WHERE r.id = $1::bytea AND a.open
    )
    SELECT {columns_of("r")}, r.now, r.open FROM seen r WHERE NOT r.open
    UNION ALL
    SELECT {columns_of("r")}, r.now, r.open FROM decided r
    """


def _get(table: str, now: str) -> str:
    return f"""
    SELECT {columns_of("r")}, r.now FROM (SELECT r.*, {now} AS now FROM {table} r WHERE r.id = $1::bytea) r
    WHERE r.expires_at > r.now OR r.format > {FORMAT}
    """


def _scan(table: str, now: str) -> str:
    return f"""
    SELECT {columns_of("r")}, r.now
    FROM (
        SELECT r.*, {now} AS now FROM {table} r
        WHERE r.created_at >= $1::float8 AND (r.created_at, r.id) > ($1::float8, $2::bytea)
        ORDER BY r.created_at, r.id
    ) r
    WHERE (r.expires_at > r.now OR r.format > {FORMAT})
        AND CASE
            WHEN $3::boolean THEN r.state = 'parked' OR r.state = 'in_flight' AND r.lease_until <= r.now
            ELSE $4::text IS NULL OR r.state = $4::text
        END
        AND ($5::text IS NULL OR r.operation = $5::text)
        AND ($6::text IS NULL OR r.path = $6::text)
        AND ($7::float8 IS NULL OR r.created_at <= r.now - $7::float8)
    ORDER BY r.created_at, r.id
    LIMIT $8::bigint
    """


def _purge(table: str, now: str, lock: int) -> str:
    """Return the purge: by one process at a time, and past every row that somebody has locked."""
    return f"""
    WITH mine AS MATERIALIZED (SELECT pg_try_advisory_xact_lock({lock}::bigint) AS got),
    gone AS MATERIALIZED (
        SELECT r.id FROM {table} r
        WHERE (SELECT got FROM mine) AND r.expires_at <= (SELECT {now}) AND r.format <= {FORMAT}
        ORDER BY r.expires_at
        LIMIT $1::bigint
        FOR UPDATE SKIP LOCKED
    ),
    deleted AS (
        DELETE FROM {table} r WHERE r.id = ANY (ARRAY(SELECT id FROM gone))
        RETURNING r.state <> 'completed' AS unsettled
    )
    SELECT count(*), count(*) FILTER (WHERE unsettled) FROM deleted
    """


def advisory_lock(table: str, purpose: str) -> int:
    """Return the number of a lock of ours."""
    return int.from_bytes(sha256(f"twiceproof {purpose} {table}".encode()).digest()[:8], "big", signed=True)


@lru_cache(maxsize=64)
def statements(table: str, clock: str = CLOCK) -> Statements:
    """Return the statements for a table by its full, quoted name; ``clock`` replaces the server's, in tests only."""
    now = f"extract(epoch FROM {clock})::float8"

    def both(make: Callable[[str, Asked], str], values: Mapping[str, str], constants: str = "") -> Statement:
        return Statement(
            make(table, asked_one(values, now, constants)), make(table, asked_many(values, now, constants))
        )

    return Statements(
        claim=both(claim_statement, CLAIMED, ", NULL::bytea AS after"),
        claim_after=Statement(claim_statement(table, asked_one({**CLAIMED, "after": "bytea"}, now))),
        claim_unsettled=Statement(_claim_unsettled(table, now)),
        renew=Statement(_renew(table, now)),
        complete=both(_complete, _COMPLETED),
        release=both(_release, _NAMED),
        park=both(_park, {**_NAMED, "cause": "text"}),
        forget=both(_forget, _NAMED),
        get=Statement(_get(table, now)),
        scan=Statement(_scan(table, now)),
        purge=Statement(_purge(table, now, advisory_lock(table, "purge"))),
    )
