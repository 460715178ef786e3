"""What of a handler's outcome is stored, and that first answer and replay are what they should be (R35-R51)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import ResponseValidationError
from fastapi.responses import JSONResponse

from tests.support.asgi_client import Answer, Client, in_loop, post
from tests.support.fastapi_service import Service, until
from twiceproof import Attempt, NotExecuted

AT_LEAST: Any = {"guarantee": "at_least_once"}


def outcome(answer: Answer) -> tuple[int, bool, str]:
    return answer.status, answer.replayed, answer.code


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299, 302, 303, 304, 404, 406, 409, 418, 422, 499, 503, 599])
@in_loop
async def test_every_stored_status_is_replayed_exactly(status):
    """R25, R35, R36, R39: under at-most-once also the handler's 5xx; 204 and 304 carry no body."""
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create() -> Response:
            return Response(b"" if status in (204, 304) else b"n%d" % service.effect(), status)

        answers = [await post(service, "k") for _ in range(2)]
    body = b"" if status in (204, 304) else b"n1"
    assert [answer.brief for answer in answers] == [(status, False, body), (status, True, body)]


@pytest.mark.parametrize("status", [401, 403, 407, 421, 425, 426, 428, 429, 431])
@in_loop
async def test_a_gate_is_never_stored(status):
    """R37: the handler's own 401, 403, 429 and the like release the key; the same key succeeds later, unmarked."""
    async with Service() as service:

        @service.app.post("/orders", status_code=201)
        @service.idempotency.operation()
        async def create() -> int:
            if service.effect() == 1:
                raise HTTPException(status)
            return service.effects

        answers = [await post(service, "k") for _ in range(3)]
    assert [outcome(answer) for answer in answers] == [(status, False, ""), (201, False, ""), (201, True, "")]


@in_loop
async def test_an_http_exception_of_the_handler_is_stored_as_the_answer_it_becomes():
    """R36: its status, detail and fields are replayed; so is what a custom exception handler makes of another."""

    class OutOfStock(Exception):
        pass

    async with Service() as service:

        @service.app.exception_handler(OutOfStock)
        async def handle(request: Request, error: OutOfStock) -> JSONResponse:
            return JSONResponse({"sold": "out"}, 409, {"x-stock": "0"})

        @service.app.post("/detail")
        @service.idempotency.operation()
        def detail() -> None:
            raise HTTPException(404, {"effect": service.effect()}, {"x-b": "2"})

        @service.app.post("/stock")
        @service.idempotency.operation()
        async def stock() -> None:
            service.effect()
            raise OutOfStock

        answers = [await post(service, "k", path=path) for path in ("/detail", "/stock") for _ in range(2)]
    expected = [(404, b'{"detail":{"effect":1}}'), (409, b'{"sold":"out"}')]
    assert [answer.brief for answer in answers] == [
        (status, replayed, body) for status, body in expected for replayed in (False, True)
    ]
    assert [answers[1].all("x-b"), answers[3].all("x-stock")] == [[b"2"], [b"0"]]
    assert service.effects == 2


@in_loop
async def test_the_first_answer_is_untouched_and_the_replay_lacks_what_belongs_to_one_client():
    """R25, R46: repeated fields stay; Set-Cookie, Date and request ids are not replayed, Location and ETag are."""
    fields = [("location", "/o/1"), ("etag", '"1"'), ("link", "</a>"), ("link", "</b>"), ("x-name", "Jos\xe9")]
    personal = [("set-cookie", "a=1"), ("set-cookie", "b=2"), ("date", "now"), ("x-request-id", "7")]
    bare = FastAPI()
    async with Service() as service:

        async def create(response: Response) -> dict[str, int]:
            for name, value in fields + personal:
                response.headers.append(name, value)
            response.status_code = 202
            return {"effect": 1}

        bare.post("/orders")(create)
        service.app.post("/orders")(service.idempotency.operation()(create))
        expected = await post(bare, "k")
        first, again = [await post(service, "k") for _ in range(2)]
    assert first.messages == expected.messages
    assert [again.all(name) for name, _ in personal] == [[]] * 4
    kept = [(name.encode(), value.encode("latin-1")) for name, value in fields]
    assert [field for field in again.headers if field[0] in {name for name, _ in kept}] == kept
    assert again.brief == (202, True, b'{"effect":1}')


@in_loop
async def test_background_tasks_run_once_and_no_replay_waits_for_them():
    """R51: they belong to the first execution; a retry replays while they run, and their failure changes nothing."""
    async with Service() as service:
        ran: list[str] = []
        gate = asyncio.Event()

        async def task() -> None:
            ran.append("begun")
            await gate.wait()
            raise OSError("the mail server is gone")

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(tasks: BackgroundTasks) -> int:
            tasks.add_task(task)
            return service.effect()

        first = asyncio.create_task(post(service, "k"))
        await until(lambda: ran)
        again = await post(service, "k")
        gate.set()
        with pytest.raises(OSError, match="mail server"):
            await first
        later = await post(service, "k")
    assert [again.brief, later.brief] == [(200, True, b"1")] * 2
    assert ran == ["begun"]
    assert ("completed", "late-error") in service.events


@in_loop
async def test_a_replay_does_not_wait_for_background_work_of_dependencies():
    """R51: what a dependency leaves behind runs for every request, and after the replay has been sent."""
    async with Service() as service:
        gate = asyncio.Event()
        gate.set()

        async def audit(tasks: BackgroundTasks) -> None:
            tasks.add_task(gate.wait)

        @service.app.post("/orders", dependencies=[Depends(audit)])
        @service.idempotency.operation()
        async def create() -> int:
            return service.effect()

        await post(service, "k", body=b"{}")
        gate.clear()
        client = Client([b"{}"])
        again = asyncio.create_task(post(service, "k", body=b"{}", client=client))
        await client.until(2)
        unfinished = not again.done()
        gate.set()
        await again
    assert unfinished
    assert client.answer.brief == (200, True, b"1")


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "cause", "effects", "second"),
    [({}, "exception", 1, (500, False, "outcome-unknown")), (AT_LEAST, None, 2, (201, False, ""))],
)
@in_loop
async def test_an_exception_parks_at_most_once_and_releases_at_least_once(options, cause, effects, second):
    """CONTRACT 5: it still reaches the framework; then the outcome is unknown, or the retry runs."""
    async with Service() as service:

        @service.app.post("/orders", status_code=201)
        @service.idempotency.operation(**options)
        async def create() -> int:
            if service.effect() == 1:
                raise ZeroDivisionError
            return 2

        with pytest.raises(ZeroDivisionError):
            await post(service, "k")
        records = await service.records()
        answer = await post(service, "k")
    assert [record.cause for record in records] == ([cause] if cause else [])
    assert outcome(answer) == second
    assert service.effects == effects


@in_loop
async def test_an_answer_that_fails_its_own_model_leaves_the_outcome_unknown():
    """CONTRACT 5: the effect took place before the framework refused the handler's result: never run again."""
    async with Service() as service:

        @service.app.post("/orders", response_model=dict[str, int])
        @service.idempotency.operation()
        async def create() -> Any:
            service.effect()
            return {"id": "x"}

        with pytest.raises(ResponseValidationError):
            await post(service, "k")
        answer = await post(service, "k")
    assert (answer.status, answer.code, answer.problem["cause"]) == (500, "outcome-unknown", "exception")
    assert service.effects == 1


@pytest.mark.parametrize("handled", [True, False])
@pytest.mark.parametrize("kind", ["async", "def", "stream", "plain stream"])
@in_loop
async def test_not_executed_frees_the_key_whatever_becomes_of_the_answer(kind, handled):
    """CONTRACT 5: nothing happened, also where an exception handler answers 201; without one it is the app's error."""
    async with Service() as service:
        if handled:

            @service.app.exception_handler(NotExecuted)
            async def handle(request: Request, error: NotExecuted) -> JSONResponse:
                return JSONResponse({"try": "again"}, 201)

        def work() -> int:
            if service.effect() == 1:
                raise NotExecuted
            return service.effects

        async def coroutine() -> int:
            return work()

        async def stream() -> AsyncIterator[int]:
            yield work()

        def plain_stream() -> Iterator[int]:
            yield work()

        endpoint = {"async": coroutine, "def": work, "stream": stream, "plain stream": plain_stream}[kind]
        service.app.post("/orders")(service.idempotency.operation()(endpoint))
        with contextlib.nullcontext() if handled and "stream" not in kind else pytest.raises(Exception):
            await post(service, "k")
        states = await service.states()
        again = [(await post(service, "k")).brief for _ in range(2)]
    assert states == []
    body = b"2\n" if "stream" in kind else b"2"
    assert again == [(200, False, body), (200, True, body)]


@in_loop
async def test_release_and_an_error_answer_free_the_key():
    """CONTRACT 5: attempt.release() with a 4xx says that nothing happened."""
    async with Service() as service:
        attempt = service.idempotency.attempt

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(run: Annotated[Attempt, Depends(attempt)]) -> int:
            if service.effect() == 1:
                run.release()
                raise HTTPException(409)
            return 2

        answers = [await post(service, "k") for _ in range(3)]
    assert [outcome(answer) for answer in answers] == [(409, False, ""), (200, False, ""), (200, True, "")]


# ---------------------------------------------------------------------- dependencies that end later


@in_loop
async def test_a_dependency_that_fails_after_the_answer_leaves_the_record():
    """R51: the answer is out and recorded; an event tells of the late error, and the retry replays."""

    failing = [True]

    async def session() -> AsyncIterator[None]:
        yield
        if failing.pop():
            raise OSError("lost at close")
        failing.append(False)

    async with Service() as service:

        @service.app.post("/orders", dependencies=[Depends(session)])
        @service.idempotency.operation()
        async def create() -> int:
            return service.effect()

        client = Client([b"{}"])
        with pytest.raises(OSError, match="lost at close"):
            await post(service, "k", body=b"{}", client=client)
        failing.append(False)
        again = await post(service, "k", body=b"{}")
    assert client.answer.brief == (200, False, b"1")
    assert again.brief == (200, True, b"1")
    assert ("completed", "late-error") in service.events


@pytest.mark.parametrize(("scope", "code"), [("function", "outcome-unknown"), ("request", "")])
@in_loop
async def test_a_failed_commit_is_seen_where_the_dependency_ends_with_the_function(scope, code):
    """R51: scope="function" commits before the answer: its failure is the outcome. Otherwise the 200 was recorded."""

    async def session() -> AsyncIterator[None]:
        yield
        if service.effects == 1:
            raise OSError("commit failed")

    async with Service() as service:

        @service.app.post("/orders", dependencies=[Depends(session, scope=scope)])
        @service.idempotency.operation()
        async def create() -> int:
            return service.effect()

        with pytest.raises(OSError, match="commit failed"):
            await post(service, "k")
        service.effects = 5
        again = await post(service, "k")
    assert again.code == code
    assert again.replayed is (code == "")


@in_loop
async def test_dependencies_see_the_status_of_the_refusal_and_end_before_nothing_ran():
    """A replay and a refusal open and close the request's dependencies as any answer does."""
    ended: list[str] = []

    async def session() -> AsyncIterator[str]:
        ended.append("open")
        yield "session"
        ended.append("closed")

    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation(required=True)
        async def create(session: Annotated[str, Depends(session)]) -> int:
            return service.effect()

        answers = [await post(service, key) for key in ("k", "k", None)]
    assert [outcome(answer) for answer in answers] == [
        (200, False, ""),
        (200, True, ""),
        (400, False, "idempotency-key-missing"),
    ]
    assert ended == ["open", "closed"] * 3
