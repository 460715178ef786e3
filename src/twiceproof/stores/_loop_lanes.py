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
    """A task that waits for its answer."""

    verb: V
    answered: asyncio.Future[object]


class LoopLanes(Generic[V]):
    """At most ``size`` connections to ``where``, used on one event loop."""

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncLane[V]]], where: str, *, size: int, timeout: float
    ) -> None:
        self._connect = connect
        self._where = where
        self._timeout = timeout
        self._free: list[_Slot[V]] = [_Slot() for _ in range(size)]
        self._pile: Pile[_Waiting[V]] = Pile()
        self._closed = False
        self._rest = Rest()
        self._batches: set[asyncio.Task[None]] = set()

    async def run(self, verb: V) -> object:
        """Return what the store answers, or raise what it raises."""
        if self._free:
            slot = self._free.pop()  # the one that was used last
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
        waiting = _Waiting(verb, loop.create_future())
        self._pile.add(waiting)
        timer = loop.call_later(self._timeout, self._give_up, waiting)
        try:
            return await waiting.answered
        finally:
            timer.cancel()
            if waiting.answered.cancelled():  # what has gone out goes on, and its answer is dropped
                self._pile.withdraw(waiting)

    def _give_up(self, waiting: _Waiting[V]) -> None:
        """Tell a verb that was never sent; one that has gone out is told by its lane, which keeps the time-out."""
        if self._pile.withdraw(waiting) and not waiting.answered.done():
            waiting.answered.set_result(no_turn(self._where, self._timeout))

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

    @property
    def here(self) -> LoopLanes[V]:
        """The lanes of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._lanes.get(loop)
        if found is None:
            found = self._lanes[loop] = self._make()
        return found

    def close(self) -> None:
        """Close them all; those of a loop that ended have nothing to close any more."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop, lanes in list(self._lanes.items()):
            if loop is here:
                lanes.close()
            elif loop.is_running():
                loop.call_soon_threadsafe(lanes.close)
        self._lanes.clear()
