"""The engine's one thread: it renews live claims, repeats writes that the store refused, and purges.

It serves both colours, on a blocking store of its own (`Store.renewer`). Its clock is the monotonic one of this
process; every moment that decides something is the store's.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from twiceproof.core._background import after_renewal, is_over
from twiceproof.core._engine import DoComplete, DoLater, DoPark, DoRelease, Write
from twiceproof.core._policy import seconds
from twiceproof.core._record import ClaimRef, Fenced, WriteAnswer
from twiceproof.engine._maintenance import tell_purged
from twiceproof.engine._options import PURGE_ROWS, Settings, logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from twiceproof.core._record import NewRecord
    from twiceproof.engine._attempt import Run
    from twiceproof.stores import Store

FIRST_RETRY: Final = 0.05
LONGEST_RETRY: Final = 5.0
RENEWED_AT_ONCE: Final = 500


@dataclass(slots=True, eq=False)
class Pending:
    """A write to repeat (R47, R48), until it took place or ``until``."""

    job: DoLater
    new: NewRecord
    since: float
    until: float
    due: float
    delay: float = FIRST_RETRY

    def put_off(self, now: float) -> None:
        """Try again later, and later each time."""
        self.delay = min(self.delay * 2, LONGEST_RETRY)
        self.due = now + self.delay


class Keeper:
    """Owns the thread. All methods but those of the thread may be called from anywhere."""

    def __init__(self, renewer: Callable[[], Store], settings: Settings) -> None:
        self._renewer = renewer
        self._settings = settings
        self._runs: dict[bytes, Run] = {}
        self._due: dict[float, float] = {}  # lease length -> when its claims are renewed next
        self._pending: OrderedDict[bytes, Pending] = OrderedDict()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._quiet = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._purge_due = time.monotonic() + settings.purge_every
        self._store: Store | None = None
        self.closed = False

    def watch(self, run: Run) -> None:
        """Renew a run's claim until `unwatch` or its ``max_runtime`` (R31)."""
        run.started_at = run.renewed_at = time.monotonic()
        self._runs[run.call.nonce] = run
        lease = seconds(run.call.policy.lease)
        run.attempt.renewed(run.started_at, lease)
        if lease not in self._due:
            self._due[lease] = run.started_at + lease / 3
            self._wake.set()
        if self._thread is None:
            self._start()

    def unwatch(self, run: Run) -> None:
        """Stop renewing: the claim is settled."""
        self._runs.pop(run.call.nonce, None)
        if self._stopping:
            with self._quiet:
                self._quiet.notify_all()

    def later(self, job: DoLater, new: NewRecord) -> None:
        """Repeat a write in the background; beyond ``complete_backlog`` the oldest are left to lapse (R47)."""
        now = time.monotonic()
        until = now + self._settings.complete_retry
        dropped: list[Pending] = []
        with self._lock:
            if self.closed:
                logger.error("the engine is closed; a record that could not be settled is left to lapse")
                return
            self._pending[job.write.nonce] = Pending(job, new, now, until, now + FIRST_RETRY)
            while len(self._pending) > self._settings.complete_backlog:
                dropped.append(self._pending.popitem(last=False)[1])
        for old in dropped:
            self._give_up(old)
        self._start()
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing is pending."""
        return not (self._runs or self._pending)

    def drain(self, timeout: float, *, runs: bool = True) -> bool:
        """Wait at most ``timeout`` seconds until nothing is pending and nothing runs; say whether that is so (R41)."""
        with self._quiet:
            self._stopping = True
            self._wake.set()
            return self._quiet.wait_for(lambda: not self._pending and not (runs and self._runs), timeout)

    def close(self) -> None:
        """End the thread; what it still held is left to lapse."""
        with self._lock:
            self._stopping = self.closed = True
            thread, self._thread = self._thread, None
            self._runs.clear()
            left, self._pending = self._pending, OrderedDict()
        for pending in left.values():
            self._give_up(pending)
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._settings.store_timeout + 1)

    # ------------------------------------------------------------------ the thread

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self.closed:
                return
            thread = threading.Thread(target=self._work, name="twiceproof-keeper", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter ends: the next call tries again
                logger.exception("no thread could be started: claims are not renewed")
                return
            self._thread = thread

    def _work(self) -> None:
        try:
            while not self.closed:
                try:
                    self._wake.wait(self._pause())
                    self._wake.clear()
                    if self.closed:
                        break
                    self._renew()
                    self._repeat()
                    self._purge()
                except Exception:  # noqa: BLE001  # the claims of a whole process depend on this thread
                    logger.exception("the engine's thread met an error and goes on")
        finally:
            if self._store is not None:
                with contextlib.suppress(Exception):
                    self._store.close()
                self._store = None

    def _pause(self) -> float | None:
        with self._lock:
            dues = [pending.due for pending in self._pending.values()]
        dues += list(self._due.values())
        if self._settings.purge_every:
            dues.append(self._purge_due)
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _opened(self) -> Store:
        if self._store is None:
            store = self._renewer()
            store.open()
            self._store = store
        return self._store

    def _renew(self) -> None:
        """Renew the claims whose third of a lease is over, one statement per lease length (R31)."""
        now = time.monotonic()
        for lease, due in list(self._due.items()):
            if due > now:
                continue
            runs: list[Run] = []
            for run in list(self._runs.values()):
                policy = run.call.policy
                if policy.lease != lease:
                    continue
                if now - run.started_at > seconds(policy.max_runtime) and run.call.nonce not in self._pending:
                    run.attempt.lost()
                    self._dismiss(run.call.nonce)
                else:
                    runs.append(run)
            if not self._rest(lease, runs):
                self._due[lease] = now + lease / 3
            for at in range(0, len(runs), RENEWED_AT_ONCE):
                if not self._renew_some(runs[at : at + RENEWED_AT_ONCE], lease):
                    self._due[lease] = now + lease / 6

    def _rest(self, lease: float, runs: list[Run]) -> bool:
        """Wake no more for a lease length that nobody has; one that was watched meanwhile is seen here or sees that."""
        if runs:
            return False
        del self._due[lease]
        return not any(run.call.policy.lease == lease for run in list(self._runs.values()))

    def _renew_some(self, runs: list[Run], lease: float) -> bool:
        sent = time.monotonic()
        try:
            fenced = self._opened().renew([ClaimRef(run.call.new.id, run.call.nonce) for run in runs], lease)
        except Exception as error:  # noqa: BLE001  # whatever a store raises must not end renewal
            logger.warning("%d claims could not be renewed: %s", len(runs), type(error).__name__)
            for run in runs:
                self._park_again(run)
            return False
        lost = {ref.nonce for ref in fenced}
        for run in runs:
            if run.call.nonce not in lost:
                run.renewed_at = sent
                run.attempt.renewed(sent, lease)
                self._park_again(run)
            elif self._dismiss(run.call.nonce) and not run.finished:
                run.attempt.lost()
                self._settings.emit("fenced", "renew", run.call.new)
        return True

    def _park_again(self, run: Run) -> None:
        """Park once more what was parked meanwhile: the renewal may have come second, and have undone it (R28)."""
        job = after_renewal(run.parked)
        if job is not None:
            self.later(job, run.call.new)

    def _repeat(self) -> None:
        """Try the writes that are due; several in a row as long as the store answers (R47)."""
        with self._lock:
            waiting = list(self._pending.values())
        for pending in waiting:
            now = time.monotonic()
            if min(self._due.values(), default=math.inf) <= now:
                break  # R31: however much is pending, live claims go first
            if pending.due > now or self._pending.get(pending.job.write.nonce) is not pending:
                continue
            try:
                back = perform_write(self._opened(), pending.job.write)
            except Exception as error:  # noqa: BLE001  # whatever a store raises, the answer is not given up
                logger.warning("a write of a settled claim is repeated: %s", type(error).__name__)
                now = time.monotonic()
                pending.put_off(now)
                if now < pending.until:
                    break
                self._forget(pending)
                self._give_up(pending)
                continue
            now = time.monotonic()
            job = pending.job
            if is_over(job, back, recent=now < pending.since + self._settings.store_timeout):
                self._forget(pending)
            else:
                pending.put_off(now)
                pending.job = DoLater(job.write)  # it is told once
            if job.note:
                self._settings.emit("fenced" if isinstance(back, Fenced) else job.note, "", pending.new)

    def _forget(self, pending: Pending) -> None:
        with self._quiet:
            if self._pending.get(pending.job.write.nonce) is pending:
                del self._pending[pending.job.write.nonce]
        self._dismiss(pending.job.write.nonce)

    def _dismiss(self, nonce: bytes) -> bool:
        """Renew a run no longer; say whether it was still renewed."""
        run = self._runs.pop(nonce, None)
        with self._quiet:
            self._quiet.notify_all()
        return run is not None

    def _give_up(self, pending: Pending) -> None:
        self._dismiss(pending.job.write.nonce)
        if pending.job.note:
            logger.error("an answer could not be stored; its record is left to lapse")
            self._settings.emit("complete_retried", "given-up", pending.new)

    def _purge(self) -> None:
        """Delete what expired, a bounded step at a time (R33)."""
        now = time.monotonic()
        if not self._settings.purge_every or now < self._purge_due:
            return
        self._purge_due = now + self._settings.purge_every
        try:
            purged = self._opened().purge(PURGE_ROWS)
        except Exception as error:  # noqa: BLE001  # the next step tries again
            logger.warning("expired records could not be purged: %s", type(error).__name__)
            return
        if purged.records >= PURGE_ROWS:
            self._purge_due = now + min(0.1, self._settings.purge_every)  # there is more, but claims go first
        tell_purged(self._settings, purged)


def perform_write(store: Store, write: Write) -> WriteAnswer:
    """Do one of the writes that settle a claim."""
    match write:
        case DoComplete(id, nonce, answer, retention):
            return store.complete(id, nonce, answer, retention)
        case DoRelease(id, nonce):
            return store.release(id, nonce)
        case DoPark(id, nonce, cause):
            return store.park(id, nonce, cause)
        case _:
            assert_never(write)
