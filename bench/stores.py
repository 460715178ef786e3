"""PostgreSQL and Redis/Valkey stores against the same work written by hand: same driver, server and durability.

    python bench/stores.py [--json] [--blocks 11] [--records 1000000]

It starts a PostgreSQL and a Valkey of its own. A pair is one claim and one completion, each its own commit. Cases take
turns within each block; figures are ratios of neighbouring blocks within one run, their median and quartiles. It prints
and never fails. ``--records N`` also fills each store with up to N completed records, and measures as it grows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import asyncpg
import psycopg
import redis.asyncio
from _measure import Case, measure, ratio, summary

from twiceproof import Policy
from twiceproof.core._record import Done, Found, Granted, Guarantee, NewRecord
from twiceproof.server.asgi import IdempotencyMiddleware
from twiceproof.server.fastapi import anonymous
from twiceproof.stores import AsyncStore, Store, open_async_store, open_store
from twiceproof.testing.servers import PostgresqlServer, ValkeyServer

ANSWER: Final = b"a" * 512
TOGETHER: Final = 64
HAND_CONNECTIONS: Final = 16
keys = count()


def new_record(id: bytes | None = None) -> NewRecord:
    id = id or b"%010d%022d" % (os.getpid(), next(keys))
    return NewRecord(id, "bench", b"p" * 32, "POST /t", "/t", id, b"f" * 66, Guarantee.AT_MOST_ONCE, 86_400.0)


# ---- by hand ---------------------------------------------------------------------------------------------------------

TABLE = "CREATE TABLE hand (id bytea PRIMARY KEY, fingerprint bytea, nonce bytea, until timestamptz, answer bytea)"
INSERT = "INSERT INTO hand VALUES ({}, {}, {}, now() + interval '30 s') ON CONFLICT DO NOTHING RETURNING nonce"
UPDATE = "UPDATE hand SET answer = {} WHERE id = {} AND nonce = {} AND answer IS NULL"
SELECT = "SELECT fingerprint, nonce, until, answer FROM hand WHERE id = {}"
SET_IF = """
if redis.call('HGET', KEYS[1], 'nonce') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'answer', ARGV[2])
redis.call('PEXPIRE', KEYS[1], 86400000)
return 1
"""

Pair = Callable[[bytes], Awaitable[None]]
"""Claims and completes one id on one connection."""


def numbered(statement: str) -> str:
    return statement.format(*(f"${at + 1}" for at in range(statement.count("{}"))))


class AsyncpgHand:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, server: Any) -> AsyncpgHand:
        return cls(await asyncpg.connect(server.url))

    async def pair(self, id: bytes) -> None:
        row = await self.connection.fetchrow(numbered(INSERT), id, b"f" * 66, id[-16:])
        assert row is not None
        assert await self.connection.execute(numbered(UPDATE), ANSWER, id, id[-16:]) == "UPDATE 1"

    async def read(self, id: bytes) -> None:
        assert await self.connection.fetchrow(numbered(SELECT), id) is not None

    async def close(self) -> None:
        await self.connection.close()


class PsycopgHand:
    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self.connection = connection
        self.cursor = connection.cursor(binary=True)

    @classmethod
    async def connect(cls, server: Any) -> PsycopgHand:
        return cls(await psycopg.AsyncConnection.connect(server.url, autocommit=True, prepare_threshold=0))

    async def pair(self, id: bytes) -> None:
        await self.cursor.execute(INSERT.replace("{}", "%s"), (id, b"f" * 66, id[-16:]))
        assert await self.cursor.fetchone() is not None
        await self.cursor.execute(UPDATE.replace("{}", "%s"), (ANSWER, id, id[-16:]))
        assert self.cursor.rowcount == 1

    async def read(self, id: bytes) -> None:
        await self.cursor.execute(SELECT.replace("{}", "%s"), (id,))
        assert await self.cursor.fetchone() is not None

    async def close(self) -> None:
        await self.connection.close()


class BlockingPsycopgHand:
    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor(binary=True)

    @classmethod
    async def connect(cls, server: Any) -> BlockingPsycopgHand:
        return cls(psycopg.connect(server.url, autocommit=True, prepare_threshold=0))

    async def pair(self, id: bytes) -> None:
        self.cursor.execute(INSERT.replace("{}", "%s"), (id, b"f" * 66, id[-16:]))
        assert self.cursor.fetchone() is not None
        self.cursor.execute(UPDATE.replace("{}", "%s"), (ANSWER, id, id[-16:]))
        assert self.cursor.rowcount == 1

    async def read(self, id: bytes) -> None:
        self.cursor.execute(SELECT.replace("{}", "%s"), (id,))
        assert self.cursor.fetchone() is not None

    async def close(self) -> None:
        self.connection.close()


class RedisHand:
    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.client = client
        self.complete = client.register_script(SET_IF)
        self.claim = client.register_script(
            "if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('HGETALL', KEYS[1]) end "
            "redis.call('HSET', KEYS[1], 'nonce', ARGV[1], 'fingerprint', ARGV[2]) "
            "redis.call('PEXPIRE', KEYS[1], 30000) return 1"
        )

    @classmethod
    async def connect(cls, server: Any) -> RedisHand:
        return cls(redis.asyncio.Redis(port=server.port, single_connection_client=True))

    async def pair(self, id: bytes) -> None:
        assert await self.claim(keys=[b"hand:" + id], args=[id[-16:], b"f" * 66]) == 1
        assert await self.complete(keys=[b"hand:" + id], args=[id[-16:], ANSWER]) == 1

    async def read(self, id: bytes) -> None:
        assert await self.client.hgetall(b"hand:" + id)

    async def close(self) -> None:
        await self.client.aclose()


class RedisSetHand(RedisHand):
    """The pair as `SET NX PX` and a compare-and-set script."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        super().__init__(client)
        self.complete = client.register_script(
            "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end "
            "redis.call('SET', KEYS[1], ARGV[2], 'PX', 86400000) return 1"
        )

    async def pair(self, id: bytes) -> None:
        claimed = b"f" * 66 + id[-16:]
        assert await self.client.set(b"hand:" + id, claimed, nx=True, px=30_000)
        assert await self.complete(keys=[b"hand:" + id], args=[claimed, ANSWER]) == 1

    async def read(self, id: bytes) -> None:
        assert await self.client.get(b"hand:" + id)


# ---- ours ------------------------------------------------------------------------------------------------------------


async def claim_and_complete(store: AsyncStore, id: bytes | None = None) -> bytes:
    new = new_record(id)
    nonce = new.id[-16:]
    assert type(await store.claim(new, 30.0, nonce)) is Granted
    assert await store.complete(new.id, nonce, ANSWER, 86_400.0) == Done()
    return new.id


class InTurn:
    """A blocking store, called on the loop's own thread: one call at a time, nothing else runs."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def claim(self, *arguments: Any) -> Any:
        return self.store.claim(*arguments)

    async def complete(self, *arguments: Any) -> Any:
        return self.store.complete(*arguments)

    async def purge(self, limit: int) -> Any:
        return self.store.purge(limit)

    async def open(self) -> None:
        self.store.open()

    async def close(self) -> None:
        self.store.close()


def one_by_one(operation: Callable[[], Awaitable[Any]]) -> Case:
    async def case(n: int) -> None:
        for _ in range(n):
            await operation()

    return case


def together(operation: Callable[[], Awaitable[Any]]) -> Case:
    """64 tasks, each a part of the n."""

    async def worker(rounds: int) -> None:
        for _ in range(rounds):
            await operation()

    async def case(n: int) -> None:
        await asyncio.gather(*(worker(n // TOGETHER) for _ in range(TOGETHER)))

    return case


@asynccontextmanager
async def borrowed(hands: list[Any], turn: asyncio.Semaphore) -> AsyncIterator[Any]:
    async with turn:
        hand = hands.pop()
        try:
            yield hand
        finally:
            hands.append(hand)


async def store_cases(server: Any, url: str, hand_kind: Any, blocks: int, *, blocking: bool) -> dict[str, Any]:
    """One call at a time, then 64 at once."""
    store: Any = InTurn(open_store(url)) if blocking else open_async_store(url)
    await store.open()
    hand = await hand_kind.connect(server)
    known = b"%032d" % next(keys)
    await claim_and_complete(store, known)
    await hand.pair(known)

    async def replay() -> None:
        assert type(await store.claim(new_record(known), 30.0, b"other")) is Found

    seen = await measure(
        {
            "hand pair": one_by_one(lambda: hand.pair(new_record().id)),
            "pair": one_by_one(lambda: claim_and_complete(store)),
            "hand read": one_by_one(lambda: hand.read(known)),
            "replay": one_by_one(replay),
        },
        100,
        blocks,
    )
    report = {
        "microseconds": summary(seen),
        "pair_over_hand": ratio(seen["pair"], seen["hand pair"]),
        "replay_over_read": ratio(seen["replay"], seen["hand read"]),
    }
    if not blocking:
        hands = [await hand_kind.connect(server) for _ in range(HAND_CONNECTIONS)]
        turn = asyncio.Semaphore(HAND_CONNECTIONS)

        async def hand_pair() -> None:
            async with borrowed(hands, turn) as one:
                await one.pair(new_record().id)

        crowd = await measure(
            {"hand": together(hand_pair), "ours": together(lambda: claim_and_complete(store))}, 1280, blocks
        )
        report["throughput_64_over_hand"] = ratio(crowd["hand"], crowd["ours"])
        for one in hands:
            await one.close()
    await hand.close()
    await store.close()
    return report


async def http_cases(server: Any, url: str, hand_kind: Any, blocks: int) -> dict[str, Any]:
    """A whole replay through the ASGI middleware, against the bare read."""
    from overhead import null_app, post

    app = IdempotencyMiddleware(null_app, store=url, principal=anonymous, policy=Policy(), namespace="bench")
    hand = await hand_kind.connect(server)
    known = b"%032d" % next(keys)
    await hand.pair(known)
    await post(app, b"the-same")
    seen = await measure(
        {
            "hand read": one_by_one(lambda: hand.read(known)),
            "HTTP replay": one_by_one(lambda: post(app, b"the-same")),
            "HTTP first": one_by_one(lambda: post(app, b"key-%d" % next(keys))),
        },
        100,
        blocks,
    )
    await app.engine.close()
    await hand.close()
    added = [replay - read for replay, read in zip(seen["HTTP replay"], seen["hand read"], strict=True)]
    return {"microseconds": summary(seen), "replay_added": summary({"added": added})["added"]["median"]}


async def growth(url: str, most: int) -> dict[str, Any]:
    """Microseconds per claim and completion, replay and purged record, as the store grows to ``most`` records."""
    store: Any = open_async_store(url)
    await store.open()
    report: dict[str, Any] = {}
    records = 0
    for size in [size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= most]:
        last = b""

        async def add() -> None:
            nonlocal last
            last = await claim_and_complete(store)

        await together(add)(size - records)
        records = size
        known = last

        async def replay(known: bytes = known) -> None:
            assert type(await store.claim(new_record(known), 30.0, b"other")) is Found

        async def expire() -> None:
            new = new_record()
            await store.claim(new, 30.0, new.id[-16:])
            await store.complete(new.id, new.id[-16:], ANSWER, 0.001)

        seen = await measure({"pair": one_by_one(add), "replay": one_by_one(replay)}, 200, 9)
        await together(expire)(1024)
        await asyncio.sleep(0.05)
        start = time.perf_counter()
        purged = (await store.purge(1000)).records
        seen["purge"] = [(time.perf_counter() - start) / max(1, purged) * 1e6]
        report[f"{size}"] = {name: round(sorted(blocks)[len(blocks) // 2], 1) for name, blocks in seen.items()}
        print(f"{url.partition(':')[0]}: {size} records {report[f'{size}']}", file=sys.stderr)
    await store.close()
    return report


async def run(blocks: int, records: int) -> dict[str, Any]:
    report: dict[str, Any] = {"python": sys.version.split()[0]}
    with PostgresqlServer() as postgresql, ValkeyServer({"appendfsync": "always"}) as valkey:
        with psycopg.connect(postgresql.url, autocommit=True) as connection:
            connection.execute(TABLE)
        open_store(postgresql.url).init()  # type: ignore[attr-defined]
        by_asyncpg = postgresql.url.replace("postgresql:", "postgresql+asyncpg:")
        plan: list[tuple[str, Any, str, Any, bool]] = [
            ("asyncpg", postgresql, by_asyncpg, AsyncpgHand, False),
            ("psycopg", postgresql, postgresql.url, PsycopgHand, False),
            ("psycopg, blocking", postgresql, postgresql.url, BlockingPsycopgHand, True),
            ("valkey", valkey, valkey.url, RedisSetHand, False),
            ("valkey, against a hash", valkey, valkey.url, RedisHand, False),
        ]
        for name, server, url, hand, blocking in plan:
            print(f"{name} …", file=sys.stderr)
            report[name] = await store_cases(server, url, hand, blocks, blocking=blocking)
        report["HTTP, asyncpg"] = await http_cases(postgresql, by_asyncpg, AsyncpgHand, blocks)
        report["HTTP, valkey"] = await http_cases(valkey, valkey.url, RedisSetHand, blocks)
    if records:
        settings = {"fsync": False, "max_wal_size": "4GB"}  # the disk is not what this is about
        with PostgresqlServer(settings) as postgresql, ValkeyServer({"appendonly": False}) as valkey:
            open_store(postgresql.url).init()  # type: ignore[attr-defined]
            report["growth"] = {
                "postgresql": await growth(postgresql.url.replace("postgresql:", "postgresql+asyncpg:"), records),
                "valkey": await growth(valkey.url, records),
            }
    return report


def show(report: dict[str, Any]) -> None:
    print("Python", report.pop("python"))
    for size, figures in (report.pop("growth", None) or {}).items():
        print(f"\n{size} as it grows")
        for records, row in figures.items():
            print(f"  {records:>9} records  " + "  ".join(f"{name} {value} µs" for name, value in row.items()))
    for name, part in report.items():
        print(f"\n{name}")
        for case, values in part.pop("microseconds").items():
            print(f"  {case:<12} {values['median']:>9.1f} µs  ({values['lower']:.1f} to {values['upper']:.1f})")
        for figure, value in part.items():
            if isinstance(value, dict):
                print(f"  {figure:<26} {value['median']:.2f}  ({value['lower']:.2f} to {value['upper']:.2f})")
            else:
                print(f"  {figure:<26} {value:.2f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--blocks", type=int, default=11, help="blocks per case, at least 9")
    parser.add_argument("--records", type=int, default=0, help="also measure as the stores grow to so many records")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    report = asyncio.run(run(max(9, options.blocks), options.records))
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)


if __name__ == "__main__":
    main()
