"""The writing connection of a file in this process, and the thread that shares its commits (group commit).

Alone, a verb runs *inline*: at once, on the calling thread. In company it becomes a job in the queue, and what has
piled up goes into one transaction. A job is *begun* when the file's lock is held; until then, whoever waits for it
may withdraw it, and nothing was written. Outcomes are told after the commit only.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain, islice, repeat
from typing import Any, Final, TypeAlias, TypeVar

from twiceproof.core._record import Granted
from twiceproof.errors import StoreError, StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores._sqlite_file import File, busy
from twiceproof.stores._sqlite_flights import Flights
from twiceproof.stores._sqlite_jobs import Job, wake_all
from twiceproof.stores._sqlite_verbs import UNDECIDED, Undecided, Verb

T = TypeVar("T")
_AnyJob: TypeAlias = Job[Any]

_BATCH: Final = 256  # jobs in one transaction at most; their answers wait in memory for the commit
_PATIENCE: Final = (0.0005, 0.001, 0.002, 0.005, 0.01)  # seconds between two tries for the file's lock
_log: Final = logging.getLogger("twiceproof.stores")


class Writer:
    """Runs verbs that write. ``dropped`` is called when the connection was given up after an error."""

    def __init__(self, file: File, flights: Flights, dropped: Callable[[], None]) -> None:
        self._file = file
        self._flights = flights
        self._dropped = dropped
        self._turn = threading.Lock()  # held by whoever uses the connection
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._doubted = False
        self._bell = threading.Condition()  # guards the rest
        self._queue: dict[_AnyJob, None] = {}
        self._thread: threading.Thread | None = None
        self._closing = False

    @property
    def prepared(self) -> bool:
        """Whether the file is open and has its schema."""
        return self._connection is not None and not self._doubted

    def doubt(self) -> None:
        """Have the file opened anew before its next use: a read of it failed."""
        self._doubted = True

    def inline(self, verb: Verb[T]) -> T | Undecided:
        """Run ``verb`` on the calling thread if it is alone and the file is free; never waits for a lock."""
        if self._queue or self._flights.any() or not self._turn.acquire(blocking=False):
            return UNDECIDED
        try:
            if self._connection is None or self._doubted:
                return UNDECIDED  # opening may take its time: that is the thread's
            self._still_there()
            answer: T | Undecided = UNDECIDED
            if verb.read is not None:
                answer = verb.read(self._connection)  # its cache is warm
            if answer is UNDECIDED:
                answer = verb.write(self._connection)
        except sqlite3.Error as error:
            if busy(error):  # another process writes
                return UNDECIDED
            self._disconnect()
            raise self._told(error, commits=True) from error
        finally:
            self._turn.release()
        self._note(verb, answer)
        return answer

    def _still_there(self) -> None:
        """Refuse to write into a file that others can't find any more: they would grant the same keys again."""
        if self._file.identity() != self._identity:
            told = f"{self._file.path} was deleted or replaced while in use; put it back, or restart this process."
            _log.error("%s", told)
            raise StoreUnavailable(told)

    def put(self, job: _AnyJob) -> None:
        """Queue ``job``."""
        with self._bell:
            if self._closing:
                raise StoreUnavailable("The store is being closed.")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="twiceproof-sqlite", daemon=True)
                try:
                    thread.start()  # it waits for the bell
                except RuntimeError:
                    raise StoreUnavailable("No thread could be started: there are too many, or Python ends.") from None
                self._thread = thread
            self._queue[job] = None
            self._bell.notify()

    def withdraw(self, job: _AnyJob) -> bool:
        """Take ``job`` out of the queue; False where it was begun."""
        with self._bell:
            if job in self._queue:
                del self._queue[job]
                return True
            return False

    def close(self) -> None:
        """Do what is queued, as far as somebody waits for it, then close the connection; bounded by the time-out."""
        with self._bell:
            self._closing = True
            thread = self._thread
            self._bell.notify()
        if thread is not None:
            thread.join(self._file.timeout)
        elif self._turn.acquire(timeout=self._file.timeout):
            self._disconnect()
            self._turn.release()

    def _run(self) -> None:
        while self._await_work():
            with self._turn:
                try:
                    self._serve()
                except Exception as error:  # noqa: BLE001  # a fault of ours: whoever waits must hear of it all the same
                    _log.exception("The writer of %s failed.", self._file.path)
                    self._fail_all(error)
        with self._turn:
            self._disconnect()

    def _await_work(self) -> bool:
        with self._bell:
            while not self._queue and not self._closing:
                self._bell.wait()
            return bool(self._queue)

    def _serve(self) -> None:
        connection = self._locked()
        if connection is None:
            return
        with self._bell:
            batch = list(islice(self._queue, _BATCH))
            for job in batch:
                del self._queue[job]
        self._transaction(connection, batch)
        for job in batch:
            if job.error is None:
                self._note(job.verb, job.answer)
        wake_all(batch)

    def _locked(self) -> sqlite3.Connection | None:
        """Return the connection with the file's lock; None where nobody waits any more, or all were told why."""
        for patience in chain(_PATIENCE, repeat(_PATIENCE[-1])):
            if not self._queue:
                return None
            try:
                if self._doubted:
                    self._disconnect()
                if self._connection is None:
                    if self._identity is not None:
                        self._still_there()
                    self._connection = self._file.writer()
                    self._identity = self._file.identity()
                self._still_there()
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if not busy(error):
                    self._disconnect()
                    self._fail_all(self._told(error, commits=False))
                    return None
            except StoreError as error:
                self._fail_all(error)
                return None
            else:
                return self._connection
            time.sleep(patience)
        raise AssertionError

    def _transaction(self, connection: sqlite3.Connection, batch: Sequence[_AnyJob]) -> None:
        """Run the batch in the open transaction and commit; afterwards each job has its answer or its error.

        No savepoints: a statement that fails undoes itself, unless SQLite ended the whole transaction.
        """
        commits = False
        try:
            for job in batch:
                try:
                    job.run(connection)
                except sqlite3.Error as error:
                    if not connection.in_transaction:
                        raise
                    job.error = self._told(error, commits=False)
            commits = True
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            told = self._told(error, commits=commits)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(batch) > 1 and not isinstance(told, StoreOutcomeUnknown):
                self._one_by_one(connection, batch)
            else:
                self._fail(batch, told)
                self._doubted = True

    def _one_by_one(self, connection: sqlite3.Connection, batch: Sequence[_AnyJob]) -> None:
        """Give each job a transaction of its own: one of them spoiled the common one, and nothing was written."""
        for job in batch:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                self._fail([job], self._told(error, commits=False))
            else:
                self._transaction(connection, [job])

    def _fail_all(self, error: Exception) -> None:
        with self._bell:
            batch = list(self._queue)
            self._queue.clear()
        self._fail(batch, error)
        wake_all(batch)

    def _fail(self, batch: Sequence[_AnyJob], error: Exception) -> None:
        for job in batch:
            job.error = type(error)(*error.args)  # one each: a raised error collects its raiser's frames

    def _note(self, verb: Verb[T], answer: T | Undecided) -> None:
        """Keep the company count after ``verb`` was answered."""
        if verb.begins is not None and isinstance(answer, Granted):
            self._flights.begin(*verb.begins)
        if verb.ends is not None:
            self._flights.end(verb.ends)

    def _told(self, error: sqlite3.Error, *, commits: bool) -> StoreUnavailable:
        told = self._file.told(error, commits=commits)
        _log.warning("%s", told)
        return told

    def _disconnect(self) -> None:
        self._doubted = False
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
            self._dropped()
