"""Fixtures of the SQLite tests, and of the PostgreSQL tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.postgresql_support import STORES, Place
from twiceproof.stores.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def store(path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, timeout=5.0)
    store.open()
    yield store
    store.close()


@pytest.fixture(scope="module")
def table(postgresql_server) -> Iterator[Place]:
    """A table of the module's own in PostgreSQL."""
    place = Place(postgresql_server.url)
    yield place
    place.remove()


@pytest.fixture
def place(table) -> Iterator[Place]:
    """The same, empty and on a new clock for each test."""
    yield table
    table.clear()


@pytest.fixture(params=STORES)
def kind(request):
    """Each of the PostgreSQL stores, by its name in the table of stores."""
    return request.param
