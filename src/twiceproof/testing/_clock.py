"""A clock for tests."""

from __future__ import annotations


class FakeClock:
    """A clock that stands still until it is told to move; call it for the moment, in seconds."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the moment."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.now += seconds
