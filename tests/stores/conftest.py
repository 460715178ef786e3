"""Fixtures of the SQLite tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
