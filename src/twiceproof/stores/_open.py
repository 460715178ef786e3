"""Make a store from a URL: ``sqlite:///keys.db``, ``sqlite:////var/lib/app/keys.db``, ``memory://``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twiceproof.stores._url import parse_url

if TYPE_CHECKING:
    from twiceproof.stores._protocol import AsyncStore, Store


def open_store(url: str, *, timeout: float = 2.0) -> Store:
    """Return the blocking store that ``url`` names; nothing is opened before `Store.open` or the first verb.

    Raises `ConfigurationError` where the URL says something that no store understands. ``timeout`` is what a verb
    may take, in seconds; the memory store needs none.
    """
    target = parse_url(url)
    if target.scheme == "memory":
        from twiceproof.stores.memory import MemoryStore

        return MemoryStore(**target.options)
    from twiceproof.stores.sqlite import SqliteStore

    return SqliteStore(target.path, timeout=timeout, **target.options)


def open_async_store(url: str, *, timeout: float = 2.0) -> AsyncStore:
    """Return the asynchronous store that ``url`` names; see `open_store`."""
    target = parse_url(url)
    if target.scheme == "memory":
        from twiceproof.stores.memory import AsyncMemoryStore

        return AsyncMemoryStore(**target.options)
    from twiceproof.stores.sqlite import AsyncSqliteStore

    return AsyncSqliteStore(target.path, timeout=timeout, **target.options)
