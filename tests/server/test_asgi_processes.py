"""The ASGI door in several processes on one SQLite file, which are killed, stopped and kept waiting (CONTRACT 4, 5)."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.asgi_server import Server, serving
from tests.support.raw_http import Connection, Reply, request

pytestmark = pytest.mark.slow


def store(folder: Path) -> str:
    return f"sqlite:///{folder / 'keys.db'}"


def until(condition: Callable[[], bool], limit: float = 20) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def started(server: Server, key: str, **options: Any) -> Connection:
    """Send a request and wait until its effect has taken place."""
    before = server.effects
    connection = server.connect()
    connection.send(request(key, **options))
    until(lambda: server.effects > before)
    return connection


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the write lock of the store, as another process may."""
    database = sqlite3.connect(folder / "keys.db", isolation_level=None, timeout=10)
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")
    finally:
        database.close()


def test_of_fifty_duplicates_at_two_processes_one_runs(tmp_path):
    """R22, B04, B70: over two server processes with one store."""
    with (
        serving(folder=tmp_path, store=store(tmp_path)) as one,
        serving(folder=tmp_path, store=store(tmp_path), http="httptools") as two,
    ):
        data = request("k1", x_sleep="0.2")
        connections = [server.connect() for server in (one, two) for _ in range(25)]
        try:
            for connection in connections:
                connection.send(data[:-1])
            for connection in connections:
                connection.send(data[-1:])
            with ThreadPoolExecutor(8) as pool:
                replies = list(pool.map(Connection.read, connections))
        finally:
            for connection in connections:
                connection.socket.close()
        later = [one.post("k1", x_sleep="0.2"), two.post("k1", x_sleep="0.2")]
        effects = one.effects
    fresh = [reply for reply in replies if reply.status == 201 and not reply.replayed]
    others = {(reply.status, reply.replayed or reply.code) for reply in replies if reply not in fresh}
    assert len(fresh) == 1
    assert others <= {(409, "in-progress"), (201, True)}
    assert [reply.brief for reply in later] == [(201, True, fresh[0].body)] * 2
    assert effects == 1


def test_a_process_that_has_refused_a_key_replays_it_once_another_process_is_done(tmp_path):
    """R23, R25, B39: nothing that may change is remembered in a process."""
    with (
        serving(folder=tmp_path, store=store(tmp_path)) as one,
        serving(folder=tmp_path, store=store(tmp_path)) as two,
    ):
        with started(one, "k1", x_sleep="0.3") as connection:
            refused = two.post("k1", x_sleep="0.3")
            mismatch = [two.post("k1", body=b"other") for _ in range(2)]
            first = connection.read()
        again = two.post("k1", x_sleep="0.3")
        mismatch.append(two.post("k1", body=b"other"))
    assert refused.code == "in-progress"
    assert [reply.code for reply in mismatch] == ["idempotency-key-reuse"] * 3
    assert again.brief == (201, True, first.body)


@pytest.mark.parametrize(
    ("guarantee", "status", "code", "effects"),
    [("at_most_once", 500, "outcome-unknown", 1), ("at_least_once", 201, "", 2)],
)
def test_a_process_that_is_killed_in_mid_handler_leaves_what_its_guarantee_says(
    tmp_path, guarantee, status, code, effects
):
    """CONTRACT 5, R27-R29, B05, B08: in progress for one lease at most, then unsettled, or run again by one retry."""
    policy = {"guarantee": guarantee, "lease": 1.0}
    with serving(policy, folder=tmp_path, store=store(tmp_path)) as one:
        with started(one, "k1", x_sleep="30"):
            one.kill()
        dead_at = time.monotonic()
    replies: list[Reply] = []
    with serving(policy, folder=tmp_path, store=store(tmp_path)) as two:

        def decided() -> bool:
            replies.append(two.post("k1"))
            return replies[-1].code != "in-progress"

        until(decided)
        took = time.monotonic() - dead_at
        again = two.post("k1")
        seen = two.effects
    assert {reply.code for reply in replies[:-1]} <= {"in-progress"}
    assert (replies[-1].status, replies[-1].replayed, replies[-1].code) == (status, False, code)
    if code:
        assert (again.code, again.json["cause"], again.json["may_have_taken_effect"]) == (code, "lapsed", True)
    else:
        assert again.brief == (201, True, replies[-1].body)
    assert seen == effects
    assert took < 10


def test_a_handler_that_outlives_three_leases_keeps_its_claim(tmp_path):
    """R31, B10: renewed while it runs, also where the lapse would let a retry run; one effect."""
    policy = {"guarantee": "at_least_once", "lease": 0.5}
    with serving(policy, folder=tmp_path, store=store(tmp_path)) as server:
        with started(server, "k1", x_sleep="1.8") as connection:
            since = time.monotonic()
            meanwhile = []
            while time.monotonic() - since < 1.6:
                meanwhile.append(server.post("k1", x_sleep="1.8").code)
                time.sleep(0.1)
            first = connection.read()
        again = server.post("k1", x_sleep="1.8")
        effects = server.effects
    assert set(meanwhile) == {"in-progress"}
    assert (first.status, again.replayed, effects) == (201, True, 1)


def test_a_server_that_is_stopped_finishes_what_runs_and_the_next_one_replays_it(tmp_path):
    """R41: the client gets its answer, and the record is there."""
    with serving(folder=tmp_path, store=store(tmp_path)) as one:
        with started(one, "k1", x_sleep="0.6") as connection:
            one.process.terminate()
            first = connection.read()
        one.process.wait(20)
    with serving(folder=tmp_path, store=store(tmp_path)) as two:
        again = two.post("k1", x_sleep="0.6")
        effects = two.effects
    assert again.brief == (201, True, first.body)
    assert effects == 1


@pytest.mark.parametrize(
    ("guarantee", "status", "code", "effects"),
    [("at_most_once", 500, "outcome-unknown", 1), ("at_least_once", 201, "", 2)],
)
def test_a_handler_that_a_stopping_server_cancels_is_settled_at_once(tmp_path, guarantee, status, code, effects):
    """R40: long before its lease of 30 s could lapse."""
    with (
        serving({"guarantee": guarantee}, folder=tmp_path, store=store(tmp_path), grace=1) as one,
        started(one, "k1", x_sleep="30"),
    ):
        one.stop()
    with serving({"guarantee": guarantee}, folder=tmp_path, store=store(tmp_path)) as two:
        again = two.post("k1")
        seen = two.effects
    assert (again.status, again.code, seen) == (status, code, effects)


@pytest.mark.parametrize("fail_open", [False, True])
def test_a_store_that_can_not_be_reached_at_the_claim_is_told_and_burns_no_key(tmp_path, fail_open):
    """R48: 503 and no effect; or, where the policy says so, an answer that says it was not protected."""
    policy = {"fail_open": fail_open}
    with serving(policy, folder=tmp_path, store=store(tmp_path), store_timeout=0.3) as server:
        server.post("warm")
        with locked(tmp_path):
            down = server.post("k1")
            effects = server.effects
        until(lambda: server.post("k1").status == 201)
        again = server.post("k1")
    if fail_open:
        assert (down.status, down.all("idempotency-unprotected"), effects) == (201, [b"true"], 2)
    else:
        assert (down.status, down.code, down.all("retry-after"), effects) == (503, "store-unavailable", [b"5"], 1)
        assert down.json["retryable"] is True
    assert (again.replayed, again.all("idempotency-unprotected")) == (True, [])


def test_a_store_that_can_not_be_reached_at_the_end_holds_no_answer_back(tmp_path):
    """R47, B12: 201 is delivered, the record is written when the store is back, and the retry replays it."""
    with serving(folder=tmp_path, store=store(tmp_path), store_timeout=0.3) as server:
        server.post("warm")
        with started(server, "k1", x_sleep="0.3") as connection, locked(tmp_path):
            first = connection.read()
            locked_at_the_end = server.post("k1", x_sleep="0.3")
        replies: list[Reply] = []

        def stored() -> bool:
            replies.append(server.post("k1", x_sleep="0.3"))
            return replies[-1].replayed

        until(stored)
        effects = server.effects
    assert (first.status, first.whole) == (201, True)
    assert locked_at_the_end.code in {"in-progress", "store-unavailable"}
    assert {reply.code for reply in replies[:-1]} <= {"in-progress", "store-unavailable"}
    assert replies[-1].brief == (201, True, first.body)
    assert effects == 2


def test_nothing_that_is_secret_is_in_the_store_or_the_log_of_a_server(tmp_path):
    """R6, R54: not the key, not the principal, not the request's body, whatever goes wrong."""
    with serving(folder=tmp_path, store=store(tmp_path), store_timeout=0.3) as server:
        for mode in ("plain", "raise", "cut", "silent"):
            server.post(f"key-4711-{mode}", x_mode=mode, x_account="account-4711", body=b'"body-4711"')
        server.post("bad key-4711", x_account="account-4711")
        with locked(tmp_path):
            server.post("key-4711-down", x_account="account-4711", body=b'"body-4711"')
        server.stop()
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert b"Application startup complete" in written["log"]
    assert [name for name, data in written.items() if b"4711" in data] == []
