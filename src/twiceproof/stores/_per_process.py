"""What a store has open, made anew in a forked child: a parent's connections are never used there, nor closed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar


class Closable(Protocol):
    """Something that is open."""

    def close(self) -> None:
        """Let go of it."""
        ...


Held = TypeVar("Held", bound=Closable)


class PerProcess(Generic[Held]):
    """What ``make`` makes, once in each process, and again after `close`."""

    def __init__(self, make: Callable[[], Held]) -> None:
        self._make = make
        self._made: dict[int, Held] = {}  # by fork

    @property
    def mine(self) -> Held:
        """What this process has open; its first use makes it."""
        found = self._made.get(_Fork.number)
        if found is None:
            found = self._made.setdefault(_Fork.number, self._make())
        return found

    def close(self) -> None:
        """Close what this process has open."""
        for fork in list(self._made):
            made = self._made.pop(fork, None)
            if fork == _Fork.number and made is not None:
                made.close()
            else:
                _Fork.left_to_parents.append(made)


class _Fork:
    """How many forks lie between this process and the first, and what only the parents may close."""

    number = 0
    left_to_parents: Final[list[object]] = []


def _forked() -> None:
    _Fork.number += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
