"""The statements of the SQLite store: constants that can be read alone, shared by both colours.

Each deciding verb is one of them. None commits by itself, so they also work inside a foreign transaction.

Measured choices: ``seq`` is the rowid and grows with each incarnation, so that `SCAN` needs no index of its own (2 % of
a claim and its completion); WITHOUT ROWID would double the cost of a batch, since answers then move in the b-tree.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from twiceproof.core._record import FORMAT

SCHEMA_VERSION: Final = 1
"""``PRAGMA user_version`` of a file that this release makes."""

RENEWED_AT_ONCE: Final = 5000
"""How many claims fit into one `renewal`: SQLite binds at most 32,766 values."""


def _numbered(statement: str, *names: str) -> str:
    """Return ``statement`` with ``?1`` for the first name and so on: bound in a third of the time."""
    return re.sub(r":(\w+)", lambda found: f"?{names.index(found[1]) + 1}", statement)


# R34: the host's wall clock, read by the statement itself, after it has its lock. unixepoch('subsec') is NULL
# before SQLite 3.42.
_NOW: Final = "((julianday('now') - 2440587.5) * 86400.0)"

SCHEMA: Final = (
    """
    CREATE TABLE twiceproof_record (
        seq INTEGER PRIMARY KEY,
        id BLOB NOT NULL UNIQUE,
        namespace TEXT NOT NULL,
        principal BLOB NOT NULL,
        operation TEXT NOT NULL,
        path TEXT NOT NULL,
        key BLOB NOT NULL,
        fingerprint BLOB NOT NULL,
        guarantee TEXT NOT NULL,
        incarnation BLOB NOT NULL,
        state TEXT NOT NULL,
        number INTEGER NOT NULL,
        nonce BLOB NOT NULL,
        lease_until REAL NOT NULL,
        attempts INTEGER NOT NULL,
        created_at REAL NOT NULL,
        granted_at REAL NOT NULL,
        expires_at REAL NOT NULL,
        completed_at REAL,
        next_attempt_at REAL,
        cause TEXT,
        reconcile_nonce BLOB,
        reconcile_until REAL,
        reconcile_asked_at REAL,
        answer BLOB,
        format INTEGER NOT NULL
    )
    """,
    "CREATE INDEX twiceproof_record_expiry ON twiceproof_record (expires_at)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)  # R54

_COLUMNS: Final = (
    "id, namespace, principal, operation, path, key, fingerprint, guarantee, incarnation, state, number, nonce,"
    " lease_until, attempts, created_at, granted_at, expires_at, completed_at, next_attempt_at, cause,"
    " reconcile_nonce, reconcile_until, reconcile_asked_at, answer, format"
)

_LIVE: Final = f"(expires_at > {_NOW} OR format > {FORMAT})"  # a record of a later release never expires for us
_LAPSED: Final = f"(state = 'in_flight' AND lease_until <= {_NOW})"
_RECONCILING: Final = f"(reconcile_until IS NOT NULL AND reconcile_until > {_NOW})"
_SETTLED_BY: Final = (  # R42: the token's nonce at any time; R28: a second claim's while it is live
    f"(state <> 'completed' AND (nonce = :nonce OR (reconcile_nonce = :nonce AND {_RECONCILING})))"
)

_EXPIRED: Final = f"expires_at <= {_NOW}"
_SAME_CALL: Final = f"(state = 'in_flight' AND nonce = :nonce AND NOT {_EXPIRED})"  # R48: its reply was lost
_GRANTABLE: Final = f"""(
    format <= {FORMAT} AND (
        {_EXPIRED}
        OR {_SAME_CALL}
        OR state <> 'completed' AND fingerprint = :fingerprint AND CASE
            WHEN {_RECONCILING} THEN reconcile_nonce IS :after
            ELSE {_LAPSED} AND guarantee = 'at_least_once' AND :guarantee = 'at_least_once'
        END
    )
)"""  # R21, R28, R27

_INSERT: Final = f"""
INSERT INTO twiceproof_record ({_COLUMNS})
VALUES (
    :id, :namespace, :principal, :operation, :path, :key, :fingerprint, :guarantee, :nonce, 'in_flight', 1, :nonce,
    {_NOW} + :lease, 1, {_NOW}, {_NOW}, {_NOW} + :lease + :keep, NULL, NULL, NULL, NULL, NULL, NULL, NULL, {FORMAT}
)
"""

INSERTED: Final = (
    *("id", "namespace", "principal", "operation", "path", "key", "fingerprint", "guarantee"),
    *("keep", "lease", "nonce"),
)
INSERT: Final = _numbered(f"{_INSERT} ON CONFLICT (id) DO NOTHING", *INSERTED)
"""Take an id that has no row. What is written is known, so it needs no RETURNING, which costs half as much again."""

CLAIM: Final = f"""
{_INSERT}
ON CONFLICT (id) DO UPDATE SET
    seq = CASE WHEN {_EXPIRED} THEN (SELECT max(seq) + 1 FROM twiceproof_record) ELSE seq END,
    namespace = excluded.namespace,
    principal = excluded.principal,
    operation = excluded.operation,
    path = excluded.path,
    key = excluded.key,
    fingerprint = CASE WHEN {_SAME_CALL} THEN fingerprint ELSE excluded.fingerprint END,
    guarantee = CASE WHEN {_SAME_CALL} THEN guarantee ELSE excluded.guarantee END,
    incarnation = CASE WHEN {_EXPIRED} THEN excluded.incarnation ELSE incarnation END,
    state = excluded.state,
    number = CASE WHEN {_EXPIRED} THEN 1 WHEN {_SAME_CALL} THEN number ELSE number + 1 END,
    nonce = excluded.nonce,
    lease_until = excluded.lease_until,
    attempts = CASE WHEN {_EXPIRED} THEN 1 WHEN {_SAME_CALL} THEN attempts ELSE attempts + 1 END,
    created_at = CASE WHEN {_EXPIRED} THEN excluded.created_at ELSE created_at END,
    granted_at = CASE WHEN {_SAME_CALL} THEN granted_at ELSE excluded.granted_at END,
    expires_at = excluded.expires_at,
    completed_at = NULL,
    next_attempt_at = NULL,
    cause = NULL,
    reconcile_nonce = NULL,
    reconcile_until = NULL,
    reconcile_asked_at = CASE WHEN {_SAME_CALL} THEN reconcile_asked_at END,
    answer = NULL,
    format = excluded.format
WHERE {_GRANTABLE}
RETURNING number, incarnation, attempts
"""

PRESENT: Final = "SELECT 1 FROM twiceproof_record WHERE id = ?"
"""Half the cost of `LOOK`, for ids that have no row."""

LOOK: Final = f"SELECT {_COLUMNS}, {_NOW}, {_GRANTABLE} FROM twiceproof_record WHERE id = :id"
"""The record, expired or not, and whether `CLAIM` with the same values would take it."""

_RECONCILABLE: Final = f"""(
    format <= {FORMAT} AND state <> 'completed' AND (
        :force
        OR reconcile_nonce IS :nonce
        OR (state = 'parked' OR {_LAPSED}) AND NOT {_RECONCILING}
            AND (reconcile_asked_at IS NULL OR reconcile_asked_at + :every <= {_NOW})
    )
)"""

CLAIM_UNSETTLED: Final = f"""
UPDATE twiceproof_record
SET reconcile_nonce = :nonce, reconcile_until = {_NOW} + :lease, reconcile_asked_at = {_NOW}
WHERE id = :id AND {_LIVE} AND {_RECONCILABLE}
RETURNING number, nonce, incarnation, attempts
"""

LOOK_UNSETTLED: Final = f"""
SELECT {_COLUMNS}, {_NOW}, {_RECONCILABLE} FROM twiceproof_record WHERE id = :id AND {_LIVE}
"""

COMPLETE: Final = _numbered(
    f"""
UPDATE twiceproof_record SET
    state = 'completed',
    number = number + (nonce <> :nonce),
    nonce = :nonce,
    answer = :answer,
    completed_at = {_NOW},
    expires_at = {_NOW} + :retention,
    next_attempt_at = NULL,
    cause = NULL,
    reconcile_nonce = NULL,
    reconcile_until = NULL,
    reconcile_asked_at = NULL
WHERE id = :id AND {_LIVE} AND {_SETTLED_BY}
""",
    "id",
    "nonce",
    "answer",
    "retention",
)

COMPLETED_BY: Final = f"""
SELECT 1 FROM twiceproof_record WHERE id = :id AND nonce = :nonce AND state = 'completed' AND {_LIVE}
"""

RELEASE: Final = f"DELETE FROM twiceproof_record WHERE id = :id AND {_LIVE} AND {_SETTLED_BY}"

PARK: Final = f"""
UPDATE twiceproof_record SET
    state = CASE WHEN nonce = :nonce THEN 'parked' ELSE state END,
    cause = CASE WHEN nonce = :nonce THEN :cause ELSE cause END,
    lease_until = CASE WHEN nonce = :nonce THEN {_NOW} ELSE lease_until END,
    expires_at = CASE WHEN nonce = :nonce THEN {_NOW} + (expires_at - lease_until) ELSE expires_at END,
    reconcile_nonce = CASE WHEN nonce = :nonce THEN reconcile_nonce END,
    reconcile_until = CASE WHEN nonce = :nonce THEN reconcile_until END
WHERE id = :id AND {_LIVE} AND state <> 'completed' AND (nonce = :nonce OR reconcile_nonce = :nonce)
"""

FORGET: Final = f"DELETE FROM twiceproof_record WHERE id = :id AND nonce = :nonce AND {_LIVE}"

GET: Final = f"SELECT {_COLUMNS}, {_NOW} FROM twiceproof_record WHERE id = :id AND {_LIVE}"

SCAN: Final = f"""
SELECT {_COLUMNS}, {_NOW}, seq FROM twiceproof_record
WHERE seq > :after
    AND {_LIVE}
    AND CASE WHEN :unsettled THEN state = 'parked' OR {_LAPSED} ELSE :state IS NULL OR state = :state END
    AND (:operation IS NULL OR operation = :operation)
    AND (:path IS NULL OR path = :path)
    AND (:older_than IS NULL OR created_at <= {_NOW} - :older_than)
ORDER BY seq
LIMIT :limit
"""

PURGE: Final = f"""
DELETE FROM twiceproof_record WHERE id IN (
    SELECT id FROM twiceproof_record
    WHERE expires_at <= {_NOW} AND format <= {FORMAT}
    ORDER BY expires_at
    LIMIT :limit
)
RETURNING state <> 'completed'
"""


@lru_cache(maxsize=64)
def renewal(count: int) -> str:
    """Return the statement that renews ``count`` claims: the lease, then an id and a nonce for each (R31)."""
    return f"""
    WITH mine (its_id, its_nonce) AS (VALUES {_pairs(count, 2)})
    UPDATE twiceproof_record SET
        state = 'in_flight',
        lease_until = {_NOW} + ?1,
        expires_at = {_NOW} + ?1 + (expires_at - lease_until),
        cause = NULL,
        reconcile_nonce = NULL,
        reconcile_until = NULL
    FROM mine
    WHERE id = its_id AND nonce = its_nonce AND state IN ('in_flight', 'parked') AND {_LIVE}
    RETURNING id, nonce
    """


@lru_cache(maxsize=64)
def unfenced(count: int) -> str:
    """Return the statement that tells which of ``count`` claims hold their record, needing no renewal or not."""
    return f"""
    WITH mine (its_id, its_nonce) AS (VALUES {_pairs(count, 1)})
    SELECT id, nonce FROM mine JOIN twiceproof_record ON id = its_id AND nonce = its_nonce WHERE {_LIVE}
    """


def _pairs(count: int, first: int) -> str:
    return ", ".join(f"(?{at}, ?{at + 1})" for at in range(first, first + 2 * count, 2))
