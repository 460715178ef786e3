"""The SQLite store alone and in company: what runs inline, and what shares a commit."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.stores.sqlite_support import company, held_turn, traced
from twiceproof.core._record import ClaimRef, Done, Found, Granted, Held
from twiceproof.errors import StoreUnavailable
from twiceproof.stores import Purged
from twiceproof.stores._sqlite_verbs import Verb
from twiceproof.stores.sqlite import AsyncSqliteStore
from twiceproof.testing.store_contract._ground import LEASE, RETENTION, new_record


def test_alone_a_verb_runs_on_the_calling_thread(store):
    """Nobody else in flight: no transaction of the writer's, one autocommitted statement each."""
    statements = traced(store)
    new = new_record()
    assert type(store.claim(new, LEASE, b"n1")) is Granted
    assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()
    assert type(store.claim(new, LEASE, b"n2")) is Found
    assert store.purge(10) == Purged(0, 0)
    assert "BEGIN IMMEDIATE" not in statements


@pytest.mark.parametrize("end", ["complete", "release", "park", "forget"])
def test_after_every_ending_it_is_alone_again(store, end):
    """A claim that was settled, in whatever way, is no company; nor is one that was not granted."""
    new = new_record()
    store.claim(new, LEASE, b"n1")
    assert type(store.claim(new, LEASE, b"n2")) is Held
    endings = {
        "complete": lambda: store.complete(new.id, b"n1", b"answer", RETENTION),
        "release": lambda: store.release(new.id, b"n1"),
        "park": lambda: store.park(new.id, b"n1", "exception"),
        "forget": lambda: store.forget(new.id, b"n1"),
    }
    statements = traced(store)
    assert endings[end]() == Done()
    other = new_record()
    store.claim(other, LEASE, b"n3")
    store.release(other.id, b"n3")
    assert "BEGIN IMMEDIATE" not in statements


def test_a_handler_in_flight_is_company_until_it_lapses(store):
    """Another's verb goes through the thread; a claim that is never settled stops counting when its lease is over."""
    store.claim(new_record(), 0.3, b"n1")
    statements = traced(store)
    other = new_record()
    store.claim(other, LEASE, b"n2")
    assert statements.count("BEGIN IMMEDIATE") == 1
    store.release(other.id, b"n2")
    time.sleep(1.4)
    statements.clear()
    other = new_record()
    store.claim(other, LEASE, b"n3")
    store.release(other.id, b"n3")
    assert "BEGIN IMMEDIATE" not in statements


def test_a_renewed_handler_goes_on_being_company(store):
    """Renewal through the renewer counts for the store too."""
    new = new_record()
    store.claim(new, 0.1, b"n1")
    renewer = store.renewer()
    renewer.renew([ClaimRef(new.id, b"n1"), ClaimRef(new.id, b"unknown")], 60.0)
    renewer.close()
    time.sleep(0.2)
    store._database.flights._prune_at = 0.0
    assert store._database.flights.any()
    store.complete(new.id, b"n1", b"answer", RETENTION)
    assert not store._database.flights.any()


def test_a_claim_that_was_withdrawn_before_it_was_granted_is_no_company(store):
    """R48: whoever gave up releases by nonce; the late grant in front of that release counts for nothing."""
    new = new_record()
    with ThreadPoolExecutor(2) as pool:
        with held_turn(store):
            claim = pool.submit(store.claim, new, 60.0, b"n1")
            while len(store._database.lanes.writer._queue) < 1:
                time.sleep(0.005)
            release = pool.submit(store.release, new.id, b"n1")
            while len(store._database.lanes.writer._queue) < 2:
                time.sleep(0.005)
        assert (type(claim.result()), release.result()) == (Granted, Done())
    assert not store._database.flights.any()


def test_what_piled_up_is_one_commit(store):
    """Group commit: verbs that wait at the same moment share a transaction, and each has its own answer."""
    same = new_record()
    news = [new_record() for _ in range(20)] + [same] * 5
    with company(store), ThreadPoolExecutor(25) as pool:
        with held_turn(store):
            statements = traced(store)
            claims = [pool.submit(store.claim, new, LEASE, b"n%d" % at) for at, new in enumerate(news)]
            while len(store._database.lanes.writer._queue) < 25:
                time.sleep(0.005)
        answers = [claim.result() for claim in claims]
    assert statements.count("COMMIT") == 1
    assert [type(answer) for answer in answers[:20]] == [Granted] * 20
    assert sorted(type(answer).__name__ for answer in answers[20:]) == ["Granted", "Held", "Held", "Held", "Held"]


def test_the_order_of_the_queue_decides(store):
    """Within a batch, the first claim of an id wins, and a completion after it is seen by a claim after that."""
    new = new_record()
    with company(store), ThreadPoolExecutor(4) as pool, held_turn(store):
        verbs = []
        for verb in (
            lambda: store.claim(new, LEASE, b"n1"),
            lambda: store.claim(new, LEASE, b"n2"),
            lambda: store.complete(new.id, b"n1", b"answer", RETENTION),
            lambda: store.claim(new, LEASE, b"n3"),
        ):
            verbs.append(pool.submit(verb))
            while len(store._database.lanes.writer._queue) < len(verbs):
                time.sleep(0.001)
        store._database.lanes.writer._turn.release()
        answers = [verb.result() for verb in verbs]
        store._database.lanes.writer._turn.acquire()
    assert [type(answer) for answer in answers] == [Granted, Held, Done, Found]


def test_one_bad_verb_does_not_spoil_the_batch(store):
    """A value that can't be bound is its caller's error; the others of the transaction are committed."""
    good, bad = new_record(), new_record()
    with company(store), ThreadPoolExecutor(2) as pool:
        with held_turn(store):
            one = pool.submit(store.claim, bad, LEASE, object())
            two = pool.submit(store.claim, good, LEASE, b"n1")
            while len(store._database.lanes.writer._queue) < 2:
                time.sleep(0.005)
        with pytest.raises(StoreUnavailable):
            one.result()
        assert type(two.result()) is Granted
    assert store.get(bad.id) is None
    assert store.get(good.id) is not None


def test_a_fault_in_a_verb_is_its_callers(store):
    """An error that is not SQLite's passes through, from the thread as from inline."""

    def fault(_: sqlite3.Connection) -> None:
        raise ZeroDivisionError

    with company(store), pytest.raises(ZeroDivisionError):
        store._run(Verb(fault))
    with pytest.raises(ZeroDivisionError):
        store._run(Verb(fault))
    assert type(store.claim(new_record(), LEASE, b"n1")) is Granted


def flushes(statements: list[str]) -> int:
    """Count the transactions among traced statements: the commits, and what was written outside of any."""
    count, inside = 0, False
    for statement in statements:
        inside = inside or statement == "BEGIN IMMEDIATE"
        if statement == "COMMIT":
            inside = False
        count += statement == "COMMIT" or (not inside and statement.lstrip().startswith(("INSERT", "UPDATE")))
    return count


def test_sixty_four_tasks_share_commits(path):
    """On one loop each seems to be alone; the handlers in flight show that it isn't, and they share the disk's wait."""

    async def main() -> tuple[int, set[type]]:
        store = AsyncSqliteStore(path, timeout=20.0)
        await store.open()
        statements = traced(store)
        answers: set[type] = set()

        async def one() -> None:
            for _ in range(4):
                new = new_record()
                answers.add(type(await store.claim(new, 60.0, b"n1" + new.id)))
                answers.add(type(await store.complete(new.id, b"n1" + new.id, b"answer", RETENTION)))

        await asyncio.gather(*(one() for _ in range(64)))
        assert not store._database.flights.any()
        await store.close()
        return flushes(statements), answers

    count, answers = asyncio.run(main())
    assert answers == {Granted, Done}
    assert 1 < count < 64 * 4 * 2 / 3
