"""Engine: runs the steps on the calling thread."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import TYPE_CHECKING, Self, Unpack, assert_never

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._outcome import Answered, DontKnow, NothingHappened, Outcome, Raised, Verdict
from twiceproof.engine._attempt import Attempt, Run
from twiceproof.engine._front import Front
from twiceproof.engine._keeper import Keeper, perform_write
from twiceproof.engine._options import EngineOptions, check_policy, logger, store_timeout
from twiceproof.engine._store_failure import store_failure
from twiceproof.engine._verdict import checked_verdict
from twiceproof.errors import NotExecuted, StoreUnavailable
from twiceproof.stores import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from twiceproof.core._messages import Request, Response
    from twiceproof.core._policy import Policy
    from twiceproof.core._record import Record


class Engine(Front[Store]):
    """Makes operations safe to retry, from blocking code and from any number of threads.

    ``store`` is a URL or a `Store`. Raises `ConfigurationError` where the set-up can't keep its promise. It opens
    itself at the first request of a process; `close` drains it, and so does the end of the interpreter (R41).
    """

    def __init__(self, store: str | Store, **options: Unpack[EngineOptions]) -> None:
        if isinstance(store, str):
            store = open_store(store, timeout=store_timeout(options))
        super().__init__(store, **options)
        self._keeper = Keeper(self.store.renewer, self.settings)
        self._pid = 0
        _close_at_exit(self)

    def open(self) -> None:
        """Open the store in this process; later calls change nothing."""
        if self._keeper.pid != os.getpid() or self._keeper.closed:
            self._keeper = Keeper(self.store.renewer, self.settings)
        self.store.open()
        self._pid = os.getpid()

    def close(self) -> None:
        """Finish what runs for up to ``drain`` seconds, then let go of thread and store (R41)."""
        if self._pid == os.getpid():
            self._keeper.drain(self.settings.drain)
            self._keeper.close()
            self.store.close()
        self._pid = 0

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def begin(
        self,
        request: Request,
        principal: str,
        policy: Policy,
        *,
        key: str | None = None,
        attempt: Attempt | None = None,
    ) -> life.Reply | life.Bypass | Run:
        """Claim the key of a request: see `AsyncEngine.begin`."""
        if key is None:
            admitted = self.admit(request.method, request.headers, policy)
            if not isinstance(admitted, life.Keyed):
                return admitted
            key = admitted.key
        if self._pid != os.getpid():
            try:
                self.open()
            except StoreUnavailable:
                logger.exception("the store could not be opened")
        call = self._call(request, key, principal, policy)
        run = Run(attempt or Attempt(key), call, core.steps(call))
        try:
            answer = self._drive(run, None)
        except BaseException:  # an interrupt between claim and handler (R40)
            self._keeper.later(core.DoRelease(call.new.id, call.nonce), call.new, withdrawal=True)
            raise
        return answer if answer is not None else run

    def finish(self, run: Run, outcome: Outcome) -> None:
        """Settle a run with its outcome (CONTRACT 5)."""
        if run.finished:
            return
        run.finished = True
        self._drive(run, outcome)

    def handle(
        self, request: Request, principal: str, policy: Policy, handler: Callable[[Request, Attempt], Response]
    ) -> Response:
        """Begin, run ``handler(request, attempt)``, finish: see `AsyncEngine.handle`."""
        attempt = Attempt()
        begun = self.begin(request, principal, policy, attempt=attempt)
        if isinstance(begun, life.Reply):
            return begun.response
        if isinstance(begun, life.Bypass):
            return handler(request, attempt)
        outcome: Outcome = Raised()
        try:
            response = handler(request, attempt)
            outcome = Answered(response, attempt.released)
        except NotExecuted:
            outcome = NothingHappened()
            raise
        finally:
            self.finish(begun, outcome)
        return response

    def _drive(self, run: Run, value: object) -> life.Reply | life.Bypass | None:
        """Send ``value`` into the steps and do what they ask: see `AsyncEngine`."""
        steps, new, store = run.steps, run.call.new, self.store
        back: object
        try:
            step = steps.send(value)
            while True:
                try:
                    match step:
                        case core.DoClaim():
                            back = store.claim(step.new, step.lease, step.nonce, step.after)
                        case core.DoRun():
                            run.attempt.granted(run.call.key, step.granted)
                            self._keeper.watch(run)
                            return None
                        case core.DoComplete() | core.DoRelease() | core.DoPark():
                            back = perform_write(store, step)
                        case core.DoNote():
                            back = self.settings.emit(step.name, step.code, new)
                        case core.DoLater():
                            run.pending = not step.withdrawal
                            back = self._keeper.later(step.write, new, withdrawal=step.withdrawal)
                        case core.DoPause():
                            back = time.sleep(step.seconds)  # nobody can tell that a blocking client left
                        case core.DoAsk():
                            back = _ask(run.call, step.record)
                        case core.DoClaimUnsettled():
                            back = store.claim_unsettled(step.id, step.lease, step.nonce, step.every)
                        case _:
                            assert_never(step)
                except Exception as error:
                    step = steps.throw(store_failure(step, error))
                else:
                    step = steps.send(back)
        except StopIteration as end:
            ended: life.Reply | life.Bypass | None = end.value
            return ended
        finally:
            if run.finished and not run.pending:
                self._keeper.unwatch(run)


def _ask(call: core.Call, record: Record) -> Verdict:
    """Ask the reconcile hook; one that takes too long loses its second claim, so its verdict is fenced (R28)."""
    hook = call.policy.reconcile
    if hook is None:
        return DontKnow()
    try:
        verdict = hook(record, call.request)
    except Exception:
        logger.exception("the reconcile hook failed; the outcome stays unknown")
        return DontKnow()
    return checked_verdict(verdict)


def _close_at_exit(engine: Engine) -> None:
    """Close at the end of the interpreter, unless the engine is gone by then."""
    alive = weakref.ref(engine)

    def close() -> None:
        found = alive()
        if found is not None:
            found.close()

    atexit.register(close)
    weakref.finalize(engine, atexit.unregister, close)
