"""A place for PostgreSQL stores under test: tables of their own, and a clock that tests move."""

from __future__ import annotations

import itertools
from typing import Any

import psycopg

from twiceproof.stores.postgresql import AsyncpgStore, AsyncPostgresqlStore, PostgresqlStore
from twiceproof.testing import Driven

STORES: dict[str, Any] = {
    "postgresql": PostgresqlStore,
    "postgresql, async": AsyncPostgresqlStore,
    "postgresql+asyncpg, async": AsyncpgStore,
}
_numbers = itertools.count(1)


class Place:
    """A schema of its own in a database, with an empty table and a clock; made at once, gone with `remove`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema = f"test_{next(_numbers)}"
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
        self.store().init()
        self.connection.execute(
            f"""
            CREATE TABLE {self.schema}.clock (shift float8);
            INSERT INTO {self.schema}.clock VALUES (0);
            CREATE FUNCTION {self.schema}.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
                'SELECT clock_timestamp() + shift * interval ''1 second'' FROM {self.schema}.clock';
            """
        )

    @property
    def table(self) -> str:
        """Its full name."""
        return f"{self.schema}.twiceproof_record"

    def store(self, kind: Any = PostgresqlStore, **options: Any) -> Any:
        """Return a store over the table, on the clock."""
        options = {"schema": self.schema, "timeout": 10.0, "_clock": f"{self.schema}.now()", **options}
        return kind(self.url, **options)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass on the clock."""
        self.connection.execute(f"UPDATE {self.schema}.clock SET shift = shift + {seconds!r}")

    def clear(self) -> None:
        """Forget the records and the advances."""
        self.connection.execute(f"DELETE FROM {self.table}; UPDATE {self.schema}.clock SET shift = 0")

    def remove(self) -> None:
        """Drop it all."""
        self.connection.execute(f"DROP SCHEMA {self.schema} CASCADE")
        self.connection.close()


class opened:  # noqa: N801  # used like a function
    """A store of a kind, as a blocking one, closed at the end."""

    def __init__(self, place: Place, kind: str, **options) -> None:
        store = place.store(STORES[kind], **options)
        self.store = Driven(store) if "async" in kind else store

    def __enter__(self):
        return self.store

    def __exit__(self, *_: object) -> None:
        getattr(self.store, "stop", self.store.close)()
