"""The SQLite store and time: locks, time-outs, cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.stores.sqlite_support import SlowVerb, company, held_turn, write_lock
from twiceproof.core._record import ClaimRef, Done, Found, Granted, Held, State
from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores import Filter
from twiceproof.stores._sqlite_jobs import LoopJob, ThreadJob, wake_all
from twiceproof.stores._sqlite_verbs import Verb
from twiceproof.stores.sqlite import AsyncSqliteStore, SqliteStore
from twiceproof.testing.store_contract._ground import LEASE, RETENTION, kept, new_record


def test_a_busy_file_is_unavailable_in_time_and_nothing_is_written(path):
    """R48: another process holds the write lock for longer than the time-out."""
    store = SqliteStore(path, timeout=0.3)
    store.open()
    new, mine = new_record(), new_record()
    store.claim(mine, 60.0, b"n1")
    with write_lock(path):
        for verb in (
            lambda: store.claim(new, LEASE, b"n1"),
            lambda: store.complete(mine.id, b"n1", b"answer", RETENTION),
            lambda: store.renew([ClaimRef(mine.id, b"n1")], LEASE),
            lambda: store.purge(10),
        ):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"keys\.db.*holds its lock") as caught:
                verb()
            assert type(caught.value) is StoreUnavailable
            assert 0.25 < time.monotonic() - began < 1.5
    assert store.get(new.id) is None
    assert kept(store, mine.id).state is State.IN_FLIGHT
    assert type(store.claim(new, LEASE, b"n1")) is Granted
    store.close()


def test_a_short_lock_is_waited_for(store, path):
    """B34: a claim that meets another's transaction waits for its turn; it is no error."""
    new = new_record()
    with write_lock(path) as other, ThreadPoolExecutor(1) as pool:
        claim = pool.submit(store.claim, new, LEASE, b"n1")
        time.sleep(0.1)
        other.execute("ROLLBACK")
        assert type(claim.result()) is Granted


def test_replays_are_read_while_the_file_is_locked(path):
    """A live record is read first, so that 409, 422 and replay never wait for the writer."""
    store = SqliteStore(path, timeout=0.2)
    done, held = new_record(), new_record()
    store.claim(done, LEASE, b"n1")
    store.complete(done.id, b"n1", b"answer", RETENTION)
    store.claim(held, 60.0, b"n1")
    with write_lock(path):
        assert type(store.claim(done, LEASE, b"n2")) is Found
        assert type(store.claim(held, LEASE, b"n2")) is Held
        assert type(store.claim_unsettled(held.id, LEASE, b"h1", 0.0)) is Held
        assert store.get(done.id) is not None
        assert len(store.scan(Filter()).records) == 2
    store.close()


def test_a_replay_in_company_needs_no_turn(store):
    """While the writer is at work, a look goes to a read connection."""
    done = new_record()
    store.claim(done, LEASE, b"n1")
    store.complete(done.id, b"n1", b"answer", RETENTION)
    with company(store), held_turn(store):
        assert type(store.claim(done, LEASE, b"n2")) is Found


def test_the_loop_goes_on_while_the_file_is_locked(path):
    """A blocked writer blocks its own callers only; each hears in time, and nothing was written."""

    async def main() -> None:
        store = AsyncSqliteStore(path, timeout=0.3)
        await store.open()
        news = [new_record() for _ in range(5)]
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with write_lock(path):
            began = time.monotonic()
            answers = await asyncio.gather(*(store.claim(new, LEASE, b"n1") for new in news), return_exceptions=True)
            took = time.monotonic() - began
        ticking.cancel()
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 5
        assert 0.25 < took < 1.5
        assert ticks > 5
        assert [await store.get(new.id) for new in news] == [None] * 5
        await store.close()

    asyncio.run(main())


def test_a_first_open_under_a_lock_is_unavailable_in_time(path):
    """A file that is being made by somebody slow: the first verb hears of it within its time-out."""
    store = SqliteStore(path, timeout=0.2)
    with write_lock(path), pytest.raises(StoreUnavailable):
        store.claim(new_record(), LEASE, b"n1")
    assert type(store.claim(new_record(), LEASE, b"n1")) is Granted
    store.close()


def test_a_thread_that_cannot_be_started_is_unavailable_and_the_next_call_tries_again(path, monkeypatch):
    """R48: no threads are left, or Python ends: nothing was queued, nothing is written late."""
    store = SqliteStore(path)
    new = new_record()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreUnavailable, match="No thread"):
            store.claim(new, LEASE, b"n1")
    store.open()
    assert store.get(new.id) is None
    store.close()


def test_what_was_begun_and_has_not_ended_is_unknown(path):
    """R48: it may have acted; only the same nonce may say."""
    store = SqliteStore(path, timeout=0.2)
    store.open()
    slow = SlowVerb()
    with company(store), pytest.raises(StoreOutcomeUnknown, match="may take place yet"):
        store._run(Verb(slow))
    slow.go_on.set()
    store.close()


def test_what_was_begun_and_has_not_ended_is_unknown_to_a_task_too(path):
    """R48, asynchronous; the late outcome is dropped without a word."""

    async def main() -> None:
        store = AsyncSqliteStore(path, timeout=0.2)
        await store.open()
        slow = SlowVerb()
        with company(store), pytest.raises(StoreOutcomeUnknown):
            await store._run(Verb(slow))
        slow.go_on.set()
        await store.close()

    asyncio.run(main())


def test_a_cancelled_claim_that_was_not_begun_is_withdrawn(path):
    """R40: nothing is written for a request that is gone."""

    async def main() -> None:
        store = AsyncSqliteStore(path)
        await store.open()
        new = new_record()
        with company(store), held_turn(store):
            claim = asyncio.create_task(store.claim(new, LEASE, b"n1"))
            await asyncio.sleep(0.05)
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
        await asyncio.sleep(0.05)
        assert await store.get(new.id) is None
        await store.close()

    asyncio.run(main())


def test_a_cancelled_claim_that_was_begun_goes_on(path):
    """R40: it is committed, its answer is dropped, and it can be withdrawn by its nonce."""

    async def main() -> None:
        store = AsyncSqliteStore(path)
        await store.open()
        new = new_record()
        with company(store):
            slow = SlowVerb()
            waiting = asyncio.create_task(store._run(Verb(slow)))
            await asyncio.to_thread(slow.begun.wait, 5)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            claim = asyncio.create_task(store.claim(new, LEASE, b"n1"))
            await asyncio.sleep(0.02)
            slow.go_on.set()
            assert type(await claim) is Granted
            assert await store.release(new.id, b"n1") == Done()
        await store.close()

    asyncio.run(main())


def test_an_answer_to_a_loop_that_is_gone_is_dropped():
    """A job may outlive the loop that waited for it; the others of the batch hear all the same."""
    loop = asyncio.new_event_loop()
    gone = LoopJob(Verb(lambda _: None), loop)
    loop.close()
    here = ThreadJob(Verb(lambda _: None))
    wake_all([gone, here])
    assert here.wait(0)
