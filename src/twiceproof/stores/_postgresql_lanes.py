"""What the lanes of all drivers share: how a batch of verbs goes over a connection, and until when."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores._postgresql_address import Address
from twiceproof.stores._postgresql_verbs import Row, Verb, exchange


class Deadlined:
    """A lane with a deadline for each run; connecting is a part of the first."""

    def __init__(self, address: Address, until: float) -> None:
        self.address = address
        self.until = until
        self._fresh = True

    def begin(self) -> None:
        """Set the deadline of a run."""
        if self._fresh:
            self._fresh = False
        else:
            self.until = time.monotonic() + self.address.timeout


class BlockingLane(Deadlined, ABC):
    """A lane of the blocking colour."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        """Return the rows of a statement; `StoreOutcomeUnknown` ends the connection, other errors leave it."""

    def run(self, verbs: Sequence[Verb[Any]]) -> Sequence[object]:
        """See `Lane.run`."""
        self.begin()
        steps = exchange(verbs)
        try:
            asked = next(steps)
            while True:
                try:
                    rows = self.execute(*asked)
                except StoreOutcomeUnknown:
                    raise
                except StoreUnavailable as error:
                    asked = steps.throw(error)
                else:
                    asked = steps.send(rows)
        except StopIteration as done:
            answers: Sequence[object] = done.value
            return answers


class LoopLane(Deadlined, ABC):
    """A lane of an event loop."""

    @abstractmethod
    async def execute(self, statement: str, values: Sequence[Any]) -> Sequence[Row]:
        """See `BlockingLane.execute`."""

    async def run(self, verbs: Sequence[Verb[Any]]) -> Sequence[object]:
        """See `AsyncLane.run`."""
        self.begin()
        steps = exchange(verbs)
        try:
            asked = next(steps)
            while True:
                try:
                    rows = await self.execute(*asked)
                except StoreOutcomeUnknown:
                    raise
                except StoreUnavailable as error:
                    asked = steps.throw(error)
                else:
                    asked = steps.send(rows)
        except StopIteration as done:
            answers: Sequence[object] = done.value
            return answers
