"""What protection costs: the same requests with and without it, in this process, interleaved block by block.

    python bench/overhead.py [--json] [--blocks 21]

Figures are ratios within one run, from the median block; quartiles show how much the machine moved meanwhile. It
prints and never fails: a figure is for people to judge.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from _measure import Case, measure, ratio, summary
from fastapi import FastAPI
from pydantic import BaseModel

from twiceproof import Policy
from twiceproof.core._record import Guarantee, NewRecord
from twiceproof.server.asgi import IdempotencyMiddleware
from twiceproof.server.fastapi import Idempotency, anonymous
from twiceproof.stores import open_async_store
from twiceproof.stores.memory import AsyncMemoryStore

BODY = b'{"amount": 5000, "currency": "USD", "to": "acct_123"}'
HEADERS = [
    (b"host", b"127.0.0.1:8000"),
    (b"accept", b"*/*"),
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(BODY)),
]
keys = count()


class Transfer(BaseModel):
    amount: int
    currency: str
    to: str


async def post(app: Any, key: bytes | None, path: str = "/transfers") -> None:
    """Send one request to an ASGI application and take its answer."""
    given = [{"type": "http.request", "body": BODY, "more_body": False}]
    status = 0

    async def receive() -> dict[str, Any]:
        return given.pop()

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": HEADERS if key is None else [*HEADERS, (b"idempotency-key", key)],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    await app(scope, receive, send)
    assert status == 201, status


def requests_to(app: Any, *, key: Callable[[], bytes | None]) -> Case:
    """Return a case that sends n requests one after another."""

    async def case(n: int) -> None:
        for _ in range(n):
            await post(app, key())

    return case


def new_key() -> bytes:
    return b"key-%d-%d" % (os.getpid(), next(keys))


def bank(door: Idempotency | None = None) -> FastAPI:
    app = FastAPI()

    async def transfer(transfer: Transfer) -> Transfer:
        return transfer

    app.post("/transfers", status_code=201)(door.operation(required=True)(transfer) if door else transfer)
    if door:
        door.install(app)
    return app


async def null_app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b'{"id": 1}'})


async def fastapi_cases(blocks: int) -> dict[str, Any]:
    """FastAPI over the memory store: a first request and a replay, against the bare application."""
    door = Idempotency(store=AsyncMemoryStore(max_records=1_000_000), principal=anonymous, accept_volatile=True)
    plain, protected = bank(), bank(door)
    await post(protected, b"the-same")
    seen = await measure(
        {
            "bare": requests_to(plain, key=new_key),
            "first": requests_to(protected, key=new_key),
            "replay": requests_to(protected, key=lambda: b"the-same"),
        },
        100,
        blocks,
    )
    await door.engine.close()
    return {
        "microseconds": summary(seen),
        "first_over_bare": ratio(seen["first"], seen["bare"]),
        "replay_over_bare": ratio(seen["replay"], seen["bare"]),
    }


async def keyless_cases(blocks: int) -> dict[str, Any]:
    """A null application: what a request without a key pays (best blocks, since the sum is so small)."""
    wrapped = IdempotencyMiddleware(
        null_app, store="memory://", principal=anonymous, policy=Policy(), accept_volatile=True
    )
    seen = await measure(
        {"bare": requests_to(null_app, key=lambda: None), "keyless": requests_to(wrapped, key=lambda: None)},
        500,
        max(20, blocks),
    )
    return {"microseconds": summary(seen), "added_best": round(min(seen["keyless"]) - min(seen["bare"]), 2)}


class HandPair:
    """Claim and complete as one would write them by hand: two statements, each its own durable commit."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("CREATE TABLE keys (id BLOB PRIMARY KEY, fingerprint BLOB, token INT, until REAL, answer BLOB)")

    async def __call__(self, n: int) -> None:
        for _ in range(n):
            id = b"%032d" % next(keys)
            self.db.execute(
                "INSERT INTO keys VALUES (?, ?, 1, julianday('now') + 30, NULL) ON CONFLICT DO NOTHING", (id, b"f" * 66)
            )
            self.db.execute(
                "UPDATE keys SET answer = ? WHERE id = ? AND token = 1 AND answer IS NULL", (b"a" * 512, id)
            )


def new_record() -> NewRecord:
    id = b"%032d" % next(keys)
    return NewRecord(id, "bench", b"p" * 32, "POST /t", "/t", id, b"f" * 66, Guarantee.AT_MOST_ONCE, 86_400.0)


async def sqlite_cases(blocks: int, folder: Path) -> dict[str, Any]:
    """SQLite, synchronous=FULL: what a first request adds, against the pair written by hand; and 64 at once."""
    hand = HandPair(folder / "hand.db")
    wrapped = IdempotencyMiddleware(null_app, store=f"sqlite:///{folder}/ours.db", principal=anonymous, policy=Policy())
    store = open_async_store(f"sqlite:///{folder}/store.db")
    await store.open()

    async def pair() -> None:
        new = new_record()
        nonce = new.id[-16:]
        await store.claim(new, 30.0, nonce)
        await store.complete(new.id, nonce, b"a" * 512, 86_400.0)

    async def alone(n: int) -> None:
        for _ in range(n):
            await pair()

    async def together(n: int) -> None:
        async def worker(rounds: int) -> None:
            for _ in range(rounds):
                await pair()

        await asyncio.gather(*(worker(n // 64) for _ in range(64)))

    seen = await measure(
        {
            "bare": requests_to(null_app, key=new_key),
            "first": requests_to(wrapped, key=new_key),
            "hand": hand,
            "store": alone,
        },
        64,
        blocks,
    )
    crowd = await measure({"hand": hand, "64 tasks": together}, 640, max(9, blocks // 2))
    await wrapped.engine.close()
    await store.close()
    added = [first - bare for first, bare in zip(seen["first"], seen["bare"], strict=True)]
    return {
        "microseconds": summary(seen),
        "added_over_hand": ratio(added, seen["hand"]),
        "store_over_hand": ratio(seen["store"], seen["hand"]),
        "throughput_64_over_hand": ratio(crowd["hand"], crowd["64 tasks"]),
    }


async def run(blocks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="twiceproof-bench-") as folder:
        return {
            "python": sys.version.split()[0],
            "fastapi_memory": await fastapi_cases(blocks),
            "null_app_keyless": await keyless_cases(blocks),
            "sqlite_full": await sqlite_cases(blocks, Path(folder)),
        }


def show(report: dict[str, Any]) -> None:
    print("Python", report["python"])
    for name, part in report.items():
        if name == "python":
            continue
        print(f"\n{name}")
        for case, values in part["microseconds"].items():
            print(f"  {case:<10} {values['median']:>9.1f} µs  ({values['lower']:.1f} to {values['upper']:.1f})")
        for figure, value in part.items():
            if figure == "microseconds":
                continue
            if isinstance(value, dict):
                print(f"  {figure:<26} {value['median']:.2f}  ({value['lower']:.2f} to {value['upper']:.2f})")
            else:
                print(f"  {figure:<26} {value:.2f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--blocks", type=int, default=41, help="blocks per case, at least 9")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    report = asyncio.run(run(max(9, options.blocks)))
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)


if __name__ == "__main__":
    main()
