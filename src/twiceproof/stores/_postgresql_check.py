"""What an operator should know of a PostgreSQL before the first request, and what makes the table; both blocking."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import pq

from twiceproof.errors import ConfigurationError, StoreUnavailable, UnknownFormat
from twiceproof.stores._postgresql_address import Address
from twiceproof.stores._postgresql_asked import COLUMNS
from twiceproof.stores._postgresql_connect import Late, Timed, connected
from twiceproof.stores._postgresql_errors import late, lost
from twiceproof.stores._postgresql_probe import PROBE, probed
from twiceproof.stores._postgresql_schema import schema_sql
from twiceproof.stores._postgresql_statements import advisory_lock

_OLDEST: Final = 120000
_MAKING: Final = 30.0  # seconds: on a table of a former release an index may take its time

_SERVER: Final = """
SELECT
    current_setting('server_version_num')::int,
    current_setting('server_version'),
    pg_is_in_recovery(),
    current_setting('synchronous_commit'),
    current_setting('fsync'),
    to_regclass($1::text) IS NOT NULL,
    obj_description(to_regclass($1::text), 'pg_class'),
    (SELECT array_agg(attname::text) FROM pg_attribute
        WHERE attrelid = to_regclass($1::text) AND attnum > 0 AND NOT attisdropped),
    (SELECT bool_and(has_table_privilege(to_regclass($1::text)::oid, kind))
        FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS kind)
"""


def check_server(address: Address) -> Sequence[str]:
    """Return a sentence for each thing that an operator should know; see `Store.check`."""
    try:
        connection = connected(address, time.monotonic() + address.timeout)
    except StoreUnavailable as error:
        if pq.PGconn.ping(address.conninfo(connect_timeout="2").encode()) == pq.Ping.OK:
            raise ConfigurationError(str(error)) from None  # the server is there and does not let us in
        return [f"{error} Requests are answered 503 until it is there."]
    try:
        connection.until = time.monotonic() + address.timeout
        rows: Sequence[Any] = _asked(connection, _SERVER, (address.name,))
    except (psycopg.Error, Late):
        return [f"{address.where}: PostgreSQL did not say how it is; requests are answered 503 while that is so."]
    finally:
        connection.pgconn.finish()
    return _judged(address, rows[0])


def _asked(connection: Timed, statement: str, values: Sequence[Any]) -> Sequence[Any]:
    return psycopg.RawCursor(connection).execute(statement.encode(), values, binary=True).fetchall()


def _judged(address: Address, row: Sequence[Any]) -> Sequence[str]:
    number, version, standby, synchronous_commit, fsync, there, comment, columns, permitted = row
    if number < _OLDEST:
        raise ConfigurationError(f"{address.where}: PostgreSQL {version} is too old; it must be 12 or later.")
    try:
        probed(address, [(there, comment)])
    except (StoreUnavailable, UnknownFormat) as error:
        raise ConfigurationError(str(error)) from None
    lacks = [column for column in COLUMNS if column not in columns]
    if lacks:
        raise ConfigurationError(f"{address.where}: the table {address.name} lacks the column {lacks[0]}.")
    if not permitted:
        raise ConfigurationError(
            f"{address.where}: this user needs SELECT, INSERT, UPDATE and DELETE on {address.name}; grant them."
        )
    notes: list[str] = []
    if standby:
        notes.append(f"{address.where} is a standby that only reads; requests are answered 503 until it is promoted.")
    if fsync == "off":
        notes.append(f"{address.where} runs with fsync = off: a crash of its host may lose every record.")
    if synchronous_commit == "off":
        notes.append(
            f"{address.where} runs with synchronous_commit = off: a crash may lose the last claims and answers,"
            " and a retry then runs the handler again."
        )
    return notes


def make_schema(address: Address) -> None:
    """Make what is missing, in one transaction; whoever comes at the same time waits and finds it made."""
    connection = connected(address, time.monotonic() + address.timeout)
    connection.until = time.monotonic() + max(address.timeout, _MAKING)
    try:
        ((there, comment),) = _asked(connection, PROBE, (address.name,))
        if there and comment is not None:
            probed(address, [(there, comment)])
        connection.execute(
            f"""
            BEGIN;
            SET LOCAL lock_timeout = '{_MAKING:g}s';
            SET LOCAL statement_timeout = 0;
            SELECT pg_advisory_xact_lock({advisory_lock(address.name, "init")});
            {schema_sql(address.schema, address.table)}
            COMMIT;
            """.encode()
        )
    except (StoreUnavailable, UnknownFormat) as error:
        raise ConfigurationError(str(error)) from None
    except psycopg.Error as error:
        if error.sqlstate is None:
            raise lost(address.where) from None
        raise ConfigurationError(f"{address.where}: can't make the schema: {error.diag.message_primary}.") from None
    except Late:
        raise late(address.where, max(address.timeout, _MAKING)) from None
    finally:
        connection.pgconn.finish()
