"""Endpoints that run in a thread: a cancellation stops the wait for them, never them (R40, R41)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from fastapi.concurrency import run_in_threadpool

if TYPE_CHECKING:
    from collections.abc import Callable

    from twiceproof.server._fastapi_visit import Visit

T = TypeVar("T")


async def in_thread(visit: Visit | None, function: Callable[[], T]) -> T:
    """Run a function in the threadpool as Starlette does; a cancellation does not make us forget its outcome.

    Cancelled before the thread began: the handler did not run. Otherwise the true outcome is awaited for up to
    ``drain`` and settles the record, and the cancellation goes on after that; if it does not come in time, the
    record is left to lapse (R40, R41).
    """
    if visit is None or visit.run is None:
        return await run_in_threadpool(function)
    job = _Job(function)
    try:
        return await anyio.to_thread.run_sync(job)
    except asyncio.CancelledError as cancelled:
        if job.withdraw():
            visit.nothing = True
            raise
        if not await job.ended(visit.drain):
            visit.abandoned = True
            raise
        visit.cancelled = cancelled
        return job.outcome()
    finally:
        job.forget()


class _Job(Generic[T]):
    """A call in a thread, whose outcome outlives the task that waited for it."""

    __slots__ = ("_begun", "_ended", "_error", "_function", "_lock", "_loop", "_value", "_waiting", "_withdrawn")

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._begun = self._ended = self._withdrawn = False
        self._waiting: asyncio.Event | None = None
        self._value: Any = None
        self._error: BaseException | None = None

    def __call__(self) -> T:
        """Do it, in the thread."""
        with self._lock:
            if self._withdrawn:
                raise asyncio.CancelledError
            self._begun = True
        try:
            value: T = self._function()
            self._value = value
        except BaseException as error:
            self._error = error
            raise
        finally:
            with self._lock:
                self._ended = True
                waiting = self._waiting
            if waiting is not None:
                with contextlib.suppress(RuntimeError):  # the loop is gone, and with it who waited
                    self._loop.call_soon_threadsafe(waiting.set)
        return value

    def withdraw(self) -> bool:
        """Say that it need not begin any more; False where it has begun."""
        with self._lock:
            self._withdrawn = not self._begun
            return self._withdrawn

    async def ended(self, patience: float) -> bool:
        """Wait for the end for up to ``patience`` seconds, whoever else cancels meanwhile."""
        with self._lock:
            self._waiting = asyncio.Event()
        until = self._loop.time() + patience
        with anyio.CancelScope(shield=True):
            while not self._ended and (left := until - self._loop.time()) > 0:
                with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                    await asyncio.wait_for(self._waiting.wait(), left)
        return self._ended

    def outcome(self) -> T:
        """Return or raise what the function did."""
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def forget(self) -> None:
        """Let go of an error, whose traceback leads back here."""
        self._error = None
