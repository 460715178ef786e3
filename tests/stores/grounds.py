"""The stores that several processes share, on servers of their own: what the failure tests run over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from twiceproof.stores import open_store
from twiceproof.testing.servers import PostgresqlServer, ValkeyServer


@contextmanager
def sqlite(folder: Path) -> Iterator[tuple[Any, str]]:
    """Yield no server, and the URL of a file."""
    yield None, f"sqlite:///{folder}/keys.db"


@contextmanager
def postgresql(_: Path) -> Iterator[tuple[Any, str]]:
    """Yield a PostgreSQL of its own with our table, and its URL."""
    with PostgresqlServer() as server:
        initialised(server.url)
        yield server, server.url


@contextmanager
def asyncpg(folder: Path) -> Iterator[tuple[Any, str]]:
    """Yield the same for asyncpg."""
    with postgresql(folder) as (server, url):
        yield server, url.replace("postgresql:", "postgresql+asyncpg:")


@contextmanager
def redis(_: Path) -> Iterator[tuple[Any, str]]:
    """Yield a Valkey that has on disk what it acknowledged, and its URL."""
    with ValkeyServer({"appendfsync": "always"}) as server:
        yield server, server.url


def initialised(url: str) -> None:
    """Make the schema."""
    store: Any = open_store(url)
    store.init()
    store.close()


Ground = Callable[[Path], Any]
SERVERS: Final[dict[str, Ground]] = {"postgresql": postgresql, "postgresql+asyncpg": asyncpg, "redis": redis}
BLOCKING: Final[dict[str, Ground]] = {"sqlite": sqlite, "postgresql": postgresql, "redis": redis}
