"""AsyncEngine: runs the steps on an event loop."""

from __future__ import annotations

import asyncio
import weakref
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Self, Unpack, assert_never

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._fingerprint import SMALL_BODY, is_costly
from twiceproof.core._outcome import Answered, Cancelled, DontKnow, NothingHappened, Outcome, Raised, Verdict
from twiceproof.engine._attempt import Attempt, Run
from twiceproof.engine._front import Front
from twiceproof.engine._handled import checked_answer, marked
from twiceproof.engine._maintenance import Maintenance
from twiceproof.engine._options import PURGE_ROWS, EngineOptions, logger, store_timeout
from twiceproof.engine._store_failure import store_failure
from twiceproof.engine._verdict import checked_verdict
from twiceproof.errors import NotExecuted, TwiceproofError
from twiceproof.stores import AsyncStore, Purged, open_async_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twiceproof.core._messages import Request, Response
    from twiceproof.core._policy import Policy, Seconds
    from twiceproof.core._record import Record


class AsyncEngine(Front[AsyncStore]):
    """Makes operations safe to retry, from asynchronous code.

    ``store`` is a URL or an `AsyncStore`. Raises `ConfigurationError` where the set-up can't keep its promise. It
    opens itself at the first request of a process and an event loop; `close` drains it (R41).
    """

    asynchronous = True

    def __init__(self, store: str | AsyncStore, **options: Unpack[EngineOptions]) -> None:
        if isinstance(store, str):
            store = open_async_store(store, timeout=store_timeout(options))
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        self._latest: asyncio.AbstractEventLoop | None = None  # of those, the cheapest to recognise
        self._digester = _digester()
        super().__init__(store, **options)

    async def open(self) -> None:
        """Open the store on this loop; later calls change nothing."""
        self._ready_keeper()
        await self.store.open()
        self._latest = asyncio.get_running_loop()
        self._loops.add(self._latest)

    async def close(self) -> None:
        """Finish what runs for up to ``drain`` seconds, then let go of thread and store (R41)."""
        self._latest = None
        self._loops.clear()
        if not self._keeper.idle:
            await asyncio.to_thread(self._keeper.drain, self.settings.drain)
        await asyncio.to_thread(self._keeper.close)
        await self.store.close()

    def forget_opening(self) -> None:
        self._digester = _digester()
        self._latest = None
        self._loops.clear()

    def at_exit(self) -> None:
        self._keeper.drain(self.settings.drain, runs=False)  # no loop is left on which one could end
        self._keeper.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def begin(
        self,
        request: Request,
        principal: str,
        policy: Policy,
        *,
        key: str | None = None,
        attempt: Attempt | None = None,
        left: asyncio.Event | None = None,
    ) -> life.Reply | life.Bypass | Run:
        """Claim the key of a request (R21-R28).

        `Reply`: send that, the handler does not run. `Bypass`: run it without protection. `Run`: run it, then call
        `finish` on every path. ``key`` spares a second parse where `admit` gave it; ``left`` ends a wait (R23).
        """
        if key is None:
            admitted = self.admit(request.method, request.headers, policy)
            if not isinstance(admitted, life.Keyed):
                return admitted
            key = admitted.key
        if len(request.body) > policy.max_request_bytes:
            return self.refuse("request-too-large")  # R11
        loop = asyncio.get_running_loop()
        if loop is not self._latest and loop not in self._loops:
            try:
                await self.open()
            except TwiceproofError as error:
                logger.warning("the store could not be opened: %s", error)  # the claim will say so (R48, R17)
        if len(request.body) > SMALL_BODY and is_costly(request):
            call = await loop.run_in_executor(self._digester, self._call, request, key, principal, policy)
        else:
            call = self._call(request, key, principal, policy)
        run = Run(attempt or Attempt(key), call, core.steps(call))
        answer = await self._drive(run, None, left)
        return answer if answer is not None else run

    async def finish(self, run: Run, outcome: Outcome) -> None:
        """Settle a run with its outcome (CONTRACT 5). Its write takes place even if the caller is cancelled here."""
        if run.finished:
            return
        run.finished = True
        await self._drive(run, outcome, None)

    async def handle(
        self,
        request: Request,
        principal: str,
        policy: Policy,
        handler: Callable[[Request, Attempt], Awaitable[Response]],
    ) -> Response:
        """Begin, run ``handler(request, attempt)``, finish: for queues, tools and tests.

        Returns the handler's answer, a replay, or one of our problem documents; the handler's exception is raised
        after it is settled.
        """
        attempt = Attempt()
        begun = await self.begin(request, principal, policy, attempt=attempt)
        if isinstance(begun, life.Reply):
            return begun.response
        if isinstance(begun, life.Bypass):
            return marked(await handler(request, attempt), begun)
        outcome: Outcome = Raised()
        try:
            response = checked_answer(await handler(request, attempt))
            outcome = Answered(response, attempt.released)
        except NotExecuted:
            outcome = NothingHappened()
            raise
        except asyncio.CancelledError:
            outcome = Cancelled()
            raise
        finally:
            await self.finish(begun, outcome)
        return response

    async def maintain(self, *, within: Seconds | None = None) -> Purged:
        """Delete the records that have expired, at most 1,000 a step: see `Engine.maintain`."""
        work = Maintenance(self.settings, within)
        await self.open()
        while work.goes_on(await self.store.purge(PURGE_ROWS)):  # noqa: ASYNC110  # nothing is waited for
            await asyncio.sleep(0)  # a store may answer at once, and everybody else on the loop gets a turn
        return work.purged

    async def _drive(  # noqa: C901, PLR0912, PLR0915  # one case per step, and no call between step and store
        self, run: Run, value: object, left: asyncio.Event | None
    ) -> life.Reply | life.Bypass | None:
        """Send ``value`` into the steps and do what they ask, until they end or the handler may run.

        None says that the handler may run, or that the run is settled.
        """
        steps, new, store = run.steps, run.call.new, self.store
        back: object
        try:
            step = steps.send(value)
            while True:
                try:
                    match step:
                        case core.DoClaim():
                            back = await store.claim(step.new, step.lease, step.nonce, step.after)
                        case core.DoRun():
                            run.attempt.granted(run.call.key, step.granted)
                            self._keeper.watch(run)
                            return None
                        case core.DoComplete():
                            back = await store.complete(step.id, step.nonce, step.answer, step.retention)
                        case core.DoNote():
                            self.settings.emit(step.name, step.code, new)
                            back = None
                        case core.DoRelease():
                            back = await store.release(step.id, step.nonce)
                        case core.DoPark():
                            run.parked = step if run.finished else None
                            back = await store.park(step.id, step.nonce, step.cause)
                        case core.DoLater():
                            run.pending = run.finished
                            self._keeper.later(step, new)
                            back = None
                        case core.DoPause():
                            back = await _pause(step.seconds, left)
                        case core.DoAsk():
                            back = await _ask(run.call, step.record, step.timeout)
                        case core.DoClaimUnsettled():
                            back = await store.claim_unsettled(step.id, step.lease, step.nonce, step.every)
                        case _:
                            assert_never(step)
                except asyncio.CancelledError:
                    late = core.cleanup(step)  # R40
                    if late is not None:
                        run.pending = run.finished
                        self._keeper.later(late, new)
                    raise
                except Exception as error:  # noqa: BLE001  # whatever a store raises
                    step = steps.throw(store_failure(step, error))
                else:
                    step = steps.send(back)
        except StopIteration as end:
            ended: life.Reply | life.Bypass | None = end.value
            return ended
        finally:
            if run.finished and not run.pending:
                self._keeper.unwatch(run)


def _digester() -> ThreadPoolExecutor:
    """Return the thread for large bodies: one at a time, since each takes several times its size while it is read."""
    return ThreadPoolExecutor(1, thread_name_prefix="twiceproof-digest")


async def _pause(seconds: float, left: asyncio.Event | None) -> bool:
    if left is None:
        await asyncio.sleep(seconds)
        return False
    try:
        await asyncio.wait_for(left.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def _ask(call: core.Call, record: Record, timeout: float) -> Verdict:  # the rule's own word
    """Ask the reconcile hook; whatever it does but give a verdict counts as *don't know* (R28)."""
    hook = call.policy.reconcile
    assert hook is not None  # the rules ask only where there is one
    try:
        async with asyncio.timeout(timeout):
            made = iscoroutinefunction(hook)
            answer = hook(record, call.request) if made else await asyncio.to_thread(hook, record, call.request)
            verdict = await answer if isawaitable(answer) else answer
    except Exception:  # noqa: BLE001  # whatever a hook raises
        logger.exception("the reconcile hook failed; the outcome stays unknown")
        return DontKnow()
    return checked_verdict(verdict)
