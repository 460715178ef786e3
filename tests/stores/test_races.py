"""Duplicates from many processes at once, on every store that several processes share: one effect for each key.

``TWICEPROOF_RACE_ROUNDS=200`` runs more rounds than the 40 of every day.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stores.grounds import initialised
from tests.stores.race_child import COLOURS, DUPLICATES
from tests.stores.redis_support import own_prefix

ROOT = Path(__file__).parents[2]
PROCESSES = 8
ROUNDS = int(os.environ.get("TWICEPROOF_RACE_ROUNDS", "40"))


def sqlite(request: pytest.FixtureRequest) -> str:
    return f"sqlite:///{request.getfixturevalue('tmp_path')}/keys.db"


def postgresql(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("postgresql_server").url
    initialised(url)
    return url


def asyncpg(request: pytest.FixtureRequest) -> str:
    return postgresql(request).replace("postgresql:", "postgresql+asyncpg:")


def redis(request: pytest.FixtureRequest) -> str:
    return f"{request.getfixturevalue('valkey_server').url}?prefix={own_prefix()}"


STORES: dict[str, tuple[Callable[[pytest.FixtureRequest], str], str]] = {
    "sqlite, async": (sqlite, "async"),
    "sqlite": (sqlite, "blocking"),
    "postgresql, async": (postgresql, "async"),
    "postgresql": (postgresql, "blocking"),
    "postgresql+asyncpg, async": (asyncpg, "async"),
    "redis, async": (redis, "async"),
    "redis": (redis, "blocking"),
}


@pytest.fixture(params=STORES)
def racers(request, tmp_path) -> Iterator[tuple[list[subprocess.Popen[str]], Path]]:
    url, colour = STORES[request.param]
    assert colour in COLOURS
    effects = tmp_path / "effects"
    effects.touch()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.stores.race_child", colour, url(request), str(effects)]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        for _ in range(PROCESSES)
    ]
    try:
        assert [child.stdout.readline() for child in children if child.stdout] == ["ready\n"] * PROCESSES
        yield children, effects
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_duplicates_of_eight_processes_have_one_effect(racers):
    """R22, R23, R25, B01: one runs; every other answer is 409 or that one's replay, byte for byte; none is a 5xx."""
    children, effects = racers
    cold = uuid.uuid4()
    for turn in range(ROUNDS):
        key = f"{cold}-{turn:06d}"
        for child in children:
            child.stdin.write(f"{key}\n")
            child.stdin.flush()
        answers: Counter[str] = Counter()
        for child in children:
            answers.update(json.loads(child.stdout.readline()))
        (effect,) = [line for line in effects.read_text().splitlines() if line.startswith(key)]
        assert answers.pop(f"201 {effect}") == 1
        assert set(answers) <= {"409", f"replayed 201 {effect}"}
        assert sum(answers.values()) == PROCESSES * DUPLICATES - 1
    assert len(effects.read_text().splitlines()) == ROUNDS
