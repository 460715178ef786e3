"""The lanes of the asynchronous colour: one set for each event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from twiceproof.errors import StoreError, StoreOutcomeUnknown
from twiceproof.stores._lanes import AsyncLane, Pile, Rest, V, all_failed, no_turn


@dataclass(slots=True, eq=False)
class _Slot(Generic[V]):
    """A place for one connection, which is made when it is needed."""

    lane: AsyncLane[V] | None = None

    def close(self) -> None:
        if self.lane is not None:
            lane, self.lane = self.lane, None
            lane.close()


@dataclass(slots=True, eq=False)
class _Waiting(Generic[V]):
    """A task that waits for its answer, and for its turn until ``until`` on the loop's clock."""

    verb: V
    answered: asyncio.Future[object]
    until: float


class LoopLanes(Generic[V]):
    """At most ``size`` connections to ``where``, used on one event loop."""

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncLane[V]]], where: str, *, size: int, timeout: float
    ) -> None:
        self._connect = connect
        self._where = where
        self._timeout = timeout
        self._free: list[_Slot[V]] = [_Slot() for _ in range(size)]
        self._pile: Pile[_Waiting[V]] = Pile(size)
        self._watched = False
        self._closed = False
        self._rest = Rest()
        self._batches: set[asyncio.Task[None]] = set()

    async def run(self, verb: V) -> object:
        """Return what the store answers, or raise what it raises."""
        if self._free or self._closed:  # whoever fetched the lanes before they were closed has one for the moment
            slot = self._free.pop() if self._free else _Slot[V]()  # the one that was used last
            try:
                (answer,) = await self._send(slot, (verb,))
            finally:
                self._pass_on(slot)
        else:
            answer = await self._awaited(verb)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Close what is free now, and the rest when it is; what was called before is still answered."""
        self._closed = True
        while self._free:
            self._free.pop().close()

    async def _awaited(self, verb: V) -> object:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(verb, loop.create_future(), loop.time() + self._timeout)
        self._pile.add(waiting)
        if not self._watched:
            self._watched = True
            loop.call_at(waiting.until, self._give_up, loop)
        try:
            return await waiting.answered
        finally:
            if waiting.answered.cancelled():  # what has gone out goes on, and its answer is dropped
                self._pile.withdraw(waiting)

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the verbs that were never sent in time; one that has gone out is told by its lane.

        One timer for all: a timer for each would take a tenth of the whole time of a crowd.
        """
        while (first := self._pile.first) is not None:
            if first.until > loop.time():
                loop.call_at(first.until, self._give_up, loop)
                return
            self._pile.withdraw(first)
            if not first.answered.done():
                first.answered.set_result(no_turn(self._where, self._timeout))
        self._watched = False

    async def _do(self, slot: _Slot[V], batch: list[_Waiting[V]]) -> None:
        answers: Sequence[object] = [StoreOutcomeUnknown() for _ in batch]
        try:
            answers = await self._send(slot, [waiting.verb for waiting in batch])
        except Exception as error:  # noqa: BLE001  # whatever it is, each of them must hear of it
            answers = all_failed(error, len(batch))
        finally:
            self._pass_on(slot)
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answered.done():
                    waiting.answered.set_result(answer)

    async def _send(self, slot: _Slot[V], verbs: Sequence[V]) -> Sequence[object]:
        try:
            if slot.lane is not None and not slot.lane.usable():
                slot.close()
            if slot.lane is None:
                self._rest.check()
                slot.lane = await self._connected()
            return await slot.lane.run(verbs)
        except BaseException as error:
            slot.close()
            if isinstance(error, StoreOutcomeUnknown):
                for idle in self._free:  # what broke one connection has probably broken them all
                    idle.close()
            raise

    async def _connected(self) -> AsyncLane[V]:
        try:
            lane = await self._connect()
        except StoreError as error:
            self._rest.begin(error)
            raise
        self._rest.end()
        return lane

    def _pass_on(self, slot: _Slot[V]) -> None:
        """Give the lane to those who wait, else to whoever comes."""
        while (first := self._pile.first) is not None and first.answered.done():
            self._pile.withdraw(first)  # cancelled just now, perhaps with the whole loop
        if self._pile:
            task = asyncio.get_running_loop().create_task(self._do(slot, self._pile.batch()))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)
        elif self._closed:
            slot.close()
        else:
            self._free.append(slot)


class LanesByLoop(Generic[V]):
    """The lanes of each event loop that uses a store; closed together, each on its own loop."""

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncLane[V]]], where: str, *, size: int, timeout: float
    ) -> None:
        self._make: Callable[[], LoopLanes[V]] = lambda: LoopLanes(connect, where, size=size, timeout=timeout)
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLanes[V]] = weakref.WeakKeyDictionary()
        self._closed = False

    @property
    def here(self) -> LoopLanes[V]:
        """The lanes of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._lanes.get(loop)
        if found is None:
            self._close(lambda other: other.is_closed())  # a connection may keep its loop, and so the entry, alive
            found = self._lanes[loop] = self._make()
            if self._closed:  # from another thread, after `here` was asked for
                found.close()
        return found

    def close(self) -> None:
        """Close them all: those of a loop that runs elsewhere by and by, those of one that ended at once."""
        self._closed = True
        self._close(lambda _: True)

    def _close(self, chosen: Callable[[asyncio.AbstractEventLoop], bool]) -> None:
        for loop in [ref() for ref in self._lanes.keyrefs()]:  # a copy: other threads' loops come meanwhile
            lanes = self._lanes.pop(loop, None) if loop is not None and chosen(loop) else None
            if loop is None or lanes is None:
                continue
            if loop is not _running() and loop.is_running():
                try:
                    loop.call_soon_threadsafe(lanes.close)
                    continue
                except RuntimeError:  # it has just ended
                    pass
            lanes.close()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
