"""One of the racing processes of test_races.py: ``python -m tests.stores.race_child COLOUR URL EFFECTS``.

It says ``ready``; for each key that it reads it sends 50 duplicates at once and prints one line of JSON: how often each
answer came. Each run of the handler appends one line to the file EFFECTS.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from twiceproof import AsyncEngine, Engine, Policy
from twiceproof.core._messages import Request, Response

DUPLICATES: Final = 50
POLICY: Final = Policy()


def request(key: str) -> Request:
    """Return the request that all of them send for ``key``."""
    headers = ((b"content-type", b"application/json"), (b"idempotency-key", key.encode()))
    return Request("POST", b"/transfers", b"", headers, b'{"amount": 5000}')


def kind(response: Response) -> str:
    """Return what counts about an answer: its status, whether it is a replay, and its body where the handler ran."""
    names = {name.lower() for name, _ in response.headers}
    if response.status >= 400:
        return str(response.status)
    replayed = "replayed " if b"idempotent-replayed" in names else ""
    return f"{replayed}{response.status} {bytes(response.body or b'').decode()}"


def effect(effects: str, key: str) -> Response:
    """Take effect, once for each call."""
    line = f"{key} {os.getpid()}\n".encode()
    file = os.open(effects, os.O_WRONLY | os.O_APPEND)
    os.write(file, line)
    os.close(file)
    return Response(201, ((b"content-type", b"text/plain"),), line.strip())


def keys() -> Iterable[str]:
    """Yield each key as it comes."""
    for line in sys.stdin:
        yield line.strip()


def tell(answers: Iterable[Response]) -> None:
    """Print the answers of one round."""
    print(json.dumps(Counter(map(kind, answers))), flush=True)


def blocking(url: str, effects: str) -> None:
    """Race with threads."""
    engine = Engine(url, namespace="races", store_timeout=20.0)
    engine.open()

    def one(key: str) -> Response:
        return engine.handle(request(key), "acct_1", POLICY, lambda *_: effect(effects, key))

    with ThreadPoolExecutor(DUPLICATES) as pool:
        print("ready", flush=True)
        for key in keys():
            tell(list(pool.map(one, [key] * DUPLICATES)))
    engine.close()


def asynchronous(url: str, effects: str) -> None:
    """Race with tasks."""

    async def main() -> None:
        engine = AsyncEngine(url, namespace="races", store_timeout=20.0)
        await engine.open()

        async def one(key: str) -> Response:
            async def handler(*_: object) -> Response:
                return effect(effects, key)

            return await engine.handle(request(key), "acct_1", POLICY, handler)

        print("ready", flush=True)
        for key in keys():
            tell(await asyncio.gather(*(one(key) for _ in range(DUPLICATES))))
        await engine.close()

    asyncio.run(main())


COLOURS: Final[dict[str, Callable[[str, str], None]]] = {"blocking": blocking, "async": asynchronous}

if __name__ == "__main__":
    COLOURS[sys.argv[1]](*sys.argv[2:])
