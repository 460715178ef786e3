"""The lanes of psycopg, in both colours."""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.adapt import Dumper

from twiceproof.errors import StoreUnavailable
from twiceproof.stores._postgresql_address import Address
from twiceproof.stores._postgresql_connect import AsyncTimed, Late, Timed, connected, connected_async
from twiceproof.stores._postgresql_errors import RefusedRow, late, lost, told
from twiceproof.stores._postgresql_lanes import BlockingLane, LoopLane
from twiceproof.stores._postgresql_probe import PROBE, probed
from twiceproof.stores._postgresql_verbs import Row

_HEAD: Final = struct.Struct(">iiiii")
_LENGTH: Final = struct.Struct(">i")
_BYTEA, _TEXT, _FLOAT8 = 17, 25, 701


class Array:
    """An array of one of our columns, as the wire wants it: psycopg's own way takes ten times as long."""

    __slots__ = ("wire",)

    def __init__(self, values: Sequence[Any]) -> None:
        first = values[0] if values else b""
        if isinstance(first, float):
            parts = [struct.pack(f">{'id' * len(values)}", *chain.from_iterable(zip(repeat(8), values)))]
            oid = _FLOAT8
        else:
            octets = [value.encode("ascii") for value in values] if isinstance(first, str) else values
            parts = [part for value in octets for part in (_LENGTH.pack(len(value)), value)]
            oid = _TEXT if isinstance(first, str) else _BYTEA
        self.wire = b"".join([_HEAD.pack(1, 0, oid, len(values), 1), *parts])


class ArrayDumper(Dumper):
    """Hands psycopg the octets of an `Array`; the statement says what type it is."""

    format = pq.Format.BINARY

    def dump(self, obj: Array) -> bytes:
        """Return the octets."""
        return obj.wire


def _usable(connection: Timed | AsyncTimed) -> bool:
    """Whether an idle connection is still good: where something comes in, the server is closing it."""
    pgconn = connection.pgconn
    if pgconn.status != pq.ConnStatus.OK:
        return False
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    return not poll.poll(0)


def _told(where: str, connection: Timed | AsyncTimed, error: psycopg.Error) -> StoreUnavailable:
    if connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
        return lost(where)
    if error.sqlstate is None:  # psycopg itself could not send the values
        return RefusedRow(f"{where}: the values of one record can't be sent ({type(error).__name__}).")
    return told(where, error.sqlstate)


class PsycopgLane(BlockingLane):
    """One connection of the blocking colour; making it connects."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, time.monotonic() + address.timeout)
        self._connection = connected(address, self.until)
        self._connection.adapters.register_dumper(Array, ArrayDumper)
        self._cursor = psycopg.RawCursor(self._connection)
        try:
            probed(address, self.execute(PROBE, (address.name,)))
        except BaseException:
            self.close()
            raise

    def usable(self) -> bool:
        """See `Lane.usable`."""
        return _usable(self._connection)

    def close(self) -> None:
        """See `Lane.close`."""
        self._connection.pgconn.finish()

    def execute(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        """See `BlockingLane.execute`."""
        self._connection.until = self.until
        try:
            self._cursor.execute(statement.encode(), _wired(values), prepare=not self.address.pgbouncer, binary=True)
            return self._cursor.fetchall()
        except psycopg.Error as error:
            failure = _told(self.address.where, self._connection, error)
        except Late:
            failure = late(self.address.where, self.address.timeout)
        raise failure  # out here, without psycopg's error as its context: that tells the values of the row


class AsyncPsycopgLane(LoopLane):
    """One connection of one event loop."""

    def __init__(self, address: Address, until: float, connection: AsyncTimed) -> None:
        super().__init__(address, until)
        self._connection = connection
        self._connection.adapters.register_dumper(Array, ArrayDumper)
        self._cursor = psycopg.AsyncRawCursor(connection)

    @classmethod
    async def connect(cls, address: Address) -> AsyncPsycopgLane:
        """Return a lane that is connected."""
        until = time.monotonic() + address.timeout
        lane = cls(address, until, await connected_async(address, until))
        try:
            probed(address, await lane.execute(PROBE, (address.name,)))
        except BaseException:
            lane.close()
            raise
        return lane

    def usable(self) -> bool:
        """See `AsyncLane.usable`."""
        return _usable(self._connection)

    def close(self) -> None:
        """See `AsyncLane.close`."""
        self._connection.pgconn.finish()

    async def execute(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        """See `BlockingLane.execute`."""
        self._connection.until = self.until
        try:
            await self._cursor.execute(
                statement.encode(), _wired(values), prepare=not self.address.pgbouncer, binary=True
            )
            return await self._cursor.fetchall()
        except psycopg.Error as error:
            failure = _told(self.address.where, self._connection, error)
        except Late:
            failure = late(self.address.where, self.address.timeout)
        raise failure  # out here, without psycopg's error as its context: that tells the values of the row


def _wired(values: Sequence[Any]) -> Sequence[Any]:
    return [_array(value) if type(value) is list else value for value in values]


def _array(values: Any) -> Array:
    return Array(values)
