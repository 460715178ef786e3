"""The PostgreSQL store against the memory store: its rules are said again in SQL, and must not say anything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.stores.test_model import SETTINGS, TICK, TwoStores, comparable
from twiceproof.core._record import NewRecord
from twiceproof.stores._postgresql_psycopg import PsycopgLane
from twiceproof.stores.postgresql import PostgresqlStore
from twiceproof.testing import FakeClock

pytestmark = pytest.mark.slow


class SqlClock(FakeClock):
    """A clock that stands still in the database, too; its steps are whole seconds, which both tell exactly."""

    connection: psycopg.Connection[Any]

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.connection.execute("UPDATE model.clock SET now = to_timestamp(%s)", (self.now,))


class Paired(PostgresqlStore):
    """Sends every verb that may go in company together with one about another record: the array form."""

    lane: PsycopgLane | None = None

    def _run(self, verb: Any) -> Any:
        if verb.group is None:
            return super()._run(verb)
        lane = self.lane = self.lane or PsycopgLane(self._address)
        companion = replace(verb, id=b"id-0", values=(b"id-0", *verb.values[1:]))
        _, answer = lane.run([companion, verb])
        lane._connection.execute("DELETE FROM model.twiceproof_record WHERE id = 'id-0'")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        super().close()
        if self.lane is not None:
            self.lane.close()


def scaled(value: Any) -> Any:
    """Return an argument with its durations in whole seconds."""
    if isinstance(value, float):
        return value / TICK
    return replace(value, keep=value.keep / TICK) if isinstance(value, NewRecord) else value


class PostgresqlAndMemory(TwoStores):
    clock: SqlClock
    other: PostgresqlStore

    def __init__(self) -> None:
        super().__init__()
        self.clock.connection.execute("DELETE FROM model.twiceproof_record")

    def both(self, verb: str, *values: Any, **options: Any) -> None:
        values = tuple(map(scaled, values))
        expected, answer = (getattr(store, verb)(*values, **options) for store in (self.memory, self.other))
        assert comparable(answer) == comparable(expected)

    @rule(ticks=st.sampled_from([1, 3, 4, 8, 40, 200]))
    def advance(self, ticks):
        self.clock.advance(float(ticks))


class PairsAndMemory(PostgresqlAndMemory):
    """The same through the statements for many."""


@pytest.fixture(scope="module", autouse=True)
def one_table(postgresql_server) -> Iterator[None]:
    """All sequences use one table: making it is what takes time."""
    options: Any = {"schema": "model", "_clock": "model.now()", "timeout": 10.0}
    PostgresqlStore(postgresql_server.url, **options).init()
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(
            """
            CREATE TABLE model.clock AS SELECT clock_timestamp() AS now;
            CREATE FUNCTION model.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT now FROM model.clock';
            """
        )
        clock = SqlClock()
        clock.connection = connection
        clock.advance(0.0)
        stores = PostgresqlStore(postgresql_server.url, **options), Paired(postgresql_server.url, **options)
        PostgresqlAndMemory.clock = clock
        PostgresqlAndMemory.other, PairsAndMemory.other = stores
        yield
        for store in stores:
            store.close()
        connection.execute("DROP SCHEMA model CASCADE")


TestPostgresqlAndMemory = PostgresqlAndMemory.TestCase
TestPairsAndMemory = PairsAndMemory.TestCase
TestPostgresqlAndMemory.settings = TestPairsAndMemory.settings = settings(SETTINGS, max_examples=40)
