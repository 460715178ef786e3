"""Records in a Redis 6.2 or later, or in a Valkey: for any number of processes and hosts."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

import twiceproof.stores._redis_walks as walks
from twiceproof.core._record import ClaimAnswer, ClaimRef, NewRecord, Record, UnsettledAnswer, WriteAnswer
from twiceproof.stores._cursor import checked_limit
from twiceproof.stores._loop_lanes import LanesByLoop
from twiceproof.stores._per_process import PerProcess
from twiceproof.stores._protocol import Capabilities, Filter, Page, Purged
from twiceproof.stores._redis_address import CONNECTIONS, PREFIX, Address, address
from twiceproof.stores._redis_verbs import Verb, Verbs
from twiceproof.stores._thread_lanes import ThreadLanes

try:
    from twiceproof.stores._redis_check import check_server
    from twiceproof.stores._redis_lanes import AnyVerb, AsyncRedisLane, RedisLane
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "redis":
        raise
    raise ImportError("The Redis store needs redis: pip install 'twiceproof[redis]'") from error

T = TypeVar("T")


class RedisStore:
    """Keep records in the Redis that ``url`` names (``redis://``, ``rediss://``, ``valkey://``), from any thread.

    All calls share ``connections`` connections, made at the first call, after `close` and after a fork. A verb takes at
    most ``timeout`` seconds. ``prefix`` begins the name of every key. The store is durable where `check` saw that the
    server writes a log of every change (``appendonly yes``) and evicts nothing.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 2.0,
        connections: int = CONNECTIONS,
        prefix: str = PREFIX,
        _offset: Callable[[], float] | None = None,
    ) -> None:
        self._address = address(url, timeout=timeout, connections=connections, prefix=prefix)
        self._capabilities = Capabilities(durable=False, shared=True)
        self._verbs = Verbs(self._address.prefix, _offset)
        self._lanes = PerProcess(partial(_lanes, self._address))
        self._twin = partial(RedisStore, url, timeout=timeout, connections=1, prefix=prefix, _offset=_offset)
        weakref.finalize(self, self._lanes.close)  # where nobody calls close: at exit, or when it is dropped

    def __str__(self) -> str:
        return f"redis, {self._address.where}"

    @property
    def capabilities(self) -> Capabilities:
        """Shared between hosts; durable, if `check` has seen so."""
        return self._capabilities

    def open(self) -> None:
        """Do nothing: there is no schema, and the first verb connects."""

    def close(self) -> None:
        """Close the connections when their calls are answered; a later verb opens new ones."""
        self._lanes.close()

    def check(self) -> Sequence[str]:
        """See `Store.check`; from then on `capabilities` say whether the server forgets."""
        findings = check_server(self._address)
        self._capabilities = Capabilities(durable=findings.durable, shared=True)
        return findings.notes

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`."""
        return self._run(self._verbs.claim(new, lease, nonce, after))

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        return self._run(self._verbs.claim_unsettled(id, lease, nonce, every, force=force))

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`."""
        return self._walk(walks.renew(self._verbs, claims, lease))

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        return self._run(self._verbs.complete(id, nonce, answer, retention))

    def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        return self._run(self._verbs.release(id, nonce))

    def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        return self._run(self._verbs.park(id, nonce, cause))

    def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        return self._run(self._verbs.forget(id, nonce))

    def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        return self._run(self._verbs.get(id))

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `Store.scan`; raises `ValueError` for a cursor that no page carried.

        Where few of many records are selected, a page may be shorter than its limit, even empty, and not the last.
        """
        return self._walk(walks.scan(self._verbs, filter, cursor, checked_limit(limit), self._address.timeout / 2))

    def purge(self, limit: int) -> Purged:
        """See `Store.purge`."""
        return self._walk(walks.purge(self._verbs, limit))

    def renewer(self) -> RedisStore:
        """Return a store with a connection of its own."""
        return self._twin()

    def _run(self, verb: Verb[T]) -> T:
        return cast("T", self._lanes.mine.run(verb))

    def _walk(self, walk: walks.Walk[T]) -> T:
        try:
            verb = next(walk)
            while True:
                verb = walk.send(self._run(verb))
        except StopIteration as end:
            return cast("T", end.value)


class AsyncRedisStore:
    """The asynchronous colour of `RedisStore`, for any number of event loops, each with its own connections."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 2.0,
        connections: int = CONNECTIONS,
        prefix: str = PREFIX,
        _offset: Callable[[], float] | None = None,
    ) -> None:
        self._address = address(url, timeout=timeout, connections=connections, prefix=prefix)
        self._capabilities = Capabilities(durable=False, shared=True)
        self._verbs = Verbs(self._address.prefix, _offset)
        self._lanes = PerProcess(partial(_loop_lanes, self._address))
        self._twin = partial(RedisStore, url, timeout=timeout, connections=1, prefix=prefix, _offset=_offset)
        weakref.finalize(self, self._lanes.close)

    def __str__(self) -> str:
        return f"redis, {self._address.where}"

    @property
    def capabilities(self) -> Capabilities:
        """See `RedisStore.capabilities`."""
        return self._capabilities

    async def open(self) -> None:
        """See `RedisStore.open`."""

    async def close(self) -> None:
        """See `RedisStore.close`."""
        self._lanes.close()
        await asyncio.sleep(0)  # the loop closes its sockets in its next turn, which could be none

    def check(self) -> Sequence[str]:
        """See `RedisStore.check`."""
        findings = check_server(self._address)
        self._capabilities = Capabilities(durable=findings.durable, shared=True)
        return findings.notes

    async def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`."""
        return await self._run(self._verbs.claim(new, lease, nonce, after))

    async def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        return await self._run(self._verbs.claim_unsettled(id, lease, nonce, every, force=force))

    async def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`."""
        return await self._walk(walks.renew(self._verbs, claims, lease))

    async def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        return await self._run(self._verbs.complete(id, nonce, answer, retention))

    async def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        return await self._run(self._verbs.release(id, nonce))

    async def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        return await self._run(self._verbs.park(id, nonce, cause))

    async def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        return await self._run(self._verbs.forget(id, nonce))

    async def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        return await self._run(self._verbs.get(id))

    async def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `RedisStore.scan`."""
        patience = self._address.timeout / 2
        return await self._walk(walks.scan(self._verbs, filter, cursor, checked_limit(limit), patience))

    async def purge(self, limit: int) -> Purged:
        """See `Store.purge`."""
        return await self._walk(walks.purge(self._verbs, limit))

    def renewer(self) -> RedisStore:
        """See `Store.renewer`."""
        return self._twin()

    async def _run(self, verb: Verb[T]) -> T:
        return cast("T", await self._lanes.mine.here.run(verb))

    async def _walk(self, walk: walks.Walk[T]) -> T:
        try:
            verb = next(walk)
            while True:
                verb = walk.send(await self._run(verb))
        except StopIteration as end:
            return cast("T", end.value)


def _lanes(at: Address) -> ThreadLanes[AnyVerb]:
    return ThreadLanes(partial(RedisLane, at), at.where, size=at.connections, timeout=at.timeout)


def _loop_lanes(at: Address) -> LanesByLoop[AnyVerb]:
    return LanesByLoop(partial(AsyncRedisLane.connect, at), at.where, size=at.connections, timeout=at.timeout)
