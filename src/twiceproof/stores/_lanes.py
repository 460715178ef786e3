"""Verbs that wait at the same moment share round trips; nobody ever waits on purpose.

A lane is one connection. One is free: the verb goes out at once, on the caller's own thread or task. All are busy: what
piles up meanwhile goes out together, on the next lane that is free. Batches name each id once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from twiceproof.errors import StoreError, StoreUnavailable

MOST_AT_ONCE: Final = 128
"""How many verbs go out together at most; their answers come back together, too."""

FEW: Final = 16
"""How many need not be shared between lanes."""

REST: Final = 0.25
"""For how many seconds nobody tries to connect again after that failed: a dead store answers fast."""


class Sent(Protocol):
    """A verb, as a store of this kind sends it. ``group``: those with which it may go out together; None: alone."""

    @property
    def group(self) -> str | None:
        """Verbs of one group go out together."""
        ...

    @property
    def id(self) -> bytes:
        """The record that it is about."""
        ...


V = TypeVar("V", bound=Sent)
V_contra = TypeVar("V_contra", bound=Sent, contravariant=True)


class Lane(Protocol[V_contra]):
    """One connection of the blocking colour, used by one thread at a time."""

    def usable(self) -> bool:
        """Whether the other side has not closed it meanwhile, as far as that is known without asking."""
        ...

    def run(self, verbs: Sequence[V_contra]) -> Sequence[object]:
        """Do them in one round trip, within the store's time-out, and return an answer for each, in their order.

        An answer may be the exception to raise for its verb. What this raises itself holds for all of them, and ends
        the connection.
        """
        ...

    def close(self) -> None:
        """Let go of the connection at once; never fails."""
        ...


class AsyncLane(Protocol[V_contra]):
    """One connection of one event loop; see `Lane`."""

    def usable(self) -> bool:
        """See `Lane.usable`."""
        ...

    async def run(self, verbs: Sequence[V_contra]) -> Sequence[object]:
        """See `Lane.run`; a cancelled one is closed."""
        ...

    def close(self) -> None:
        """See `Lane.close`; on the loop's thread, without waiting."""
        ...


class Waiting(Protocol):
    """A verb in the pile."""

    @property
    def verb(self) -> Sent:
        """What is to be sent."""
        ...


W = TypeVar("W", bound=Waiting)


class Pile(Generic[W]):
    """What waits for one of ``lanes``, in the order in which it came. Not safe for threads by itself."""

    def __init__(self, lanes: int = 1) -> None:
        self._lanes = lanes
        self._waiting: deque[W] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> W | None:
        """What has waited longest."""
        return self._waiting[0] if self._waiting else None

    def add(self, waiting: W) -> None:
        """Put it last."""
        self._waiting.append(waiting)

    def withdraw(self, waiting: W) -> bool:
        """Take it out; False where it has gone out already."""
        try:
            self._waiting.remove(waiting)
        except ValueError:
            return False
        return True

    def batch(self) -> list[W]:
        """Take out the first, and with it those of its group; an id that is there twice goes with the next batch.

        One lane leaves the others their share: where it took all, everybody would wait for it, and then it for them.
        """
        most = min(MOST_AT_ONCE, max(FEW, -(-len(self._waiting) // self._lanes)))
        first = self._waiting.popleft()
        batch, group = [first], first.verb.group
        if group is None or not self._waiting:
            return batch
        ids, left = {first.verb.id}, deque[W]()
        for waiting in self._waiting:
            verb = waiting.verb
            if verb.group == group and verb.id not in ids and len(batch) < most:
                batch.append(waiting)
                ids.add(verb.id)
            else:
                left.append(waiting)
                ids.add(verb.id)  # verbs of one id keep their order
        self._waiting = left
        return batch


class Rest:
    """Fails at once for a moment after a connection could not be made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._refusal: StoreError = StoreUnavailable()

    def check(self) -> None:
        """Raise what the last try raised, if that was just now."""
        if self._until and self._clock() < self._until:
            raise renewed(self._refusal)

    def begin(self, refusal: StoreError) -> None:
        """A connection could not be made."""
        self._refusal = renewed(refusal)
        self._until = self._clock() + REST

    def end(self) -> None:
        """A connection was made."""
        self._until = 0.0


def renewed(error: StoreError) -> StoreError:
    """Return a copy to raise: a raised error collects its raiser's frames."""
    return type(error)(*error.args)


def no_turn(where: str, timeout: float) -> StoreUnavailable:
    """Return what to raise for a verb that was never sent."""
    return StoreUnavailable(f"{where}: no connection was free within {timeout:g} s, and nothing was sent.")


def all_failed(error: Exception, count: int) -> list[object]:
    """Return the answers of a batch that failed as a whole: an exception each."""
    if isinstance(error, StoreError):
        return [renewed(error) for _ in range(count)]
    return [error] * count
