"""Whatever kind of endpoint and route, the mark protects it and changes nothing else (DESIGN: the FastAPI door)."""

import functools
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute

from tests.support.asgi_client import Answer, in_loop, post
from tests.support.fastapi_service import ANN, Calls, Order, Service, Tokens
from twiceproof.server.fastapi import Idempotency, anonymous

flavour: ContextVar[str] = ContextVar("flavour", default="plain")


def decorated(endpoint: Any) -> Any:
    @functools.wraps(endpoint)
    async def other(*args: Any, **values: Any) -> Any:
        return await endpoint(*args, **values)

    return other


KINDS: dict[str, Callable[[Calls], Any]] = {
    "async def": lambda calls: calls.coroutine,
    "def": lambda calls: calls.function,
    "object": lambda calls: calls,
    "async generator": lambda calls: calls.stream,
    "generator": lambda calls: calls.plain_stream,
    "partial": lambda calls: functools.partial(calls.coroutine),
    "partial of a def": lambda calls: functools.partial(calls.function),
    "decorated": lambda calls: decorated(calls.coroutine),
}


def kinds() -> Any:
    return pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@kinds()
@in_loop
async def test_every_kind_of_endpoint_runs_once_per_key(kind):
    """R21, R25: the first answer is the bare application's, the second is its replay, byte for byte."""
    bare = FastAPI()
    bare.post("/orders", status_code=201)(kind(Calls(lambda: 1)))
    async with Service() as service:
        service.app.post("/orders", status_code=201)(service.idempotency.operation()(kind(Calls(service.effect))))
        expected = await post(bare, "k")
        answers = [await post(service, "k") for _ in range(3)]
    assert [answer.brief for answer in answers] == [(201, replayed, expected.body) for replayed in (False, True, True)]
    assert answers[0].headers == expected.headers
    assert service.effects == 1


def included(app: FastAPI, route: Any) -> None:
    inner, middle = APIRouter(prefix="/inner"), APIRouter(dependencies=[Depends(lambda: None)])
    inner.post("/orders")(route)
    middle.include_router(inner, prefix="/middle")
    app.include_router(middle, prefix="/outer", tags=["orders"])


statuses: list[int] = []


class TimedRoute(APIRoute):
    """A route class as the documentation of FastAPI shows it: it wraps the handler and rewrites the request."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        original = super().get_route_handler()

        async def timed(request: Request) -> Response:
            again = Request(request.scope, request.receive)
            await again.body()
            response = await original(again)
            response.headers["x-status"] = str(response.status_code)
            statuses.append(response.status_code)
            return response

        return timed


def with_route_class(app: FastAPI, route: Any) -> None:
    router = APIRouter(route_class=TimedRoute)
    router.post("/orders")(route)
    app.include_router(router, prefix="/timed")


def added(app: FastAPI, route: Any) -> None:
    app.add_api_route("/orders", route, methods=["POST"])


def mounted(app: FastAPI, route: Any) -> None:
    inner = FastAPI()
    inner.post("/orders")(route)
    app.mount("/mounted", inner)


def deeply_mounted(app: FastAPI, route: Any) -> None:
    inner = FastAPI()
    included(inner, route)
    app.mount("/deep", inner)


PLACES = {
    "/outer/middle/inner/orders": included,
    "/timed/orders": with_route_class,
    "/orders": added,
    "/mounted/orders": mounted,
    "/deep/outer/middle/inner/orders": deeply_mounted,
}


@pytest.mark.parametrize("path", PLACES)
@in_loop
async def test_a_route_is_protected_wherever_it_is_registered(path):
    """R49: nested include_router, another route class, add_api_route and mounted applications change nothing."""
    tokens = Tokens()
    async with Service(tokens) as service:
        PLACES[path](service.app, service.idempotency.operation()(Calls(service.effect).coroutine))
        answers = [await post(service, "k", ANN, path=path) for _ in range(2)]
        tokens.accounts.clear()
        refused = await post(service, "k", ANN, path=path)
        invalid = await post(service, "k", ANN, path=path, body=b"{}")
    assert [answer.brief for answer in answers] == [(200, False, b'{"effect":1}'), (200, True, b'{"effect":1}')]
    assert (refused.status, invalid.status) == (401, 401)


@in_loop
async def test_a_route_class_sees_the_status_that_its_client_will_see():
    """What stands for a replay or refusal inside the application has its status, for those who log or commit by it."""
    statuses.clear()
    async with Service() as service:
        marked = service.idempotency.operation(required=True)(Calls(service.effect).coroutine)
        with_route_class(service.app, marked)
        answers = [
            await post(service, "k", path="/timed/orders"),
            await post(service, "k", path="/timed/orders"),
            await post(service, "k", path="/timed/orders", body=b'{"n":2}'),
            await post(service, None, path="/timed/orders"),
        ]
    assert [answer.status for answer in answers] == [200, 200, 422, 400]
    assert statuses == [200, 200, 422, 400]
    assert [answer.all("x-status") for answer in answers] == [[b"200"], [b"200"], [], []]


@in_loop
async def test_closing_a_marked_generator_closes_the_endpoint_with_it():
    """What the endpoint's finally does is done when the stream is closed, not when memory is collected."""
    ended = []

    async def create() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append(True)

    service = Service()
    marked: Any = service.idempotency.operation()(create)
    stream = marked(twiceproof_request=Request({"type": "http", "method": "GET"}))
    first = await anext(stream)
    await stream.aclose()
    assert (first, ended) == (1, [True])


@in_loop
async def test_a_decorator_above_the_mark_keeps_its_protection():
    """A limiter between route and mark that uses functools.wraps passes our parameters on."""
    async with Service() as service:
        marked = service.idempotency.operation()(Calls(service.effect).coroutine)
        service.app.post("/orders")(decorated(marked))
        answers = [await post(service, "k", body=[b'{"n"', b":1}"]) for _ in range(2)]
    assert [answer.brief[1:] for answer in answers] == [(False, b'{"effect":1}'), (True, b'{"effect":1}')]


@in_loop
async def test_an_endpoint_keeps_its_own_request_whatever_the_parameters_are_called():
    """Our two parameters take names that are free, and an endpoint's own Request stays filled."""
    async with Service(Tokens()) as service:

        @service.app.post("/{twiceproof_request}")
        @service.idempotency.operation()
        async def create(
            twiceproof_request: str,
            twiceproof_principal: int,
            req: Annotated[Request, "own"],
            twiceproof_request_: int = 2,
        ) -> list[Any]:
            return [twiceproof_request, twiceproof_principal, req.url.path, twiceproof_request_, service.effect()]

        @service.app.post("/other/{twiceproof_request}")
        @service.idempotency.operation()
        async def other(twiceproof_request: str, order: Order) -> list[Any]:
            return [twiceproof_request, order.n]

        @service.app.post("/more/values")
        @service.idempotency.operation()
        async def more(**values: str) -> dict[str, str]:
            return values

        rest = await post(service, "k", ANN, path="/more/values", query=b"values=1")
        answer = await post(service, "k", ANN, path="/abc", query=b"twiceproof_principal=7")
        without = await post(service, "k", ANN, path="/other/abc")
    assert (answer.status, answer.body) == (200, b'["abc",7,"/abc",2,1]')
    assert (rest.status, rest.body) == (200, b'{"values":"1"}')
    assert (without.status, without.body) == (200, b'["abc",1]')


@in_loop
async def test_annotations_that_a_module_postpones_are_resolved_in_that_module():
    """Request, Response, background tasks, models and our dependency are found under postponed evaluation."""
    from tests.support import fastapi_postponed as module

    try:
        answers = [await post(module.app, "k", path="/orders/here", body=b'{"n":7}') for _ in range(2)]
        typed = await post(module.app, "k", path="/typed")
    finally:
        await module.idempotency.engine.close()
    body = b'{"n":7,"path":"/orders/here","key":"k"}'
    assert [answer.brief for answer in answers] == [(201, False, body), (201, True, body)]
    assert answers[1].all("x-where") == [b"here"]
    assert typed.brief == (200, False, b"1")


@in_loop
async def test_a_def_endpoint_runs_in_the_threadpool_with_the_context_of_its_request():
    """What a dependency puts into a context variable is there in the thread, as without the mark."""

    async def flavoured() -> None:
        flavour.set("vanilla")

    def where() -> list[Any]:
        return [flavour.get(), threading.current_thread() is threading.main_thread()]

    bare = FastAPI()
    bare.post("/orders", dependencies=[Depends(flavoured)])(where)
    async with Service() as service:
        service.app.post("/orders", dependencies=[Depends(flavoured)])(service.idempotency.operation()(where))
        bodies = [(await post(app, key)).body for app in (bare, service) for key in ("k", None)]
    assert bodies == [b'["vanilla",false]'] * 4


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@in_loop
async def test_an_uncovered_method_passes_through_untouched(method):
    """R1: the key is ignored, nothing is stored, nothing is marked, not even a malformed key is looked at."""
    async with Service() as service:

        @service.app.api_route("/orders", methods=[method, "POST"])
        @service.idempotency.operation(required=True)
        async def create() -> int:
            return service.effect()

        answers: list[Answer] = [await post(service, key, method=method, body=b"") for key in ("k", "k", None, "a,b")]
        calls = list(service.store.calls)
    assert [answer.brief for answer in answers] == [(200, False, b"%d" % n) for n in (1, 2, 3, 4)]
    assert calls == []


@in_loop
async def test_unmarked_routes_are_served_byte_for_byte_as_without_us():
    """R52: a keyed POST to a route without mark is not claimed, copied or changed."""
    bare = FastAPI()
    async with Service() as service:
        for app in (bare, service.app):

            @app.post("/plain")
            async def plain(request: Request) -> Response:
                return Response(await request.body(), headers={"x-a": "1"})

        service.app.post("/orders")(service.idempotency.operation()(Calls(service.effect).coroutine))
        messages = [
            (await post(app, key, path=path, body=[b"ab", b"c"])).messages
            for app in (bare, service)
            for key in ("k", None)
            for path in ("/plain", "/missing")
        ]
        calls = list(service.store.calls)
    assert messages[:4] == messages[4:]
    assert calls == []


def test_a_shared_anonymous_space_is_what_its_name_says():
    """R12: anonymous adds no dependency to the endpoint at all."""
    idempotency = Idempotency(store="memory://", accept_volatile=True, principal=anonymous)
    assert idempotency.dependency is None
