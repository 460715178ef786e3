"""The ASGI door in and around Starlette, whose answers, errors and background work take ways of their own (R39-R51)."""

import asyncio
import gc
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from tests.support.asgi_client import Client, http_scope, in_loop, keyed, post
from twiceproof import Policy, TwiceproofWarning
from twiceproof.server.asgi import IdempotencyMiddleware, anonymous

OPTIONS: dict[str, Any] = {"store": "memory://", "principal": anonymous, "accept_volatile": True}


async def passing(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    response.headers["x-outer"] = "1"
    return response


OUTER = Middleware(BaseHTTPMiddleware, dispatch=passing)
OURS = Middleware(IdempotencyMiddleware, **OPTIONS)
STACKS = {"alone": [OURS], "inside BaseHTTPMiddleware": [OUTER, OURS]}


@pytest.fixture(params=list(STACKS.values()), ids=list(STACKS))
def stack(request: pytest.FixtureRequest) -> list[Middleware]:
    stack: list[Middleware] = request.param
    return stack


def service(stack: list[Middleware], endpoint: Any) -> Starlette:
    return Starlette(routes=[Route("/orders", endpoint, methods=["POST"])], middleware=stack)


@in_loop
async def test_an_answer_is_replayed_and_its_background_task_is_not_run_again(stack):
    """R25, R51, B44: once, after the first answer; the replay passes the same outer middleware."""
    ran: list[str] = []

    async def create(request: Request) -> Response:
        body = await request.body()
        return PlainTextResponse(body, 201, background=BackgroundTask(ran.append, "once"))

    app = service(stack, create)
    first, again = await post(app, "k1"), await post(app, "k1")
    assert (first.brief, again.brief) == ((201, False, b'{"n":1}'), (201, True, b'{"n":1}'))
    assert first.all("x-outer") == again.all("x-outer")
    assert ran == ["once"]


@in_loop
async def test_a_retry_does_not_wait_for_a_background_task_and_its_failure_changes_nothing(stack):
    """R51."""
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise LookupError("late")

    async def create(request: Request) -> Response:
        return PlainTextResponse("x", 202, background=BackgroundTask(work))

    app = service(stack, create)
    client = Client([b'{"n":1}'])
    task = asyncio.create_task(post(app, "k1", client=client))
    await client.until(2)
    again = await post(app, "k1")
    go.set()
    await asyncio.wait({task})
    after = await post(app, "k1")
    assert [again.brief, after.brief] == [(202, True, b"x")] * 2
    assert isinstance(task.exception(), LookupError)


@in_loop
async def test_an_exception_is_answered_by_starlette_and_the_retry_is_told_that_nobody_knows(stack):
    """CONTRACT 5: it still reaches the framework, and the server."""

    async def create(request: Request) -> Response:
        raise LookupError("boom")

    app = service(stack, create)
    client = Client([b'{"n":1}'])
    with pytest.raises(LookupError):
        await post(app, "k1", client=client)
    again = await post(app, "k1")
    assert (client.answer.status, client.answer.body, client.answer.whole) == (500, b"Internal Server Error", True)
    assert (again.code, again.problem["cause"]) == ("outcome-unknown", "exception")


@in_loop
async def test_an_exception_that_starlette_answers_inside_of_us_counts_as_an_exception():
    """CONTRACT 5: its error page goes out, but a 5xx with an error behind it is no answer to replay."""

    async def create(request: Request) -> Response:
        raise LookupError("boom")

    with pytest.warns(TwiceproofWarning, match="Starlette"):
        app = IdempotencyMiddleware(service([], create), **OPTIONS)
    client = Client([b'{"n":1}'])
    with pytest.raises(LookupError):
        await post(app, "k1", client=client)
    again = await post(app, "k1")
    await app.engine.close()
    assert (client.answer.status, client.answer.body, client.answer.whole) == (500, b"Internal Server Error", True)
    assert (again.code, again.problem["cause"]) == ("outcome-unknown", "exception")


@pytest.mark.parametrize("status", [404, 503])
@in_loop
async def test_a_status_that_is_raised_is_an_answer(stack, status):
    """R36, R39: Starlette turns it into one inside of us."""

    async def create(request: Request) -> Response:
        raise HTTPException(status, "as the handler says")

    app = service(stack, create)
    first, again = await post(app, "k1"), await post(app, "k1")
    assert (first.brief, again.brief) == ((status, False, first.body), (status, True, first.body))


@in_loop
async def test_a_streaming_response_flows_and_replays(stack):
    """R43."""
    go = asyncio.Event()

    async def parts() -> Any:
        yield b"one,"
        await go.wait()
        yield b"two"

    async def create(request: Request) -> Response:
        return StreamingResponse(parts(), 201, media_type="text/plain")

    app = service(stack, create)
    client = Client([b'{"n":1}'])
    task = asyncio.create_task(post(app, "k1", client=client))
    await client.until(2)
    during = await post(app, "k1")
    go.set()
    first = await task
    again = await post(app, "k1")
    assert (first.body, during.code, again.brief) == (b"one,two", "in-progress", (201, True, b"one,two"))


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
@in_loop
async def test_a_streaming_response_ends_when_its_client_leaves_and_is_closed_once(spec):
    """R44, R50, B45: by the disconnect or by the error of send, as the server has it; not stored as finished."""
    closed: list[str] = []

    async def parts() -> Any:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0)
        finally:
            closed.append("closed")

    async def create(request: Request) -> Response:
        return StreamingResponse(parts(), 201)

    app = service([OURS], create)

    async def gone(message: Any) -> None:
        if spec == "2.4" and client.left.is_set():
            raise OSError("client left")

    client = Client([b'{"n":1}'], on_send=gone)
    asgi = {"version": "3.0", "spec_version": spec}
    task = asyncio.create_task(app(http_scope(headers=keyed("k1"), asgi=asgi), client.receive, client.send))
    await client.until(3)
    client.leave()
    await asyncio.gather(task, return_exceptions=True)
    del task  # the error in it holds on to the generator
    gc.collect()
    await asyncio.sleep(0.01)  # the loop closes what was collected
    again = await post(app, "k1")
    assert closed == ["closed"]
    assert (again.code, again.problem["cause"]) == ("outcome-unknown", "cut-short")


@in_loop
async def test_a_handler_that_asks_whether_its_client_is_gone_is_told_that_it_is_not(stack):
    """R44: and it is not kept waiting for the answer; its work is recorded for the retry."""
    heard: list[bool] = []

    async def create(request: Request) -> Response:
        await request.body()
        client.leave()
        heard.append(await request.is_disconnected())
        await asyncio.sleep(0.01)
        heard.append(await request.is_disconnected())
        return PlainTextResponse("x", 201)

    app = service(stack, create)
    client = Client([b'{"n":1}'])
    await asyncio.wait({asyncio.create_task(post(app, "k1", client=client))})
    again = await post(app, "k1")
    assert heard == [False, False]
    assert again.brief == (201, True, b"x")


@in_loop
async def test_a_file_response_replays_where_the_application_reads_the_file_and_not_where_the_server_does(tmp_path):
    """R26, R43, B05: with pathsend we never see the bytes."""
    path = tmp_path / "report.txt"
    path.write_bytes(b"report" * 20_000)

    async def create(request: Request) -> Response:
        return FileResponse(path, 201)

    app = service([OURS], create)
    read_by_app = [await post(app, "k1"), await post(app, "k1")]
    extensions: dict[str, Any] = {"http.response.pathsend": {}}
    sent_by_server = [await post(app, "k2", extensions=extensions), await post(app, "k2", extensions=extensions)]
    assert [answer.brief for answer in read_by_app] == [(201, False, path.read_bytes()), (201, True, path.read_bytes())]
    assert sent_by_server[0].messages[-1] == {"type": "http.response.pathsend", "path": str(path)}
    assert sent_by_server[1].code == "replay-unavailable"


@in_loop
async def test_a_body_is_read_by_whichever_means_starlette_offers(stack):
    """R52, B41: as a whole, as JSON and again, as a stream: what was sent, in one piece or several."""

    async def create(request: Request) -> Response:
        if request.headers["content-type"] == "application/json":
            return PlainTextResponse(str((await request.json())["n"]) + str(await request.json()))
        if request.headers["content-type"] == "text/plain":
            return PlainTextResponse(b"".join([part async for part in request.stream()]))
        return PlainTextResponse(await request.body() + await request.body())

    app = service(stack, create)
    answers = []
    for key, media in (("k1", "application/json"), ("k2", "text/plain"), ("k3", "application/octet-stream")):
        client = Client([b'{"n"', b":1}"])
        await app(http_scope(headers=keyed(key, media=media)), client.receive, client.send)
        answers.append(client.answer.body)
    assert answers == [b"1{'n': 1}", b'{"n":1}', b'{"n":1}{"n":1}']


@in_loop
async def test_it_can_stand_inside_a_mounted_application():
    """R16: the table names paths below the mount; the operation includes it."""
    effects = 0

    async def create(request: Request) -> Response:
        nonlocal effects
        effects += 1
        return PlainTextResponse("x", 201)

    def inner() -> Any:
        routes = [Route("/orders", create, methods=["POST"])]
        table = {"POST /orders": Policy(required=True)}
        return Starlette(routes=routes, middleware=[Middleware(IdempotencyMiddleware, **OPTIONS, policy=table)])

    app = Starlette(routes=[Mount("/one", inner()), Mount("/two", inner())])
    missing = await post(app, None, path="/one/orders")
    answers = [await post(app, "k1", path=path) for path in ("/one/orders", "/two/orders", "/one/orders")]
    assert missing.code == "idempotency-key-missing"
    assert [answer.replayed for answer in answers] == [False, False, True]
    assert effects == 2
