"""Each test runs against both colours of the engine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import Bench, World


@pytest.fixture(params=["blocking", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make(colour: str) -> Iterator[Callable[..., Bench]]:
    """Make benches; they share a world where it is given."""
    made: list[Bench] = []

    def one(world: World | None = None, **options: Any) -> Bench:
        made.append(Bench(colour, world, **options))
        return made[-1]

    yield one
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Records in memory, and in a file."""
    world = World(request.param, tmp_path)
    yield world
    world.close()
