"""Many processes on one store: every history is one that the rules could have given, one verb after the other.

A store takes part with a line in `STORES`: a fixture of this file whose value is the URL of an empty store, which
nobody else uses meanwhile.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.stores.grounds import initialised
from tests.stores.redis_support import own_prefix
from tests.support.histories import Operation, check, overlaps
from tests.support.histories_recorder import record

STORES = [
    pytest.param("sqlite_url", id="sqlite"),
    pytest.param("postgresql_url", id="postgresql"),
    pytest.param("redis_url", id="redis"),
]
KEYS = ["a", "b", "c"]


@pytest.fixture
def sqlite_url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


@pytest.fixture
def postgresql_url(postgresql_server) -> str:
    url = f"{postgresql_server.url}?schema=h{uuid.uuid4().hex}"
    initialised(url)
    return url


@pytest.fixture
def redis_url(valkey_server) -> str:
    return f"{valkey_server.url}?prefix={own_prefix()}"


@pytest.fixture(params=STORES)
def url(request) -> str:
    return request.getfixturevalue(request.param)


def answers(history: list[Operation]) -> set[tuple[str, str]]:
    return {(one.verb, one.answer[0]) for one in history if one.answer is not None}


@pytest.mark.slow
def test_six_processes_at_once_see_one_order(url, tmp_path):
    """R22, R30, B34: whatever they claim, settle, renew and forget at once, one order explains all answers."""
    history = record(url, tmp_path, processes=6, keys=KEYS, count=80)
    check(history, own_numbers=url.startswith("redis"))
    assert len(history) == 6 * 80
    assert overlaps(history) > 20  # else it has shown nothing
    claims, completions = ("granted", "held", "found"), ("done", "fenced")
    assert {*(("claim", answer) for answer in claims), *(("complete", answer) for answer in completions)} <= answers(
        history
    )


@pytest.mark.slow
def test_killed_processes_have_done_a_thing_or_not(url, tmp_path):
    """R48, B08: what a process was about when it was killed took effect or didn't, and the others see one order."""

    def kill_some(processes):
        files = [tmp_path / f"p{number}.jsonl" for number in range(4)]
        for process, file in list(zip(processes, files, strict=True))[:3]:
            wait_for_lines(file, 60)
            process.kill()

    history = record(url, tmp_path, processes=4, keys=KEYS, count=400, meanwhile=kill_some)
    check(history, own_numbers=url.startswith("redis"))
    counts = Counter(one.process for one in history)
    assert counts["p3"] == 400
    assert all(30 <= counts[name] < 400 for name in ("p0", "p1", "p2"))


def wait_for_lines(file: Path, count: int) -> None:
    until = time.monotonic() + 60
    while file.read_bytes().count(b"\n") < count:
        assert time.monotonic() < until
        time.sleep(0.001)
