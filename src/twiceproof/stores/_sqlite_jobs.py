"""What waits in the writer's queue: a verb, and how its outcome reaches the thread or the task that called it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

from twiceproof.stores._sqlite_verbs import UNDECIDED, Undecided, Verb

T = TypeVar("T")


class Job(Generic[T]):
    """One verb on its way. It ends with an answer or an error."""

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, verb: Verb[T]) -> None:
        self.verb: Final = verb
        self.answer: T | Undecided = UNDECIDED
        self.error: Exception | None = None

    def run(self, connection: sqlite3.Connection) -> None:
        """Keep what the verb answers. SQLite's own errors pass: the transaction judges them."""
        self.error = None
        try:
            self.answer = self.verb.write(connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001  # its caller's to see; the others of the batch go on
            self.error = error

    def wake(self) -> None:
        """Hand the outcome to whoever waits; on the loop's thread where there is a ``loop``."""
        raise NotImplementedError

    def outcome(self) -> T:
        """Return the answer, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.answer is not UNDECIDED, "asked for its outcome before it had ended"
        return self.answer


class ThreadJob(Job[T]):
    """A job that a thread waits for."""

    def __init__(self, verb: Verb[T]) -> None:
        super().__init__(verb)
        self._ended = threading.Lock()
        self._ended.acquire()

    def wake(self) -> None:
        """Let `wait` return."""
        self._ended.release()

    def wait(self, timeout: float) -> bool:
        """Return whether it ended within ``timeout`` seconds."""
        return self._ended.acquire(timeout=timeout)


class LoopJob(Job[T]):
    """A job that a task awaits."""

    def __init__(self, verb: Verb[T], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(verb)
        self.loop = loop
        self.future: Final[asyncio.Future[None]] = loop.create_future()

    def wake(self) -> None:
        """Let the task go on, unless it was cancelled or gave up."""
        if not self.future.done():
            self.future.set_result(None)


def wake_all(jobs: Iterable[Job[Any]]) -> None:
    """Tell every job's outcome, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
    for job in jobs:
        if job.loop is None:
            job.wake()
        else:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, its_jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_wake, its_jobs)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _wake(jobs: Iterable[Job[Any]]) -> None:
    for job in jobs:
        job.wake()
