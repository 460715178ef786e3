"""Connections through asyncpg; what it lacks for a thread of our own comes from psycopg."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, cast

import asyncpg  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]  # it has none

from twiceproof.errors import StoreUnavailable
from twiceproof.stores._postgresql_address import Address
from twiceproof.stores._postgresql_errors import RefusedRow, late, lost, told, unreachable
from twiceproof.stores._postgresql_lanes import LoopLane
from twiceproof.stores._postgresql_probe import PROBE, probed
from twiceproof.stores._postgresql_verbs import Row

_asyncpg: Any = asyncpg  # pyright would have no less to say of half its names


class AsyncpgLane(LoopLane):
    """One connection of one event loop."""

    def __init__(self, address: Address, until: float, connection: Any) -> None:
        super().__init__(address, until)
        self._connection = connection
        self._prepared: dict[str, Any] = {}

    @classmethod
    async def connect(cls, address: Address) -> AsyncpgLane:
        """Return a lane that is connected."""
        until = time.monotonic() + address.timeout
        lane = cls(address, until, await connected(address))
        try:
            probed(address, await lane.execute(PROBE, (address.name,)))
        except BaseException:
            lane.close()
            raise
        return lane

    def usable(self) -> bool:
        """See `AsyncLane.usable`."""
        return not self._connection.is_closed()

    def close(self) -> None:
        """See `AsyncLane.close`."""
        with contextlib.suppress(RuntimeError):  # its loop has ended, and the socket goes with the connection
            self._connection.terminate()

    async def execute(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        """See `BlockingLane.execute`."""
        try:
            if self.address.pgbouncer:
                return await self._in_transaction(statement, values)
            left = self.until - time.monotonic()
            prepared = self._prepared.get(statement)
            if prepared is None:
                prepared = self._prepared[statement] = await self._connection.prepare(statement, timeout=left)
            rows: Sequence[Row] = await prepared.fetch(*values, timeout=self.until - time.monotonic())
            return rows
        except (_asyncpg.PostgresError, _asyncpg.InterfaceError, _asyncpg.InternalClientError, OSError) as error:
            failure = self._told(error)
        raise failure  # out here, without asyncpg's error as its context: that tells the values of the row

    async def _in_transaction(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        """Send it so that pgbouncer gives it one server connection: asyncpg prepares and executes separately."""
        async with (
            asyncio.timeout(self.until - time.monotonic()),
            self._connection.transaction(isolation="read_committed"),
        ):
            rows: Sequence[Row] = await self._connection.fetch(statement, *values)
            return rows

    def _told(self, error: Exception) -> StoreUnavailable:
        where = self.address.where
        if isinstance(error, TimeoutError):
            return late(where, self.address.timeout)
        if self._connection.is_closed():
            return lost(where)
        if isinstance(error, _asyncpg.PostgresError):
            return told(where, cast("Any", error).sqlstate)
        if isinstance(error, _asyncpg.InterfaceError):  # asyncpg itself could not send the values
            return RefusedRow(f"{where}: the values of one record can't be sent ({type(error).__name__}).")
        return lost(where)


async def connected(address: Address) -> Any:
    """Return a connection of asyncpg's."""
    cache: Any = {"statement_cache_size": 0} if address.pgbouncer else {}
    try:
        return await _asyncpg.connect(
            address.url,
            timeout=address.timeout,
            server_settings=address.settings | {"application_name": address.application},
            **cache,
        )
    except TimeoutError:
        raise unreachable(address.where, f"no answer within {address.timeout:g} s.") from None
    except _asyncpg.PostgresError as error:
        raise unreachable(address.where, f"{error} (SQLSTATE {error.sqlstate}).") from None
    except (OSError, _asyncpg.InterfaceError, _asyncpg.InternalClientError) as error:
        raise unreachable(address.where, f"{type(error).__name__}.") from None
