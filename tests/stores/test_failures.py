"""Real failures on every store that processes share: workers killed at every step, paused holders, servers killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stores.failure_child import LEASE, policy, request
from tests.stores.grounds import BLOCKING, SERVERS
from twiceproof import AsyncEngine, Engine, Policy, Request, Response
from twiceproof.stores import Filter

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=BLOCKING)
def url(request, tmp_path_factory) -> Iterator[str]:
    with BLOCKING[request.param](tmp_path_factory.mktemp("ground")) as (_, url):
        yield url


@pytest.fixture
def effects(tmp_path) -> Path:
    path = tmp_path / "effects"
    path.touch()
    return path


@pytest.fixture
def engine(url) -> Iterator[Engine]:
    engine = Engine(url, namespace="failures")
    yield engine
    for record in engine.store.scan(Filter()).records:
        engine.store.forget(record.id, record.token.nonce)
    engine.close()


def worker(url: str, guarantee: str, moment: str, effects: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.stores.failure_child", url, guarantee, moment, str(effects)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


def retried(engine: Engine, guarantee: str, effects: Path) -> tuple[list[int], str]:
    """Send the request until the answer is not 409, as a client does; return the statuses and the last body's text."""

    def handler(*_: object) -> Response:
        with effects.open("a") as file:
            file.write("effect\n")
        return Response(201, (), b"by the second")

    statuses: list[int] = []
    give_up_at = time.monotonic() + 20 * LEASE
    while time.monotonic() < give_up_at:
        answer = engine.handle(request(), "acct_1", policy(guarantee), handler)
        if not statuses or statuses[-1] != answer.status:
            statuses.append(answer.status)
        if answer.status != 409:
            return statuses, bytes(answer.body or b"").decode()
        time.sleep(0.05)
    raise AssertionError(statuses)


@pytest.mark.parametrize(("moment", "happened"), [("claimed", 0), ("before", 0), ("after", 1)])
def test_a_worker_killed_before_its_answer_is_stored_leaves_an_unsettled_key(url, engine, effects, moment, happened):
    """R28, R29, B08, at-most-once: 409 until the lease is over, then 500 outcome-unknown; never a second effect."""
    child = worker(url, "at_most_once", moment, effects)
    assert child.wait(30) == -signal.SIGKILL
    child.communicate()
    statuses, body = retried(engine, "at_most_once", effects)
    assert statuses in ([409, 500], [500])
    assert '"outcome-unknown"' in body
    assert effects.read_text().count("effect") == happened


@pytest.mark.parametrize(("moment", "happened"), [("claimed", 1), ("before", 1), ("after", 2)])
def test_under_at_least_once_a_retry_takes_over(url, engine, effects, moment, happened):
    """R27, R29, B05: after the lease one retry runs again; the handler is one that may."""
    child = worker(url, "at_least_once", moment, effects)
    assert child.wait(30) == -signal.SIGKILL
    child.communicate()
    statuses, body = retried(engine, "at_least_once", effects)
    assert statuses in ([409, 201], [201])
    assert body == "by the second"
    assert effects.read_text().count("effect") == happened


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_a_worker_killed_after_its_answer_was_stored_is_replayed(url, engine, effects, guarantee):
    """R25: the client never got it; its retry gets the very answer, at once."""
    child = worker(url, guarantee, "completed", effects)
    child.communicate("go on\n", timeout=30)
    assert child.returncode == -signal.SIGKILL
    assert retried(engine, guarantee, effects) == ([201], "by the first")
    assert effects.read_text().count("effect") == 1


def stopped_in_its_handler(url: str, guarantee: str, effects: Path) -> subprocess.Popen[str]:
    child = worker(url, guarantee, "sleep", effects)
    assert child.stdout
    while child.stdout.readline() != "effect\n":
        assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    return child


def test_a_paused_holder_wakes_after_another_took_over(url, engine, effects):
    """R30, B05: its late answer is its own client's only; what is stored, and replayed, is the other's."""
    child = stopped_in_its_handler(url, "at_least_once", effects)
    assert retried(engine, "at_least_once", effects) == ([409, 201], "by the second")
    child.send_signal(signal.SIGCONT)
    output, _ = child.communicate("go on\n", timeout=30)
    assert output.splitlines()[-1] == "201 by the first"
    assert "fenced" in output.split()
    assert retried(engine, "at_least_once", effects) == ([201], "by the second")


def test_a_paused_holder_under_at_most_once_may_still_settle_its_key(url, engine, effects):
    """R42: nobody else ran; when it wakes, its answer is stored, and the retry that got a 500 now gets a replay."""
    child = stopped_in_its_handler(url, "at_most_once", effects)
    statuses, _ = retried(engine, "at_most_once", effects)
    assert statuses == [409, 500]
    child.send_signal(signal.SIGCONT)
    output, _ = child.communicate("go on\n", timeout=30)
    assert output.splitlines()[-1] == "201 by the first"
    assert retried(engine, "at_most_once", effects) == ([201], "by the first")
    assert effects.read_text().count("effect") == 1


# ---------------------------------------------------------------------- the server itself


@pytest.fixture(params=SERVERS)
def ground(request, tmp_path) -> Iterator[tuple[Any, str]]:
    with SERVERS[request.param](tmp_path) as (server, url):
        yield server, url


def keyed(key: str) -> Request:
    return Request("POST", b"/transfers", b"", ((b"idempotency-key", key.encode()),), b"the payload")


async def persistent(engine: AsyncEngine, key: str, effects: Counter[str]) -> tuple[Response, set[int]]:
    """Send one request, again and again as a client does, until it is not told to come back; return what it met."""

    async def handler(*_: object) -> Response:
        await asyncio.sleep(0.01)
        effects[key] += 1
        return Response(201, (), f"effect {effects[key]} of {key}".encode())

    met: set[int] = set()
    while True:
        answer = await engine.handle(keyed(key), "acct_1", Policy(lease=5.0), handler)
        met.add(answer.status)
        if answer.status not in {409, 503}:
            return answer, met
        await asyncio.sleep(0.05)


def test_a_server_killed_and_restarted_under_load_loses_nothing(ground):
    """R21, R47, R48, B34: every request ends with the answer of its one effect, and that answer is still there."""
    server, url = ground
    effects: Counter[str] = Counter()
    met: set[int] = set()
    answers: dict[str, Response] = {}

    async def client(engine: AsyncEngine, number: int, until: asyncio.Event) -> None:
        turn = 0
        while not until.is_set():
            key = f"key-{number}-{turn}"
            answers[key], statuses = await persistent(engine, key, effects)
            met.update(statuses)
            turn += 1

    async def main() -> None:
        async with AsyncEngine(url, namespace="failures", accept_volatile=True, store_timeout=1.0) as engine:
            until = asyncio.Event()
            clients = [asyncio.ensure_future(client(engine, number, until)) for number in range(16)]
            for _ in range(2):
                await asyncio.sleep(0.6)
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.start)
            await asyncio.sleep(0.6)
            until.set()
            await asyncio.gather(*clients)

    asyncio.run(main())
    assert 503 in met  # it was down for some of them
    assert {answer.status for answer in answers.values()} == {201}
    assert set(effects.values()) == {1}
    assert len(answers) == len(effects) > 32

    async def again() -> list[bytes]:
        async def never(*_: object) -> Response:
            raise AssertionError

        async with AsyncEngine(url, namespace="failures", accept_volatile=True) as engine:
            replays = [await engine.handle(keyed(key), "acct_1", Policy(), never) for key in answers]
        return [bytes(answer.body or b"") for answer in replays]

    assert asyncio.run(again()) == [answer.body for answer in answers.values()]


def test_a_paused_server_is_answered_for_in_time_and_nothing_stays_taken(ground):
    """R48: 503 within the time-out; the claim that may have been made is withdrawn when the server answers again."""
    server, url = ground
    ran: list[int] = []

    def handler(*_: object) -> Response:
        ran.append(1)
        return Response(201, (), b"done")

    engine = Engine(url.replace("+asyncpg", ""), namespace="failures", accept_volatile=True, store_timeout=0.3)
    assert engine.handle(keyed("before"), "acct_1", Policy(), handler).status == 201
    server.pause()
    try:
        begun = time.monotonic()
        statuses = [engine.handle(keyed("during"), "acct_1", Policy(), handler).status for _ in range(3)]
        took = time.monotonic() - begun
    finally:
        threading.Timer(0.0, server.resume).start()
    assert statuses == [503] * 3
    assert took < 5.0  # each of them at most a claim and its repetition, not the minutes of TCP
    assert ran == [1]
    give_up_at = time.monotonic() + 20
    while (answer := engine.handle(keyed("during"), "acct_1", Policy(), handler)).status in {409, 503}:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    assert (answer.status, ran) == (201, [1, 1])
    engine.close()
