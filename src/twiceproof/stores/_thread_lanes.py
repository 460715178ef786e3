"""The lanes of the blocking colour: whoever gets a lane does the work of all who waited for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from twiceproof.errors import StoreError, StoreOutcomeUnknown
from twiceproof.stores._lanes import Lane, Pile, Rest, V, all_failed, no_turn


@dataclass(slots=True, eq=False)
class _Slot(Generic[V]):
    """A place for one connection, which is made when it is needed."""

    lane: Lane[V] | None = None

    def close(self) -> None:
        if self.lane is not None:
            lane, self.lane = self.lane, None
            lane.close()


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class _Waiting(Generic[V]):
    """A thread that waits for an answer, or for its turn to do a batch: that is ``slot`` and ``batch``."""

    verb: V
    told: threading.Lock = field(default_factory=_taken)
    answer: object = None
    slot: _Slot[V] | None = None
    batch: list[_Waiting[V]] | None = None


class ThreadLanes(Generic[V]):
    """At most ``size`` connections to ``where``, for any number of threads."""

    def __init__(self, connect: Callable[[], Lane[V]], where: str, *, size: int, timeout: float) -> None:
        self._connect = connect
        self._where = where
        self._timeout = timeout
        self._guard = threading.Lock()  # over what follows
        self._free: list[_Slot[V]] = [_Slot() for _ in range(size)]
        self._pile: Pile[_Waiting[V]] = Pile(size)
        self._closed = False
        self._rest = Rest()

    def run(self, verb: V) -> object:
        """Return what the store answers, or raise what it raises."""
        taken = self._take(verb)
        if isinstance(taken, _Waiting):
            answer = self._awaited(taken)
        else:
            try:
                (answer,) = self._send(taken, (verb,))
            finally:
                self._pass_on(taken)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Close what is free now, and the rest when it is; what was called before is still answered."""
        with self._guard:
            self._closed = True
            free, self._free = self._free, []
        for slot in free:
            slot.close()

    def _take(self, verb: V) -> _Slot[V] | _Waiting[V]:
        with self._guard:
            if self._free:
                return self._free.pop()  # the one that was used last
            if self._closed:
                return _Slot()  # whoever fetched the lanes before they were closed has one for the moment
            waiting = _Waiting(verb)
            self._pile.add(waiting)
            return waiting

    def _awaited(self, waiting: _Waiting[V]) -> object:
        try:
            if not waiting.told.acquire(timeout=self._timeout):
                if self._withdrawn(waiting):
                    return no_turn(self._where, self._timeout)
                waiting.told.acquire()  # it has just gone out, and a lane keeps the time-out
        except BaseException:  # an interrupt (R40); those whose turn came with this one still wait for it
            if not self._withdrawn(waiting):
                self._lead(waiting)
            raise
        self._lead(waiting)
        return waiting.answer

    def _withdrawn(self, waiting: _Waiting[V]) -> bool:
        with self._guard:
            return self._pile.withdraw(waiting)

    def _lead(self, waiting: _Waiting[V]) -> None:
        """Do the batch, if there is one whose first is the caller's own, and tell the others."""
        if waiting.slot is not None and waiting.batch is not None:
            self._do(waiting.slot, waiting.batch)

    def _do(self, slot: _Slot[V], batch: list[_Waiting[V]]) -> None:
        answers: Sequence[object] = [StoreOutcomeUnknown() for _ in batch]
        try:
            answers = self._send(slot, [waiting.verb for waiting in batch])
        except Exception as error:  # noqa: BLE001  # whatever it is, each of them must hear of it
            answers = all_failed(error, len(batch))
        finally:
            self._pass_on(slot)
            for waiting, answer in zip(batch, answers, strict=True):
                waiting.answer = answer
                if waiting is not batch[0]:
                    waiting.told.release()

    def _send(self, slot: _Slot[V], verbs: Sequence[V]) -> Sequence[object]:
        try:
            if slot.lane is not None and not slot.lane.usable():
                slot.close()
            if slot.lane is None:
                self._rest.check()
                slot.lane = self._connected()
            return slot.lane.run(verbs)
        except BaseException as error:
            slot.close()
            if isinstance(error, StoreOutcomeUnknown):
                self._doubt()
            raise

    def _connected(self) -> Lane[V]:
        try:
            lane = self._connect()
        except StoreError as error:
            self._rest.begin(error)
            raise
        self._rest.end()
        return lane

    def _doubt(self) -> None:
        """Close the idle connections, too: what broke one has probably broken them all."""
        with self._guard:
            for slot in self._free:
                slot.close()

    def _pass_on(self, slot: _Slot[V]) -> None:
        """Give the lane to those who wait, else to whoever comes."""
        with self._guard:
            if self._pile:
                batch = self._pile.batch()
                first = batch[0]
                first.slot, first.batch = slot, batch
                first.told.release()
            elif self._closed:
                slot.close()
            else:
                self._free.append(slot)
