"""Engine: runs the steps on the calling thread."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Self, Unpack, assert_never

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._outcome import Answered, DontKnow, NothingHappened, Outcome, Raised, Verdict
from twiceproof.engine._attempt import Attempt, Run
from twiceproof.engine._front import Front
from twiceproof.engine._keeper import Keeper, perform_write
from twiceproof.engine._options import EngineOptions, check_policy, logger, store_timeout
from twiceproof.engine._verdict import checked_verdict
from twiceproof.errors import NotExecuted, StoreOutcomeUnknown, StoreUnavailable
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
        steps, new = run.steps, run.call.new
        try:
            step = steps.send(value)
            while True:
                match step:
                    case core.DoNote(name, code):
                        self.settings.emit(name, code, new)
                        step = steps.send(None)
                    case core.DoRun(granted):
                        run.attempt.granted(run.call.key, granted)
                        self._keeper.watch(run)
                        return None
                    case core.DoLater(write, withdrawal):
                        self._keeper.later(write, new, withdrawal=withdrawal)
                        run.pending = not withdrawal
                        step = steps.send(None)
                    case core.DoPause(seconds):
                        time.sleep(seconds)
                        step = steps.send(False)  # noqa: FBT003  # nobody can tell that a blocking client left
                    case core.DoAsk(record):
                        step = steps.send(_ask(run.call, record))
                    case _:
                        try:
                            back = self._perform(step)
                        except StoreUnavailable as error:
                            step = steps.throw(error)
                        else:
                            step = steps.send(back)
        except StopIteration as end:
            ended: life.Reply | life.Bypass | None = end.value
            return ended
        finally:
            if run.finished and not run.pending:
                self._keeper.unwatch(run)

    def _perform(self, step: core.StoreStep) -> Any:  # noqa: ANN401  # each verb has its own answer
        store = self.store
        try:
            match step:
                case core.DoClaim(new, lease, nonce, after):
                    return store.claim(new, lease, nonce, after)
                case core.DoClaimUnsettled(id, lease, nonce, every):
                    return store.claim_unsettled(id, lease, nonce, every)
                case core.DoComplete() | core.DoRelease() | core.DoPark():
                    return perform_write(store, step)
                case _:
                    assert_never(step)
        except StoreUnavailable as error:
            logger.warning("the store failed at %s: %s", type(step).__name__, error)
            raise
        except Exception as error:
            logger.exception("the store failed at %s", type(step).__name__)
            raise StoreOutcomeUnknown from error


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
