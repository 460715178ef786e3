"""The public store suite, run without pytest's help: to see which of its tests a store fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from twiceproof.testing import DurableStoreContract, FakeClock

Maker = Callable[[FakeClock], Any]
"""Makes a store on this clock; called again, one more over the same records."""


def cases(names: set[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each test of the suite, or those named, with each set of its parameters."""
    for name, method in inspect.getmembers(DurableStoreContract, inspect.isfunction):
        if name.startswith("test_") and (names is None or name in names):
            marks = [mark for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
            if not marks:
                yield name, {}
            for mark in marks:
                arguments = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
                for values in mark.args[1]:
                    yield name, dict(zip(arguments, [values] if len(arguments) == 1 else values, strict=True))


def failed(make: Callable[[], Maker], names: set[str] | None = None) -> set[str]:
    """Return the names of the tests that a store fails; each begins with what a new ``make()`` makes."""
    names_failed: set[str] = set()
    for name, parameters in cases(names):
        if name in names_failed:
            continue
        clock = FakeClock()
        maker = make()
        fixtures: dict[str, Any] = {
            "store": maker(clock),
            "advance": clock.advance,
            "another": lambda maker=maker, clock=clock: maker(clock),
        }
        method = getattr(DurableStoreContract, name)
        taken = {key: value for key, value in fixtures.items() if key in inspect.signature(method).parameters}
        try:
            method(DurableStoreContract(), **taken, **parameters)
        except (Exception, pytest.fail.Exception):
            names_failed.add(name)
    return names_failed
