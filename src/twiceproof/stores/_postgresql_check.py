"""What an operator should know of a PostgreSQL before the first request, and what makes the table; both blocking."""

from __future__ import annotations

import math
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
from twiceproof.stores._postgresql_probe import probed
from twiceproof.stores._postgresql_schema import INDEXES, index_name, schema_sql
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
        FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS kind),
    (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass($1::text)),
    row_security_active(to_regclass($1::text)::oid),
    EXISTS (
        SELECT FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
        WHERE indrelid = to_regclass($1::text) AND attname = 'id' AND indnkeyatts = 1
            AND indisunique AND indisvalid AND indpred IS NULL
    )
"""

_THERE: Final = """
SELECT
    to_regnamespace($2::text) IS NOT NULL,
    to_regclass($1::text) IS NOT NULL,
    obj_description(to_regclass($1::text), 'pg_class'),
    (SELECT array_agg(attname::text) FROM pg_attribute
        WHERE attrelid = to_regclass($1::text) AND attnum > 0 AND NOT attisdropped),
    (SELECT count(*) FROM pg_index JOIN pg_class ON oid = indexrelid
        WHERE indrelid = to_regclass($1::text) AND relname = ANY($3::text[]))
"""
"""What `make_schema` would make, and what of it is there."""


def check_server(address: Address) -> Sequence[str]:
    """Return a sentence for each thing that an operator should know; see `Store.check`."""
    try:
        connection = connected(address, time.monotonic() + address.timeout)
    except StoreUnavailable as error:
        ping = pq.PGconn.ping(address.conninfo(connect_timeout="2").encode())
        if ping in {pq.Ping.OK, pq.Ping.NO_ATTEMPT}:  # it is there and does not let us in, or libpq does not even try
            raise ConfigurationError(str(error)) from None
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
    number, version, standby, synchronous_commit, fsync, there, comment, columns, permitted = row[:9]
    if number < _OLDEST:
        raise ConfigurationError(f"{address.where}: PostgreSQL {version} is too old; it must be 12 or later.")
    try:
        probed(address, [(there, comment)])
    except (StoreUnavailable, UnknownFormat) as error:
        raise ConfigurationError(str(error)) from None
    _complete(address, columns)
    if not permitted:
        raise ConfigurationError(
            f"{address.where}: this user needs SELECT, INSERT, UPDATE and DELETE on {address.name}; grant them."
        )
    _kept(address, *row[9:])
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


def _complete(address: Address, columns: Sequence[str]) -> None:
    lacks = [column for column in COLUMNS if column not in columns]
    if lacks:
        raise ConfigurationError(
            f"{address.where}: the table {address.name} lacks the column {lacks[0]}; if it is somebody else's, choose"
            " another name with table= or schema= in the URL."
        )


def _kept(address: Address, persistence: str, row_security: bool, unique: bool) -> None:  # noqa: FBT001  # a row
    if persistence != "p":  # R21
        raise ConfigurationError(
            f"{address.where}: a crash of PostgreSQL empties the table {address.name}, and a retry would then run"
            f" again; make it durable: ALTER TABLE {address.name} SET LOGGED."
        )
    if row_security:
        raise ConfigurationError(
            f"{address.where}: row level security hides records of {address.name} from this user; disable it there, or"
            " grant the user BYPASSRLS."
        )
    if not unique:  # R22
        raise ConfigurationError(
            f"{address.where}: nothing keeps ids in {address.name} unique;"
            f" ALTER TABLE {address.name} ADD PRIMARY KEY (id)."
        )


def make_schema(address: Address) -> None:
    """Make what is missing, in one transaction; whoever comes at the same time waits and finds it made.

    Where all is there it takes no lock and needs no right: an open writer would wait for it, and claims behind it.
    """
    connection = connected(address, time.monotonic() + address.timeout)
    connection.until = time.monotonic() + max(address.timeout, _MAKING)
    try:
        if _made(connection, address):
            return
        connection.execute(
            f"""
            BEGIN;
            SET LOCAL lock_timeout = {math.ceil(address.timeout * 1000)};
            SET LOCAL statement_timeout = 0;
            SELECT pg_advisory_xact_lock({advisory_lock(address.name, "init")});
            {schema_sql(address.schema, address.table)}
            COMMIT;
            """.encode()
        )
    except (StoreUnavailable, UnknownFormat) as error:
        raise ConfigurationError(str(error)) from None
    except psycopg.Error as error:
        raise _not_made(address, error) from None
    except Late:
        raise late(address.where, max(address.timeout, _MAKING)) from None
    finally:
        connection.pgconn.finish()


def _made(connection: Timed, address: Address) -> bool:
    """Whether there is nothing left to make; raises where the table is not one of ours."""
    names = [index_name(address.table, of) for of in INDEXES]
    ((namespace, there, comment, columns, indexes),) = _asked(
        connection, _THERE, (address.name, f'"{address.schema}"', names)
    )
    if not there:
        return False
    _complete(address, columns)
    if comment is None:
        return False
    probed(address, [(there, comment)])
    return bool(namespace) and indexes == len(names)


def _not_made(address: Address, error: psycopg.Error) -> StoreUnavailable | ConfigurationError:
    match error.sqlstate:
        case None:
            return lost(address.where)
        case "55P03":
            return StoreUnavailable(
                f"{address.where}: somebody used the table for longer than {address.timeout:g} s, so nothing was made;"
                " try again when it is quieter, or with a longer time-out."
            )
        case "42501":
            return ConfigurationError(
                f"{address.where}: this user may not make the table; grant it CREATE on the schema {address.schema}, or"
                " let an owner run the SQL that 'twiceproof store schema' prints."
            )
        case _:
            return ConfigurationError(f"{address.where}: can't make the schema: {error.diag.message_primary}.")
