"""Make a store from a URL: ``sqlite:///keys.db``, ``postgresql://user@host/database``, ``memory://``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twiceproof.stores._url import parse_url

if TYPE_CHECKING:
    from twiceproof.stores._protocol import AsyncStore, Store


def open_store(url: str, *, timeout: float = 2.0) -> Store:
    """Return the blocking store that ``url`` names; nothing is opened before `Store.open` or the first verb.

    Raises `ConfigurationError` where the URL says something that no store understands, and `ImportError` where its
    driver is not installed. ``timeout`` is what a verb may take, in seconds; the memory store needs none.
    """
    target = parse_url(url)
    match target.scheme:
        case "memory":
            from twiceproof.stores.memory import MemoryStore

            return MemoryStore(**target.options)
        case "sqlite":
            from twiceproof.stores.sqlite import SqliteStore

            return SqliteStore(target.path, timeout=timeout, **target.options)
        case "redis" | "rediss" | "valkey" | "valkeys":
            from twiceproof.stores.redis import RedisStore

            return RedisStore(url, timeout=timeout)
        case _:
            from twiceproof.stores.postgresql import PostgresqlStore

            return PostgresqlStore(url, timeout=timeout)


def open_async_store(url: str, *, timeout: float = 2.0) -> AsyncStore:
    """Return the asynchronous store that ``url`` names; see `open_store`."""
    target = parse_url(url)
    match target.scheme:
        case "memory":
            from twiceproof.stores.memory import AsyncMemoryStore

            return AsyncMemoryStore(**target.options)
        case "sqlite":
            from twiceproof.stores.sqlite import AsyncSqliteStore

            return AsyncSqliteStore(target.path, timeout=timeout, **target.options)
        case "postgresql+asyncpg":
            from twiceproof.stores.postgresql import AsyncpgStore

            return AsyncpgStore(url, timeout=timeout)
        case "redis" | "rediss" | "valkey" | "valkeys":
            from twiceproof.stores.redis import AsyncRedisStore

            return AsyncRedisStore(url, timeout=timeout)
        case _:
            from twiceproof.stores.postgresql import AsyncPostgresqlStore

            return AsyncPostgresqlStore(url, timeout=timeout)
