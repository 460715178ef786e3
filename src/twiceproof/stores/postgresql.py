"""Records in a PostgreSQL 12 or later: for any number of processes and hosts."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, Unpack, cast

import twiceproof.stores._postgresql_verbs as verbs
from twiceproof.core._record import ClaimAnswer, ClaimRef, NewRecord, Record, UnsettledAnswer, WriteAnswer
from twiceproof.errors import ConfigurationError, UnknownFormat
from twiceproof.stores._lanes import AsyncLane
from twiceproof.stores._loop_lanes import LanesByLoop
from twiceproof.stores._per_process import PerProcess
from twiceproof.stores._protocol import Capabilities, Filter, Page, Purged
from twiceproof.stores._thread_lanes import ThreadLanes

try:
    from twiceproof.stores._postgresql_address import Address, Options
    from twiceproof.stores._postgresql_check import check_server, make_schema
    from twiceproof.stores._postgresql_psycopg import AsyncPsycopgLane, PsycopgLane
except ModuleNotFoundError as error:
    if error.name != "psycopg":
        raise
    raise ImportError("The PostgreSQL store needs psycopg: pip install 'twiceproof[postgresql]'") from error

from twiceproof.stores._postgresql_schema import schema_sql
from twiceproof.stores._postgresql_verbs import Verb

T = TypeVar("T")
_CAPABILITIES: Final = Capabilities(durable=True, shared=True)


class PostgresqlStore:
    """Keep records in PostgreSQL, through psycopg, from any number of threads, processes and hosts.

    ``url`` is ``postgresql://user:password@host:5432/database``, with libpq's own options and those of ours that have
    the same name as an argument here, which win; or libpq's connection string. ``twiceproof store init`` makes the
    table. Each process has ``connections`` at most, shared by all its threads: calls that wait at the same moment go
    out together. ``pgbouncer=True`` leaves out what pgbouncer's transaction mode does not take.
    """

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        self._address = Address.of(url, **options)
        self._sql = self._address.statements
        self._lanes = PerProcess(partial(_thread_lanes, self._address))
        weakref.finalize(self, self._lanes.close)  # where nobody calls close: at exit, or when it is dropped

    def __str__(self) -> str:
        return f"postgresql, {self._address.where}"

    @property
    def capabilities(self) -> Capabilities:
        """Durable, and shared between hosts."""
        return _CAPABILITIES

    def open(self) -> None:
        """Connect once; raises `ConfigurationError` for the schema of a later release."""
        try:
            self.get(b"")
        except UnknownFormat as error:
            raise ConfigurationError(str(error)) from None

    def schema(self) -> str:
        """See `HasSchema.schema`."""
        return schema_sql(self._address.schema, self._address.table)

    def init(self) -> None:
        """See `HasSchema.init`."""
        make_schema(self._address)

    def close(self) -> None:
        """Close what this process has open; what was called before is still answered, a later verb opens again."""
        self._lanes.close()

    def check(self) -> Sequence[str]:
        """See `Store.check`; a server that can't be reached right now is a warning, not an error."""
        return check_server(self._address)

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`."""
        return self._run(verbs.claim(self._sql, new, lease, nonce, after))

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        return self._run(verbs.claim_unsettled(self._sql, id, lease, nonce, every, force=force))

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`."""
        return self._run(verbs.renew(self._sql, claims, lease)) if claims else []

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        return self._run(verbs.complete(self._sql, id, nonce, answer, retention))

    def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        return self._run(verbs.release(self._sql, id, nonce))

    def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        return self._run(verbs.park(self._sql, id, nonce, cause))

    def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        return self._run(verbs.forget(self._sql, id, nonce))

    def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        return self._run(verbs.get(self._sql, id))

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `Store.scan`; raises `ValueError` for a cursor that no page carried."""
        return self._run(verbs.scan(self._sql, filter, cursor, limit))

    def purge(self, limit: int) -> Purged:
        """See `Store.purge`; where another process is at it, nothing is left for this one."""
        return self._run(verbs.purge(self._sql, limit))

    def renewer(self) -> PostgresqlStore:
        """Return a store on a connection of its own."""
        return _renewer(self._address)

    def _run(self, verb: Verb[T]) -> T:
        return cast("T", self._lanes.mine.run(verb))


class _AsyncStore:
    """The asynchronous colour of `PostgresqlStore`, for any number of event loops, over any driver."""

    def __init__(self, where: Address, connect: Callable[[], Awaitable[AsyncLane[Any]]]) -> None:
        self._address = where
        self._sql = where.statements
        self._lanes = PerProcess(partial(_loop_lanes, where, connect))
        weakref.finalize(self, self._lanes.close)

    def __str__(self) -> str:
        return f"postgresql, {self._address.where}"

    @property
    def capabilities(self) -> Capabilities:
        """See `PostgresqlStore.capabilities`."""
        return _CAPABILITIES

    async def open(self) -> None:
        """See `PostgresqlStore.open`."""
        try:
            await self.get(b"")
        except UnknownFormat as error:
            raise ConfigurationError(str(error)) from None

    def schema(self) -> str:
        """See `HasSchema.schema`."""
        return schema_sql(self._address.schema, self._address.table)

    def init(self) -> None:
        """See `HasSchema.init`; blocking, like `check`."""
        make_schema(self._address)

    async def close(self) -> None:
        """See `PostgresqlStore.close`."""
        self._lanes.close()

    def check(self) -> Sequence[str]:
        """See `PostgresqlStore.check`."""
        return check_server(self._address)

    async def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`."""
        return await self._run(verbs.claim(self._sql, new, lease, nonce, after))

    async def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        return await self._run(verbs.claim_unsettled(self._sql, id, lease, nonce, every, force=force))

    async def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`."""
        return await self._run(verbs.renew(self._sql, claims, lease)) if claims else []

    async def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        return await self._run(verbs.complete(self._sql, id, nonce, answer, retention))

    async def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        return await self._run(verbs.release(self._sql, id, nonce))

    async def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        return await self._run(verbs.park(self._sql, id, nonce, cause))

    async def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        return await self._run(verbs.forget(self._sql, id, nonce))

    async def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        return await self._run(verbs.get(self._sql, id))

    async def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `PostgresqlStore.scan`."""
        return await self._run(verbs.scan(self._sql, filter, cursor, limit))

    async def purge(self, limit: int) -> Purged:
        """See `PostgresqlStore.purge`."""
        return await self._run(verbs.purge(self._sql, limit))

    def renewer(self) -> PostgresqlStore:
        """Return a blocking store, through psycopg, on a connection of its own."""
        return _renewer(self._address)

    async def _run(self, verb: Verb[T]) -> T:
        return cast("T", await self._lanes.mine.here.run(verb))


class AsyncPostgresqlStore(_AsyncStore):
    """The asynchronous colour of `PostgresqlStore`, through psycopg; the same arguments."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        where = Address.of(url, **options)
        super().__init__(where, partial(AsyncPsycopgLane.connect, where))


class AsyncpgStore(_AsyncStore):
    """The asynchronous colour of `PostgresqlStore`, through asyncpg, which is faster; the same arguments.

    ``url`` is ``postgresql+asyncpg://…``. The engine's own thread renews and purges through psycopg.
    """

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        try:
            from twiceproof.stores._postgresql_asyncpg import AsyncpgLane
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise ImportError("AsyncpgStore needs asyncpg: pip install 'twiceproof[asyncpg]'") from error
        where = Address.of(url, **options)
        super().__init__(where, partial(AsyncpgLane.connect, where))


def _renewer(where: Address) -> PostgresqlStore:
    return PostgresqlStore(where.url, **where.options | {"connections": 1})


def _thread_lanes(where: Address) -> ThreadLanes[Verb[Any]]:
    return ThreadLanes(partial(PsycopgLane, where), where.where, size=where.connections, timeout=where.timeout)


def _loop_lanes(where: Address, connect: Callable[[], Awaitable[AsyncLane[Any]]]) -> LanesByLoop[Verb[Any]]:
    return LanesByLoop(connect, where.where, size=where.connections, timeout=where.timeout)
