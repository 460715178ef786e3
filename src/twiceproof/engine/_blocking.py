"""Engine: runs the steps on the calling thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self, Unpack, assert_never

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._outcome import Answered, DontKnow, NothingHappened, Outcome, Raised, Verdict
from twiceproof.engine._attempt import Attempt, Run
from twiceproof.engine._front import Front
from twiceproof.engine._handled import checked_answer, marked
from twiceproof.engine._keeper import perform_write
from twiceproof.engine._maintenance import Maintenance
from twiceproof.engine._options import PURGE_ROWS, EngineOptions, check_policy, logger, store_timeout
from twiceproof.engine._store_failure import store_failure
from twiceproof.engine._verdict import checked_verdict
from twiceproof.errors import NotExecuted, TwiceproofError
from twiceproof.stores import Purged, Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from twiceproof.core._messages import Request, Response
    from twiceproof.core._policy import Policy, Seconds
    from twiceproof.core._record import Record


class Engine(Front[Store]):
    """Makes operations safe to retry, from blocking code and from any number of threads.

    ``store`` is a URL or a `Store`. Raises `ConfigurationError` where the set-up can't keep its promise. It opens
    itself at the first request of a process; `close` drains it, and so does the end of the interpreter (R41).
    """

    asynchronous = False

    def __init__(self, store: str | Store, **options: Unpack[EngineOptions]) -> None:
        if isinstance(store, str):
            store = open_store(store, timeout=store_timeout(options))
        self._opened = False
        super().__init__(store, **options)

    def open(self) -> None:
        """Open the store; later calls change nothing."""
        self._ready_keeper()
        self.store.open()
        self._opened = True

    def close(self) -> None:
        """Finish what runs for up to ``drain`` seconds, then let go of thread and store (R41)."""
        self._opened = False
        self._keeper.drain(self.settings.drain)
        self._keeper.close()
        self.store.close()

    def forget_opening(self) -> None:
        self._opened = False

    def at_exit(self) -> None:
        if self._opened:
            self.close()

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
        if policy.reconcile is not None:
            check_policy(policy, asynchronous=False)
        if len(request.body) > policy.max_request_bytes:
            return self.refuse("request-too-large")  # R11
        if not self._opened:
            try:
                self.open()
            except TwiceproofError as error:
                logger.warning("the store could not be opened: %s", error)  # the claim will say so (R48, R17)
        call = self._call(request, key, principal, policy)
        run = Run(attempt or Attempt(key), call, core.steps(call))
        answer = self._drive(run, None)
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
            return marked(handler(request, attempt), begun)
        outcome: Outcome = Raised()
        try:
            response = checked_answer(handler(request, attempt))
            outcome = Answered(response, attempt.released)
        except NotExecuted:
            outcome = NothingHappened()
            raise
        finally:
            self.finish(begun, outcome)
        return response

    def maintain(self, *, within: Seconds | None = None) -> Purged:
        """Delete the records that have expired, at most 1,000 a step, until none is left (R33).

        For a cron job or a management command, where ``purge_every=0`` turns the engine's own purge off. It may run
        beside that, and in several processes: no record is counted twice, and where a store lets one purge at a time,
        another ends at once as if nothing were left. It tells the same ``purged`` events, one a step.

        ``within``: no step begins after so many seconds (a number or a `timedelta`); one step is always taken. Returns
        how many records went, and of how many of them nobody ever learned the outcome (R42). Opens the store where
        it is not; raises `StoreError` where that fails, and what was deleted before stays deleted.
        """
        work = Maintenance(self.settings, within)
        if not self._opened:
            self.open()
        while work.goes_on(self.store.purge(PURGE_ROWS)):
            pass
        return work.purged

    def _drive(  # noqa: C901, PLR0912, PLR0915  # one case per step, and no call between step and store
        self, run: Run, value: object
    ) -> life.Reply | life.Bypass | None:
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
                        case core.DoComplete() | core.DoRelease():
                            back = perform_write(store, step)
                        case core.DoPark():
                            run.parked = step if run.finished else None
                            back = perform_write(store, step)
                        case core.DoNote():
                            self.settings.emit(step.name, step.code, new)
                            back = None
                        case core.DoLater():
                            run.pending = run.finished
                            self._keeper.later(step, new)
                            back = None
                        case core.DoPause():
                            time.sleep(step.seconds)
                            back = False  # nobody can tell that a blocking client left
                        case core.DoAsk():
                            back = _ask(run.call, step.record)
                        case core.DoClaimUnsettled():
                            back = store.claim_unsettled(step.id, step.lease, step.nonce, step.every)
                        case _:
                            assert_never(step)
                except Exception as error:  # noqa: BLE001  # whatever a store raises
                    step = steps.throw(store_failure(step, error))
                except BaseException:  # an interrupt (R40)
                    late = core.cleanup(step)
                    if late is not None:
                        run.pending = run.finished
                        self._keeper.later(late, new)
                    raise
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
    assert hook is not None  # the rules ask only where there is one
    try:
        verdict = hook(record, call.request)
    except Exception:  # noqa: BLE001  # whatever a hook raises
        logger.exception("the reconcile hook failed; the outcome stays unknown")
        return DontKnow()
    return checked_verdict(verdict)
