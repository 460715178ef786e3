"""One of several processes that claim and complete the same keys: ``URL KIND PROCESS KEYS COPIES PGBOUNCER``.

It prints "ready", waits for a line, and prints how often each answer came, per key.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter

from tests.stores.postgresql_support import STORES
from twiceproof.stores import in_threads
from twiceproof.testing.store_contract._ground import AGAIN, new_record


async def main(url: str, kind: str, process: str, keys: int, copies: int, *, pgbouncer: bool) -> None:
    made = STORES[kind](url, timeout=20.0, pgbouncer=pgbouncer)
    store = made if "async" in kind else in_threads(made)
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    answers: Counter[str] = Counter()

    async def call(key: int, copy: int) -> None:
        nonce = f"{process}/{copy}".encode()
        guarantee = AGAIN if key % 2 else new_record().guarantee
        answer = await store.claim(new_record(guarantee, id=b"key %d" % key), 60.0, nonce)
        answers[f"{key} {type(answer).__name__}"] += 1
        if type(answer).__name__ == "Granted":
            done = await store.complete(b"key %d" % key, nonce, nonce, 600.0)
            answers[f"{key} {type(done).__name__}"] += 1

    calls = [(key, copy) for key in range(keys) for copy in range(copies)]
    random.shuffle(calls)
    await asyncio.gather(*(call(*one) for one in calls))
    await store.close()
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    _, url, kind, process, keys, copies, pgbouncer = sys.argv
    asyncio.run(main(url, kind, process, int(keys), int(copies), pgbouncer=pgbouncer == "pgbouncer"))
