"""The Redis store against the memory store: its rules are said again in Lua, and must not say anything else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.stores.test_model import SETTINGS, TICK, TwoStores
from twiceproof.core._record import Found, Granted, Held, NewRecord, Record, Token
from twiceproof.stores.redis import RedisStore
from twiceproof.testing import FakeClock

SCALE = 1000.0
"""The server's clock goes on while ours stands still: so the steps are long, and never as long as a lease."""

MOMENTS = (
    *("now", "lease_until", "created_at", "granted_at", "expires_at", "completed_at"),
    *("next_attempt_at", "reconcile_until", "reconcile_asked_at"),
)


def scaled(value: Any) -> Any:
    """Return an argument with its durations scaled."""
    if isinstance(value, float):
        return value * SCALE
    return replace(value, keep=value.keep * SCALE) if isinstance(value, NewRecord) else value


def record_of(answer: Any) -> Record | None:
    return answer.record if isinstance(answer, Held | Found) else answer if isinstance(answer, Record) else None


def timeless(answer: Any) -> Any:
    """Return an answer without moments, the numbers of tokens, and what the memory store's sweep tells a purge."""
    if isinstance(answer, Granted):
        return replace(answer, forgot=False, token=Token(0, answer.token.nonce))
    if isinstance(answer, Record):
        nothing: dict[str, Any] = dict.fromkeys(MOMENTS, 0.0)
        return replace(answer, token=Token(0, answer.token.nonce), **nothing)
    record = record_of(answer)
    return answer if record is None else (type(answer), timeless(record))


class RedisAndMemory(TwoStores):
    clock: FakeClock
    other: RedisStore

    def __init__(self) -> None:
        super().__init__()
        for id in (b"id-1", b"id-2"):
            if (left := self.other.get(id)) is not None:
                self.other.forget(id, left.token.nonce)

    def both(self, verb: str, *values: Any, **options: Any) -> None:
        values = tuple(map(scaled, values))
        expected, answer = (getattr(store, verb)(*values, **options) for store in (self.memory, self.other))
        assert timeless(answer) == timeless(expected)
        theirs, ours = record_of(expected), record_of(answer)
        if theirs is not None and ours is not None:
            for name in MOMENTS:
                assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=5.0)

    @rule(ticks=st.sampled_from([1, 3, 4, 8, 40, 200]))
    def advance(self, ticks):
        self.clock.advance((ticks + 0.03) * TICK * SCALE)


@pytest.fixture(scope="module", autouse=True)
def one_store(valkey_server) -> Iterator[None]:
    """All sequences use one store, whose clock is set to ours with every call."""
    clock = FakeClock()
    store = RedisStore(valkey_server.url, prefix="model", _offset=lambda: clock.now - time.time())
    RedisAndMemory.clock, RedisAndMemory.other = clock, store
    yield
    store.close()


TestRedisAndMemory = RedisAndMemory.TestCase
TestRedisAndMemory.settings = SETTINGS
