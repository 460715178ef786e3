"""The database servers of the tests: one of each kind per pytest process, started by the first test that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from twiceproof.testing.servers import PostgresqlServer, ValkeyServer


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Shared: a test that kills or pauses a server starts one of its own."""
    with PostgresqlServer() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """Shared: a test that kills or pauses a server, or changes its settings, starts one of its own."""
    with ValkeyServer() as server:
        yield server
