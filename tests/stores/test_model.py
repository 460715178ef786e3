"""Every other store against the memory store: any sequence of verbs is answered alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.stores.sqlite_support import connection_of
from tests.support.row_stores import DictStore
from twiceproof.core._record import ClaimRef, Found, Granted, Guarantee, Held, NewRecord, Record, State
from twiceproof.stores import Filter, Store
from twiceproof.stores.memory import MemoryStore
from twiceproof.stores.sqlite import SqliteStore
from twiceproof.testing import FakeClock
from twiceproof.testing.store_contract._ground import all_records

TICK = 86400 / 2**20
"""Seconds that both clocks can tell exactly: SQLite's is in days, and a double holds whole ticks of them."""

IDS = st.sampled_from([b"id-1", b"id-2"])
NONCES = st.sampled_from([b"a", b"b", b"c"])
LEASES = st.sampled_from([TICK * 4, TICK * 16])
RETENTIONS = st.sampled_from([TICK * 8, TICK * 64])


def comparable(answer: Any) -> Any:
    """Return an answer without the rounding of moments, and without what the memory store's sweep tells a purge."""
    if isinstance(answer, Granted):
        return replace(answer, forgot=False)
    if isinstance(answer, Held | Found):
        return type(answer), comparable(answer.record)
    if isinstance(answer, Record):
        moments: dict[str, Any] = {
            name: None if (moment := getattr(answer, name)) is None else round(moment, 4)
            for name in (
                *("now", "lease_until", "created_at", "granted_at", "expires_at", "completed_at"),
                *("next_attempt_at", "reconcile_until", "reconcile_asked_at"),
            )
        }
        return replace(answer, **moments)
    return answer


class TwoStores(RuleBasedStateMachine):
    """Every verb is called on both. None purges, so that expired records are met in place."""

    clock: FakeClock
    other: Store

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryStore(self.clock)

    def both(self, verb: str, *values: Any, **options: Any) -> None:
        expected = getattr(self.memory, verb)(*values, **options)
        assert comparable(getattr(self.other, verb)(*values, **options)) == comparable(expected)

    @rule(ticks=st.sampled_from([1, 3, 4, 8, 40, 200]))
    def advance(self, ticks):
        self.clock.advance(ticks * TICK)

    @rule(
        id=IDS,
        nonce=NONCES,
        lease=LEASES,
        guarantee=st.sampled_from([Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE]),
        fingerprint=st.sampled_from([b"f", b"f", b"f", b"g"]),
        after=st.none() | NONCES,
        threaded=st.booleans(),
    )
    def claim(self, id, nonce, lease, guarantee, fingerprint, after, threaded):
        new = NewRecord(id, "tests", b"p", "POST /", "/", b"k", fingerprint, guarantee, TICK * 128)
        with self.company(threaded):
            self.both("claim", new, lease, nonce, after)

    @rule(id=IDS, nonce=NONCES, lease=LEASES, every=st.sampled_from([0.0, TICK * 8]), force=st.booleans())
    def claim_unsettled(self, id, nonce, lease, every, force):
        self.both("claim_unsettled", id, lease, nonce, every, force=force)

    @rule(pairs=st.lists(st.tuples(IDS, NONCES), max_size=3), lease=LEASES)
    def renew(self, pairs, lease):
        self.both("renew", [ClaimRef(*pair) for pair in pairs], lease)

    @rule(id=IDS, nonce=NONCES, answer=st.sampled_from([b"", b"answer"]), retention=RETENTIONS)
    def complete(self, id, nonce, answer, retention):
        self.both("complete", id, nonce, answer, retention)

    @rule(id=IDS, nonce=NONCES)
    def park(self, id, nonce):
        self.both("park", id, nonce, "exception")

    @rule(id=IDS, nonce=NONCES)
    def release(self, id, nonce):
        self.both("release", id, nonce)

    @rule(id=IDS, nonce=NONCES)
    def forget(self, id, nonce):
        self.both("forget", id, nonce)

    @rule(unsettled=st.booleans(), state=st.none() | st.sampled_from(State))
    def scan(self, unsettled, state):
        filter = Filter(state=state, unsettled=unsettled)
        expected = {record.id for record in all_records(self.memory, filter, limit=1)}
        assert {record.id for record in all_records(self.other, filter, limit=1)} == expected

    @invariant()
    def reads_alike(self):
        for id in (b"id-1", b"id-2"):
            self.both("get", id)

    def company(self, threaded: bool) -> AbstractContextManager[None]:
        """Override: a store may take another way while other requests are in flight."""
        return nullcontext()


class SqliteAndMemory(TwoStores):
    other: SqliteStore

    def __init__(self) -> None:
        super().__init__()
        connection_of(self.other).execute("DELETE FROM twiceproof_record")

    @contextmanager
    def company(self, threaded: bool) -> Iterator[None]:
        flights = self.other._database.flights
        if threaded:
            flights.begin(b"company", 60.0)
        yield
        flights.end(b"company")


class RowsAndMemory(TwoStores):
    """The rules are the same code; the bytes between them are not."""

    def __init__(self) -> None:
        self.clock = FakeClock(86400.0 * 19_000)
        super().__init__()
        self.other = DictStore(self.clock)


@pytest.fixture(scope="module", autouse=True)
def one_file(tmp_path_factory) -> Iterator[None]:
    """Make one file for all sequences: making it is what takes time."""
    clock = FakeClock(86400.0 * 19_000)
    store = SqliteStore(tmp_path_factory.mktemp("model") / "keys.db", synchronous="NORMAL", _clock=clock)
    store.open()
    SqliteAndMemory.clock, SqliteAndMemory.other = clock, store
    yield
    store.close()


SETTINGS = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSqliteAndMemory = SqliteAndMemory.TestCase
TestRowsAndMemory = RowsAndMemory.TestCase
TestSqliteAndMemory.settings = TestRowsAndMemory.settings = SETTINGS
