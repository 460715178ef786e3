"""Verbs that share a statement, and the plans that the server makes for statements."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.stores.postgresql_support import Place, opened
from tests.support.demo_processes import wait_until
from twiceproof.core._record import Done, Fenced, Found, Granted, Held
from twiceproof.errors import StoreUnavailable
from twiceproof.testing import Driven
from twiceproof.testing.store_contract._ground import AGAIN, new_record


@pytest.fixture
def store(place, kind) -> Iterator:
    with opened(place, kind) as store:
        yield store


def together(place: Place, store, calls):
    """Let calls wait for a lane behind a locked row, so that they go out in one batch; return their answers in order.

    The lane is held by a claim of a row that is locked here.
    """
    blocked = new_record(AGAIN)
    store.claim(blocked, -1.0, b"n1")
    with psycopg.connect(place.url) as locker, ThreadPoolExecutor(len(calls) + 1) as pool:
        locker.execute(f"SELECT FROM {place.table} WHERE id = %s FOR UPDATE", (blocked.id,))
        first = pool.submit(store.claim, blocked, 5.0, b"n2")
        blocked_by = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        us = (locker.info.backend_pid,)
        assert wait_until(lambda: place.connection.execute(blocked_by, us).fetchone() == (1,))
        rest = []
        for call in calls:
            rest.append(pool.submit(call))
            assert wait_until(lambda: waiting_calls(store) == len(rest))
        locker.rollback()
        assert type(first.result()) is Granted
        return [future.exception() or future.result() for future in rest]


def waiting_calls(store) -> int:
    """How many calls are in the pile."""
    if isinstance(store, Driven):
        made: Any = store._store
        (lanes,) = made._lanes.mine._lanes.values()
    else:
        lanes = store._lanes.mine
    return len(lanes._pile)


@pytest.fixture
def narrow(place, kind) -> Iterator:
    with opened(place, kind, connections=1) as store:
        yield store


def test_calls_that_wait_share_a_statement(place, narrow):
    """R21, R25: first claims, replays and completions of one batch each get their own answer."""
    news = [new_record() for _ in range(6)]
    done = new_record()
    narrow.claim(done, 30.0, b"n1")
    narrow.complete(done.id, b"n1", b"answer", 30.0)
    answers = together(place, narrow, [partial(narrow.claim, new, 30.0, new.id[-2:]) for new in (*news, done)])
    assert [type(answer) for answer in answers] == [Granted] * 6 + [Found]
    assert [answer.token.nonce for answer in answers[:6]] == [new.id[-2:] for new in news]
    calls = [partial(narrow.complete, new.id, new.id[-2:], new.id, 30.0) for new in news[:5]]
    calls.append(partial(narrow.complete, news[5].id, b"other", b"", 30.0))
    calls.append(partial(narrow.complete, done.id, b"n1", b"second", 30.0))
    assert together(place, narrow, calls) == [Done()] * 5 + [Fenced(), Done()]
    assert [narrow.get(new.id).answer for new in (*news, done)] == [*(new.id for new in news[:5]), None, b"answer"]


def test_whole_numbers_of_seconds_may_wait_together(place, narrow):
    """A duration of 30 is 30.0, alone and in a batch."""
    news = [new_record() for _ in range(3)]
    claims: list[partial[Any]] = [partial(narrow.claim, new, 30, b"n1") for new in news]
    assert [type(answer) for answer in together(place, narrow, claims)] == [Granted] * 3
    completions: list[partial[Any]] = [partial(narrow.complete, new.id, b"n1", b"answer", 30) for new in news]
    assert together(place, narrow, completions) == [Done()] * 3


def test_one_id_twice_in_the_pile_is_claimed_once(place, narrow):
    """R22: PostgreSQL refuses one row twice in a statement; the second goes with the next."""
    new = new_record()
    answers = together(place, narrow, [partial(narrow.claim, new, 30.0, b"n%d" % n) for n in range(4)])
    assert [type(answer) for answer in answers] == [Granted, Held, Held, Held]


def test_one_row_that_the_server_refuses_leaves_the_others_alone(place, narrow):
    """A batch with a row that can't be stored is done without it; nobody else notices."""
    news = [new_record() for _ in range(5)]
    bad = new_record()
    place.connection.execute(f"ALTER TABLE {place.table} ADD CONSTRAINT small CHECK (length(nonce) < 8)")
    try:
        calls = [partial(narrow.claim, new, 30.0, b"n1") for new in news]
        calls.insert(2, partial(narrow.claim, bad, 30.0, b"a secret nonce"))
        answers = together(place, narrow, calls)
        assert [type(answer) for answer in answers] == [Granted] * 2 + [type(answers[2])] + [Granted] * 3
        assert isinstance(answers[2], StoreUnavailable)
        assert "SQLSTATE 23514" in str(answers[2])
        assert (answers[2].__cause__, answers[2].__context__) == (None, None)  # a driver's error tells the row's values
        assert narrow.get(bad.id) is None
    finally:
        place.connection.execute(f"ALTER TABLE {place.table} DROP CONSTRAINT small")


def test_a_batch_of_large_answers_goes_in_parts(place, narrow):
    """R25: one statement does not bear more than some mebibytes; the answers are the same."""
    news = [new_record() for _ in range(5)]
    for new in news:
        narrow.claim(new, 30.0, b"n1")
    large = [bytes([number]) * (3 << 20) for number in range(5)]
    calls = [partial(narrow.complete, new.id, b"n1", body, 30.0) for new, body in zip(news, large, strict=True)]
    assert together(place, narrow, calls) == [Done()] * 5
    assert [narrow.get(new.id).answer for new in news] == large


def test_a_lock_that_is_held_for_too_long_is_told_in_time(place, store):
    """R48: the server gives up itself, before we have to: nothing was written, and the connection stays good."""
    new = new_record(AGAIN)
    store.claim(new, -1.0, b"n1")
    with opened(place, "postgresql", timeout=0.5) as impatient, psycopg.connect(place.url) as locker:
        locker.execute(f"SELECT FROM {place.table} WHERE id = %s FOR UPDATE", (new.id,))
        with pytest.raises(StoreUnavailable, match=r"held the lock of a record.*55P03") as caught:
            impatient.claim(new, 30.0, b"n2")
        assert type(caught.value) is StoreUnavailable
        locker.rollback()
        assert type(impatient.claim(new, 30.0, b"n3")) is Granted


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_no_plan_reads_a_table_as_a_whole(postgresql_server):
    """A plan is kept for as long as a connection: made over an empty table, it must do for a large one."""
    place = Place(postgresql_server.url)
    store = place.store()
    settings = " ".join(f"-c {name}={value}".replace("read c", r"read\ c") for name, value in settings_of(store))
    with psycopg.connect(place.url, autocommit=True, options=settings) as connection:
        connection.execute(f"VACUUM ANALYZE {place.table}")
        for field in fields(store._sql):
            for form in ("one", "many"):
                statement = getattr(getattr(store._sql, field.name), form)
                if not statement:
                    continue
                connection.execute(f"PREPARE it AS {statement}".encode())
                (count,) = (
                    connection.execute(
                        "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'it'"
                    ).fetchone()
                    or ()
                )
                nothing = ", ".join(["NULL"] * count)
                plan = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE it ({nothing})".encode())
                ((tree,),) = plan.fetchall()
                assert list(whole_reads(tree[0]["Plan"])) == [], (field.name, form)
                connection.execute("DEALLOCATE it")
    place.remove()


def settings_of(store):
    return store._address.settings.items()


def whole_reads(node):
    """Yield the scans of a table that no condition narrows."""
    if node["Node Type"] == "Seq Scan" or ("Index Name" in node and "Index Cond" not in node):
        yield node.get("Index Name", node["Node Type"])
    for child in node.get("Plans", ()):
        yield from whole_reads(child)
