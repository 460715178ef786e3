"""Records in one SQLite file, for any number of processes on one host."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import twiceproof.stores._sqlite_verbs as verbs
from twiceproof.core._record import (
    ClaimAnswer,
    ClaimRef,
    Granted,
    NewRecord,
    Record,
    UnsettledAnswer,
    WriteAnswer,
)
from twiceproof.errors import ConfigurationError, StoreOutcomeUnknown, StoreUnavailable, UnknownFormat
from twiceproof.stores._protocol import Capabilities, Filter, Page, Purged
from twiceproof.stores._sqlite_file import File, Synchronous, resolved
from twiceproof.stores._sqlite_flights import Flights
from twiceproof.stores._sqlite_jobs import LoopJob, ThreadJob
from twiceproof.stores._sqlite_lanes import Database
from twiceproof.stores._sqlite_statements import SCHEMA
from twiceproof.stores._sqlite_verbs import UNDECIDED, Verb
from twiceproof.stores._sqlite_writer import Writer
from twiceproof.stores._url import parse_url

T = TypeVar("T")
_YIELDS_EVERY: Final = 4  # grants at once: tasks that never wait would each seem to be alone; a turn costs 5 % of one
_CAPABILITIES: Final = Capabilities(durable=True)


class SqliteStore:
    """Keep records in the SQLite file ``path`` (or ``sqlite:///…`` URL), from any thread of any process on one host.

    The first verb opens the file and makes its schema; so does the first after `close`, and after a fork. A verb
    takes at most ``timeout`` seconds to get its turn to write; reads need none.

    ``synchronous="FULL"``: a claim is on disk before the handler starts. ``"NORMAL"`` saves that wait: a process
    that dies loses nothing, but after a power cut or a crash of the host the last claims and answers may be gone,
    and a retry then runs the handler again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 2.0,
        synchronous: Synchronous = "FULL",
        _clock: Callable[[], float] | None = None,
        _flights: Flights | None = None,
    ) -> None:
        self._database = Database(_file(path, timeout, synchronous, _clock), _flights)
        weakref.finalize(self, self._database.close)  # where nobody calls close: at exit, or when it is dropped

    def __str__(self) -> str:
        return f"sqlite, {self._database.file.path}"

    @property
    def capabilities(self) -> Capabilities:
        """Durable, not shared between hosts."""
        return _CAPABILITIES

    def open(self) -> None:
        """Open the file and make its schema; raises `ConfigurationError` for the schema of a later release."""
        try:
            self._run(verbs.ready())
        except UnknownFormat as error:
            raise ConfigurationError(str(error)) from None

    def schema(self) -> str:
        """See `HasSchema.schema`; opening the file makes it, too."""
        return "".join(f"{inspect.cleandoc(statement)};\n" for statement in SCHEMA)

    def init(self) -> None:
        """See `HasSchema.init`."""
        self.open()

    def close(self) -> None:
        """Do what is queued, within the time-out, and close; a later verb opens again."""
        self._database.close()

    def check(self) -> Sequence[str]:
        """See `Store.check`."""
        return self._database.file.check()

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`."""
        return self._run(verbs.claim(new, lease, nonce, after))

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        return self._run(verbs.claim_unsettled(id, lease, nonce, every, force=force))

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`."""
        self._database.flights.prolong((ref.nonce for ref in claims), lease)
        return self._run(verbs.renew(claims, lease))

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        return self._run(verbs.complete(id, nonce, answer, retention))

    def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        return self._run(verbs.release(id, nonce))

    def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        return self._run(verbs.park(id, nonce, cause))

    def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        return self._run(verbs.forget(id, nonce))

    def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        return self._run(verbs.get(id))

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `Store.scan`; raises `ValueError` for a cursor that no page carried."""
        return self._run(verbs.scan(filter, cursor, limit, self._database.file.timeout))

    def purge(self, limit: int) -> Purged:
        """See `Store.purge`."""
        return self._run(verbs.purge(limit))

    def renewer(self) -> SqliteStore:
        """Return a store on connections of its own that counts the same handlers as company."""
        return _twin(self._database)

    def _run(self, verb: Verb[T]) -> T:
        lanes = self._database.lanes
        answer = lanes.at_once(verb)
        if answer is not UNDECIDED:
            return answer
        job = ThreadJob(verb)
        lanes.writer.put(job)
        if not job.wait(self._database.file.timeout):
            late = _late(lanes.writer, job, self._database.file)
            if not job.wait(0):  # it may have ended just now
                raise late
        return job.outcome()


class AsyncSqliteStore:
    """The asynchronous colour of `SqliteStore`, for any number of event loops.

    A verb that is alone in its process runs on the loop's thread, which waits for the disk, never for a lock; in
    company it is the writer thread's. A cancelled call that was begun goes on, and its answer is dropped.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 2.0,
        synchronous: Synchronous = "FULL",
        _clock: Callable[[], float] | None = None,
    ) -> None:
        self._database = Database(_file(path, timeout, synchronous, _clock))
        self._granted_at_once = 0
        weakref.finalize(self, self._database.close)

    def __str__(self) -> str:
        return f"sqlite, {self._database.file.path}"

    @property
    def capabilities(self) -> Capabilities:
        """See `SqliteStore.capabilities`."""
        return _CAPABILITIES

    async def open(self) -> None:
        """See `SqliteStore.open`."""
        try:
            await self._run(verbs.ready())
        except UnknownFormat as error:
            raise ConfigurationError(str(error)) from None

    async def close(self) -> None:
        """See `SqliteStore.close`."""
        await asyncio.to_thread(self._database.close)

    def check(self) -> Sequence[str]:
        """See `Store.check`."""
        return self._database.file.check()

    async def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`."""
        return await self._run(verbs.claim(new, lease, nonce, after))

    async def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        return await self._run(verbs.claim_unsettled(id, lease, nonce, every, force=force))

    async def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`."""
        self._database.flights.prolong((ref.nonce for ref in claims), lease)
        return await self._run(verbs.renew(claims, lease))

    async def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        return await self._run(verbs.complete(id, nonce, answer, retention))

    async def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        return await self._run(verbs.release(id, nonce))

    async def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        return await self._run(verbs.park(id, nonce, cause))

    async def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        return await self._run(verbs.forget(id, nonce))

    async def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        return await self._run(verbs.get(id))

    async def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `SqliteStore.scan`."""
        verb = verbs.scan(filter, cursor, limit, self._database.file.timeout)
        answer = await asyncio.to_thread(self._database.lanes.at_once, verb)  # it may read the whole file
        return answer if answer is not UNDECIDED else await self._run(verb)

    async def purge(self, limit: int) -> Purged:
        """See `Store.purge`."""
        return await self._run(verbs.purge(limit))

    def renewer(self) -> SqliteStore:
        """See `SqliteStore.renewer`."""
        return _twin(self._database)

    async def _run(self, verb: Verb[T]) -> T:
        lanes = self._database.lanes
        answer = lanes.at_once(verb)
        if answer is not UNDECIDED:
            if verb.begins is not None and isinstance(answer, Granted):
                self._granted_at_once += 1
                if self._granted_at_once % _YIELDS_EVERY == 0:
                    await asyncio.sleep(0)  # with this claim in flight: the others show that they are there
            return answer
        loop = asyncio.get_running_loop()
        job = LoopJob(verb, loop)
        lanes.writer.put(job)
        timer = loop.call_later(self._database.file.timeout, _give_up, lanes.writer, job, self._database.file)
        try:
            await job.future
        except asyncio.CancelledError:
            lanes.writer.withdraw(job)
            raise
        finally:
            timer.cancel()
        return job.outcome()


def _file(
    path: str | os.PathLike[str],
    timeout: float,
    synchronous: Synchronous,
    clock: Callable[[], float] | None,
) -> File:
    if isinstance(path, str) and path.startswith("sqlite:"):
        target = parse_url(path)
        path, synchronous = target.path, target.options.get("synchronous", synchronous)
    if not (math.isfinite(timeout) and timeout > 0):
        raise ConfigurationError(f"timeout must be a number of seconds above 0, not {timeout}.")
    if synchronous not in ("FULL", "NORMAL"):
        raise ConfigurationError(f"synchronous must be 'FULL' or 'NORMAL', not {synchronous!r}.")
    return File(resolved(path), timeout, synchronous, clock)


def _twin(database: Database) -> SqliteStore:
    file = database.file
    return SqliteStore(
        file.path,
        timeout=file.timeout,
        synchronous=file.synchronous,
        _clock=file.clock,
        _flights=database.flights,
    )


def _late(writer: Writer, job: ThreadJob[T] | LoopJob[T], file: File) -> StoreUnavailable:
    """Return what to raise for a job that took too long; it is withdrawn if it was not begun (R48)."""
    if writer.withdraw(job):
        return StoreUnavailable(f"{file.path}: no turn to write within {file.timeout} s; somebody else holds its lock.")
    return StoreOutcomeUnknown(f"{file.path}: no answer within {file.timeout} s; the write may take place yet.")


def _give_up(writer: Writer, job: LoopJob[T], file: File) -> None:
    if not job.future.done():
        job.future.set_exception(_late(writer, job, file))
