"""What the processes of test_sqlite_processes.py do: ``python -m tests.stores.sqlite_child VERB PATH …``."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from twiceproof.core._record import Granted, NewRecord
from twiceproof.errors import StoreUnavailable
from twiceproof.stores import Filter
from twiceproof.stores.sqlite import AsyncSqliteStore, SqliteStore
from twiceproof.testing.store_contract._ground import KEEP, ONCE


def record(number: int) -> NewRecord:
    """Return the record that every process means by ``number``."""
    return NewRecord(b"id-%032d" % number, "tests", b"p", "POST /", "/", b"k", b"f", ONCE, KEEP * 1000)


def say(word: str) -> None:
    """Tell the test."""
    print(word, flush=True)


def duplicates(path: str, name: str, begin_at: str, keys: str) -> None:
    """Claim each key 50 times at once and complete what was granted; print the keys that were granted here."""
    store = SqliteStore(path, timeout=20.0)
    time.sleep(max(0.0, float(begin_at) - time.time()))

    def claim(turn: int, key: int) -> str | None:
        nonce = f"{name}-{turn}-{key}".encode()
        new = record(key)
        if type(store.claim(new, 60.0, nonce)) is not Granted:
            return None
        store.complete(new.id, nonce, nonce, 600.0)
        return str(key)

    with ThreadPoolExecutor(8) as pool:
        for key in range(int(keys)):
            for won in pool.map(claim, range(50), [key] * 50):
                if won is not None:
                    say(won)
    store.close()
    say("end")


def hold(path: str) -> None:
    """Claim key 1, tell, and wait to be killed."""
    store = SqliteStore(path)
    say(type(store.claim(record(1), 1.0, b"held")).__name__)
    time.sleep(60)


def vanish(path: str) -> None:
    """Claim key 1 and die at once, with nothing flushed or closed."""
    store = SqliteStore(path)
    store.claim(record(1), 60.0, b"held")
    os._exit(9)


def leave(path: str) -> None:
    """Claim key 1 and end as a program ends, without closing; its queue is done, and no log stays behind."""
    store = SqliteStore(path)
    store.claim(record(1), 60.0, b"held")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: store.claim(record(number), 60.0, b"n%d" % number), range(2, 30)))


def look(path: str) -> None:
    """Begin while another process holds the lock: open, list, read, and claim what is there and what is not."""
    store = SqliteStore(path, timeout=0.3)
    store.open()
    say(str(len(store.scan(Filter()).records)))
    say(type(store.get(record(1).id)).__name__)
    say(type(store.claim(record(1), 60.0, b"late")).__name__)
    say(type(store.claim_unsettled(record(1).id, 60.0, b"hook", 0.0)).__name__)
    try:
        store.claim(record(3), 60.0, b"late")
    except StoreUnavailable as error:
        say(type(error).__name__)
    store.close()
    asyncio.run(look_asynchronously(path))


async def look_asynchronously(path: str) -> None:
    """Do the same in the other colour."""
    store = AsyncSqliteStore(path, timeout=0.3)
    say(type(await store.claim(record(2), 60.0, b"late")).__name__)
    await store.open()
    say(str(len((await store.scan(Filter())).records)))
    await store.close()


def fork(path: str) -> None:
    """Use the store, fork, and use it in the child and again in the parent."""
    store = SqliteStore(path)
    store.claim(record(1), 60.0, b"parent")
    child = os.fork()
    if child == 0:
        say(type(store.claim(record(1), 60.0, b"child")).__name__)
        say(type(store.claim(record(2), 60.0, b"child")).__name__)
        say(type(store.complete(record(2).id, b"child", b"answer", 60.0)).__name__)
        store.close()
        del store
        sys.exit(0)
    os.waitpid(child, 0)
    say(type(store.claim(record(2), 60.0, b"parent")).__name__)
    say(type(store.claim(record(3), 60.0, b"parent")).__name__)
    say(type(store.complete(record(1).id, b"parent", b"answer", 60.0)).__name__)
    store.close()


if __name__ == "__main__":
    VERBS: dict[str, Callable[..., None]] = {
        "duplicates": duplicates,
        "fork": fork,
        "hold": hold,
        "leave": leave,
        "look": look,
        "vanish": vanish,
    }
    VERBS[sys.argv[1]](*sys.argv[2:])
