"""A handler in a thread is not stopped by a cancellation: its true outcome settles the record (R40, R41)."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio.to_thread
import pytest
from fastapi import HTTPException

from tests.support.asgi_client import Client, http_scope, in_loop, keyed, post
from tests.support.fastapi_service import Service, until
from twiceproof import NotExecuted

AT_LEAST: Any = {"guarantee": "at_least_once"}


class Steps:
    """A handler in a thread that says that it runs, and ends when it is told to."""

    def __init__(self, service: Service, then: Callable[[], Any] = lambda: None) -> None:
        self.service = service
        self.then = then
        self.began, self.go = threading.Event(), threading.Event()

    def create(self) -> int:
        self.began.set()
        assert self.go.wait(20)
        self.service.effect()
        self.then()
        return self.service.effects

    async def running(self) -> None:
        await until(self.began.is_set)


def outcome_of(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "cancelled"
    return type(task.exception()).__name__


async def cancelled(service: Service, steps: Steps, client: Client, times: int = 1) -> str:
    """Cancel a request while its thread runs, then let the thread end; return how the request ended."""
    task = asyncio.create_task(post(service, "k", body=b"{}", client=client))
    await steps.running()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    steps.go.set()
    await asyncio.wait([task])
    return outcome_of(task)


@pytest.mark.parametrize("options", [{}, AT_LEAST])
@pytest.mark.parametrize("times", [1, 3])
@in_loop
async def test_a_cancelled_request_is_recorded_with_what_its_thread_came_to(options, times):
    """R40: the thread's answer is stored and given, the retry replays it, and the cancellation goes on after that."""
    async with Service() as service:
        steps = Steps(service)
        service.app.post("/orders", status_code=201)(service.idempotency.operation(**options)(steps.create))
        client = Client([b"{}"])
        ended = await cancelled(service, steps, client, times)
        again = await post(service, "k", body=b"{}")
    assert ended == "cancelled"
    assert client.answer.brief == (201, False, b"1")
    assert again.brief == (201, True, b"1")


def gate() -> None:
    raise HTTPException(409, "sold out")


def broken() -> None:
    raise ZeroDivisionError


def nothing() -> None:
    raise NotExecuted


@pytest.mark.parametrize(
    ("then", "options", "ended", "states"),
    [
        (gate, {}, "cancelled", ["completed"]),
        (broken, {}, "ZeroDivisionError", ["parked"]),
        (broken, AT_LEAST, "ZeroDivisionError", []),
        (nothing, {}, "NotExecuted", []),
    ],
)
@in_loop
async def test_an_error_of_the_thread_settles_as_without_the_cancellation(then, options, ended, states):
    """R40: a 4xx is stored, an exception parks or releases by the guarantee, NotExecuted frees the key."""
    async with Service() as service:
        steps = Steps(service, then)
        service.app.post("/orders")(service.idempotency.operation(**options)(steps.create))
        assert await cancelled(service, steps, Client([b"{}"])) == ended
        assert await service.states() == states


@pytest.mark.parametrize("options", [{}, AT_LEAST])
@in_loop
async def test_a_thread_that_outlasts_the_drain_leaves_its_record_to_lapse(options):
    """R40: nobody knows what it will do, so the record is neither completed nor parked, and never released."""
    async with Service(drain=0.05) as service:
        steps = Steps(service)
        service.app.post("/orders")(service.idempotency.operation(**options)(steps.create))
        task = asyncio.create_task(post(service, "k"))
        await steps.running()
        task.cancel()
        await asyncio.wait([task])
        states, retried = await service.states(), await post(service, "k")
        steps.go.set()
    assert outcome_of(task) == "cancelled"
    assert states == ["in_flight"]
    assert retried.code == "in-progress"
    assert ("released", "") not in service.events


@in_loop
async def test_a_request_cancelled_before_its_thread_began_frees_the_key():
    """R40: between claim and handler nothing happened: released, also under at-most-once."""
    async with Service() as service:
        steps = Steps(service)
        service.app.post("/orders")(service.idempotency.operation()(steps.create))
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        blocker = threading.Event()
        busy = asyncio.create_task(anyio.to_thread.run_sync(blocker.wait))
        task = asyncio.create_task(post(service, "k"))
        await until(lambda: ("granted", "") in service.events)
        task.cancel()
        await asyncio.wait([task])
        blocker.set()
        await busy
        states = await service.states()
        steps.go.set()
        again = await post(service, "k")
    assert outcome_of(task) == "cancelled"
    assert states == []
    assert again.brief == (200, False, b"1")


@in_loop
async def test_threads_are_those_of_the_framework():
    """The wrapper takes its threads from the pool that bare endpoints use: one token, one thread at a time."""
    async with Service() as service:
        at_once, most = [0], [0]

        def create() -> None:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            threading.Event().wait(0.01)
            at_once[0] -= 1

        service.app.post("/orders")(service.idempotency.operation()(create))
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        await asyncio.gather(*[post(service, f"k{n}") for n in range(5)])
    assert most == [1]


@in_loop
async def test_an_outer_time_limit_still_ends_the_request():
    """R40: asyncio.timeout around the application gets its cancellation back, after the record was written."""
    async with Service() as service:
        steps = Steps(service)
        service.app.post("/orders")(service.idempotency.operation()(steps.create))
        asyncio.get_running_loop().call_later(0.1, steps.go.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await post(service, "k")
        states = await service.states()
    assert states == ["completed"]


@pytest.mark.parametrize(("options", "states"), [({}, ["parked"]), (AT_LEAST, [])])
@in_loop
async def test_a_cancelled_plain_generator_ends_its_step_before_its_record_is_settled(options, states):
    """R40, R50: the step that runs is awaited, none is begun after it, and what was sent is no finished answer."""
    async with Service() as service:
        steps = Steps(service)
        seen: list[str] = []

        def create() -> Iterator[int]:
            yield 0
            yield steps.create()
            seen.append("third step")
            yield 2

        service.app.post("/orders")(service.idempotency.operation(**options)(create))
        task = asyncio.create_task(post(service, "k"))
        await steps.running()
        task.cancel()
        await asyncio.sleep(0.01)
        before = await service.states()
        steps.go.set()
        await asyncio.wait([task])
        after = await service.states()
    assert outcome_of(task) == "cancelled"
    assert (before, after) == (["in_flight"], states)
    assert seen == []


@pytest.mark.parametrize(("options", "states"), [({}, ["parked"]), (AT_LEAST, [])])
@in_loop
async def test_a_cancelled_coroutine_parks_or_releases_at_once(options, states):
    """R40: a handler on the loop ends with its cancellation, so its outcome is known to be unknown."""
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation(**options)
        async def create() -> None:
            service.effect()
            await asyncio.sleep(60)

        task = asyncio.create_task(post(service, "k"))
        await until(lambda: service.effects)
        task.cancel()
        await asyncio.wait([task])
        seen = await service.states()
    assert seen == states


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
@in_loop
async def test_an_outer_middleware_that_cancels_again_does_not_lose_what_the_thread_came_to(guarantee):
    """R40: `BaseHTTPMiddleware` cancels at every step; the answer is recorded before that is told."""
    async with Service() as service:
        entered, runs = asyncio.Event(), []
        loop = asyncio.get_running_loop()

        @service.app.middleware("http")
        async def around(request, call_next):
            return await call_next(request)

        @service.app.post("/slow")
        @service.idempotency.operation(guarantee=guarantee)
        def slow() -> int:
            runs.append(1)
            loop.call_soon_threadsafe(entered.set)
            time.sleep(0.1)
            return len(runs)

        first = Client()
        scope = http_scope("POST", "/slow", keyed("k1"))
        task = asyncio.ensure_future(service.app(scope, first.receive, first.send))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = await post(service.app, "k1", path="/slow", body=b"")
    assert (again.brief, len(runs)) == ((200, True, b"1"), 1)
