"""What the FastAPI door says about a set-up that can't keep its promise, before it meets a request."""

import logging
import re
import warnings
from datetime import timedelta
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware

from tests.support.asgi_client import in_loop, post
from tests.support.fastapi_service import Service, run_lifespan
from twiceproof import Attempt, ConfigurationError, Policy, TwiceproofWarning
from twiceproof.server.fastapi import Idempotency, anonymous, by_authorization

VOLATILE: Any = {"store": "memory://", "accept_volatile": True}


def refused(words: str) -> Any:
    return pytest.raises(ConfigurationError, match=words)


async def create() -> dict[str, str]:
    return {}


async def nobody() -> None:
    return None


def test_whose_keys_they_are_has_no_default():
    """R12: leaving principal= out fails at construction, in a sentence that names the three choices."""
    with refused("callable that returns the account.*by_authorization.*anonymous"):
        Idempotency(**VOLATILE)


def test_an_account_per_credential_warns_of_tokens_that_change():
    """R12: a refreshed token is another principal under by_authorization; the warning points at the caller."""
    with pytest.warns(TwiceproofWarning, match="refreshed token is another account") as seen:
        Idempotency(principal=by_authorization, **VOLATILE)
    assert [item.filename for item in seen] == [__file__]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"store": "memory://"}, "say accept_volatile=True"),
        ({"store": "sqlite://keys.db", "accept_volatile": True}, "three slashes"),
        ({**VOLATILE, "drian": 3}, "no option drian; did you mean drain"),
        ({**VOLATILE, "account": str}, "account= takes the account from what the dependency"),
        ({**VOLATILE, "policy": {"required": True}}, "policy must be a Policy"),
        ({**VOLATILE, "principal": "current_user"}, "whose keys are they"),
        ({**VOLATILE, "principal": nobody, "account": "id"}, "account= takes"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence(options, words):
    """Wrong configuration fails at construction and says what to change."""
    with refused(words):
        Idempotency(**{"principal": anonymous, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retension": 5}, "no option retension; did you mean retention"),
        ({"lease": 0}, "lease must lie between"),
        ({"guarantee": "transactional"}, "not available in this release"),
        ({"guarantee": "exactly_once"}, "at_most_once or at_least_once"),
        ({"required": 1}, "required must be True or False"),
    ],
)
def test_a_wrong_option_of_an_operation_is_refused_where_it_stands(options, words):
    """The options of operation() are checked before the function is decorated."""
    idempotency = Idempotency(principal=anonymous, **VOLATILE)
    with refused(words):
        idempotency.operation(**options)


@pytest.mark.parametrize("target", [None, "text", Policy, 3])
def test_only_a_function_can_be_an_operation(target):
    """A mark on a class or on no function at all is refused where it stands."""
    with refused("goes on the function of a route"):
        Idempotency(principal=anonymous, **VOLATILE).operation()(target)


def test_one_function_is_marked_once():
    """Two marks on one function would claim twice."""
    idempotency = Idempotency(principal=anonymous, **VOLATILE)
    with refused("create is marked twice"):
        idempotency.operation(required=True)(idempotency.operation()(create))


def test_the_resolved_policy_can_be_read_from_the_endpoint():
    """R10: the application's defaults, changed by the operation's own options, are the endpoint's __twiceproof__."""
    defaults = Policy(required=True, retention=timedelta(days=7))
    idempotency = Idempotency(principal=anonymous, policy=defaults, **VOLATILE)
    marked: Any = idempotency.operation(retention=864_000, operation="create")(create)
    bare: Any = idempotency.operation(create)
    assert marked.__twiceproof__ == Policy(required=True, retention=864_000, operation="create")
    assert bare.__twiceproof__ == defaults
    assert marked.__wrapped__ is create


def test_install_is_called_once_before_the_start_and_with_the_application():
    """A second install, a late one, and one on something else are refused."""
    idempotency = Idempotency(principal=anonymous, **VOLATILE)
    app = FastAPI()
    idempotency.install(app)
    with refused("install was called twice"):
        idempotency.install(app)
    other: Any = Starlette()
    with refused("install takes the FastAPI application"):
        idempotency.install(other)
    late = FastAPI()
    late.middleware_stack = late.build_middleware_stack()
    with refused("after the application has started"):
        idempotency.install(late)


def mark_above(service: Service, place: str) -> None:
    inner = APIRouter() if place == "included" else FastAPI() if place == "mounted" else service.app

    @service.idempotency.operation()
    @inner.post("/orders")
    async def create() -> int:
        return service.effect()

    if isinstance(inner, APIRouter):
        middle = APIRouter(prefix="/middle")
        middle.include_router(inner)
        service.app.include_router(middle)
    elif inner is not service.app:
        service.app.mount("/mounted", inner)


@pytest.mark.parametrize("place", ["application", "included", "mounted"])
@in_loop
async def test_a_mark_above_the_route_stops_the_start_and_every_request(place):
    """A route that got the function without its mark would run unprotected: it is named, and does not run."""
    async with Service() as service:
        mark_above(service, place)
        said: list[Any] = []

        async def start() -> Any:
            return {"type": "lifespan.startup"}

        async def note(message: Any) -> None:
            said.append(message)

        with refused("create is not protected"):
            await service.app({"type": "lifespan", "asgi": {}, "state": {}}, start, note)
        assert [message["type"] for message in said] == ["lifespan.startup.failed"]
        assert "directly below the route's own decorator" in said[0]["message"]
        for _ in range(2):
            with refused("create is not protected"):
                await post(service, "k")
    assert service.effects == 0


@in_loop
async def test_a_marked_endpoint_without_install_never_runs(caplog):
    """No middleware, no claim: 500 and one sentence in the log, with and without a key; the effect stays zero."""
    idempotency = Idempotency(principal=anonymous, **VOLATILE)
    app = FastAPI()
    ran = []

    @app.post("/orders")
    @idempotency.operation()
    async def create() -> None:
        ran.append("create")

    @app.post("/plain")
    @idempotency.operation
    def plain() -> None:
        ran.append("plain")

    @app.get("/orders")
    @idempotency.operation
    async def look() -> str:
        return "seen"

    statuses = [(await post(app, key, path=path)).status for path in ("/orders", "/plain") for key in ("k", None)]
    assert statuses == [500] * 4
    assert ran == []
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [re.sub(" was not run: .*", "", message) for message in messages] == ["create"] * 2 + ["plain"] * 2
    assert "idempotency.install(app) was not called" in messages[0]
    assert (await post(app, path="/orders", method="GET")).body == b'"seen"'


@in_loop
async def test_a_protected_function_called_by_hand_says_how():
    """A unit test that calls the endpoint is told of __wrapped__ instead of running it unprotected."""
    marked = Idempotency(principal=anonymous, **VOLATILE).operation()(create)
    with refused("create.__wrapped__"):
        await marked()
    assert await marked.__wrapped__() == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("kind", [CORSMiddleware, GZipMiddleware])
@in_loop
async def test_cors_and_compression_inside_us_warn_at_the_start(kind, outside):
    """R49: replays would lack what they add; where add_middleware puts them, they stand outside and nothing warns."""
    async with Service() as service:
        if outside:
            service.app.add_middleware(kind)
        else:
            service.app.user_middleware.append(Middleware(kind))

        async def nothing() -> None: ...

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            await run_lifespan(service.app, nothing)
    found = [str(item.message) for item in seen if item.category is TwiceproofWarning]
    assert [text.partition(" ")[0] for text in found] == ([] if outside else [kind.__name__])


@pytest.mark.parametrize("installed", [True, False])
@in_loop
async def test_compression_in_a_mounted_application_warns_unless_it_has_a_layer_of_its_own(installed):
    """R49: between the outer layer and a mounted endpoint nothing may stand that replays must pass again."""
    async with Service() as service:
        inner = FastAPI()
        inner.post("/orders")(service.idempotency.operation()(create))
        service.app.mount("/inner", inner)
        if installed:
            service.idempotency.install(inner)
        inner.add_middleware(GZipMiddleware)

        async def nothing() -> None: ...

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            await run_lifespan(service.app, nothing)
    assert [str(item.message).partition(" ")[0] for item in seen] == ([] if installed else ["GZipMiddleware"])


@in_loop
async def test_a_mark_that_covers_no_method_of_its_route_warns():
    """R1: only POST and PATCH are covered; a marked PUT is not protected until methods= says so."""
    async with Service() as service:
        service.app.put("/a")(service.idempotency.operation()(create))
        service.app.put("/b")(service.idempotency.operation(methods=("PUT",))(nobody))

        async def nothing() -> None: ...

        with pytest.warns(TwiceproofWarning, match=r"create is marked, but none of its methods \(PUT\)") as seen:
            await run_lifespan(service.app, nothing)
    assert len(seen) == 1


@in_loop
async def test_one_idempotency_serves_several_applications():
    """An application factory may install a module's Idempotency again and again; keys are shared, as the store is."""
    async with Service() as service:
        marked = service.idempotency.operation()(service_effect(service))
        service.app.post("/orders")(marked)
        second = FastAPI()
        service.idempotency.install(second)
        second.post("/orders")(marked)
        answers = [await post(app, "k") for app in (service.app, second)]
    assert [answer.brief for answer in answers] == [(200, False, b"1"), (200, True, b"1")]


def service_effect(service: Service) -> Any:
    async def create() -> int:
        return service.effect()

    return create


@in_loop
async def test_the_attempt_is_a_dependency():
    """The endpoint sees its run: key, protected, token; unprotected without a key and on an uncovered method."""
    async with Service() as service:
        attempt = service.idempotency.attempt

        @service.app.api_route("/orders", methods=["POST", "GET"])
        @service.idempotency.operation()
        async def create(run: Annotated[Attempt, Depends(attempt)]) -> list[Any]:
            return [run.key, run.protected, run.token is not None, run.attempt, run.lease_lost]

        bodies = [(await post(service, key, method=method)).body for method in ("POST", "GET") for key in ("k", None)]
    alone = b"[null,false,false,1,false]"
    assert bodies == [b'["k",true,true,1,false]', alone, alone, alone]


def test_the_public_names_are_the_same_as_in_every_door():
    """Idempotency, install, operation, attempt, and the two ready-made principals."""
    from twiceproof.server import fastapi

    assert sorted(fastapi.__all__) == ["Idempotency", "Policy", "anonymous", "by_authorization"]
    assert {"install", "operation", "attempt"} <= set(dir(Idempotency))
