"""A set-up that can't keep its promise fails at start-up, and a doubtful one warns (R12, R41, R49)."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from tests.support.asgi_client import Counted, in_loop, post
from twiceproof import ConfigurationError, Policy, TwiceproofWarning
from twiceproof.server.asgi import IdempotencyMiddleware, anonymous, by_authorization


def protect(app: Any, **options: Any) -> IdempotencyMiddleware:
    settings: dict[str, Any] = {"store": "memory://", "principal": anonymous, "accept_volatile": True}
    return IdempotencyMiddleware(app, **settings | options)


def test_the_principal_has_no_default_and_its_absence_names_the_three_choices():
    """R12, B18, B19."""
    with pytest.raises(ConfigurationError) as caught:
        IdempotencyMiddleware(Counted(), store="memory://", accept_volatile=True)
    sentence = str(caught.value)
    assert [word for word in ("callable", "by_authorization", "anonymous") if word not in sentence] == []
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"principal": "anna"}, "principal"),
        ({"principal": None}, "principal"),
        ({"store": "memroy://"}, "memory"),
        ({"store": "sqlite://keys.db"}, "three slashes"),
        ({"accept_volatile": False}, "accept_volatile"),
        ({"policy": "required"}, "policy"),
        ({"policy": {"POST /orders": "required"}}, "POST /orders"),
        ({"policy": {"/orders": Policy()}}, "METHOD /path"),
        ({"policy": {"PUT /orders": Policy()}}, "methods="),
        ({"policy": {"POST /{rest:path}/x": Policy()}}, "last part"),
        ({"polcy": Policy()}, "did you mean policy"),
        ({"required": True}, "policy=Policy(required="),
        ({"store_timeout": 0}, "store_timeout"),
        ({"namespace": ""}, "namespace"),
        ({"on_event": "print"}, "on_event"),
    ],
)
def test_a_wrong_set_up_fails_when_it_is_made_in_one_sentence(options, said):
    """R41: at construction, with what to change."""
    with pytest.raises(ConfigurationError) as caught:
        protect(Counted(), **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_by_authorization_warns_where_it_is_chosen():
    """R12: on the line of the user's own file."""
    with pytest.warns(TwiceproofWarning, match="refreshed token") as caught:
        IdempotencyMiddleware(Counted(), store="memory://", principal=by_authorization, accept_volatile=True)
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (CORSMiddleware(Counted()), "CORSMiddleware stands inside"),
        (GZipMiddleware(CORSMiddleware(Counted())), "GZipMiddleware stands inside"),
        (Starlette(), "server.asgi, given to Middleware"),
        (FastAPI(), "server.fastapi"),
        (type("Shop", (FastAPI,), {})(), "server.fastapi"),
        (CORSMiddleware(FastAPI()), "server.fastapi"),
        (Starlette(middleware=[Middleware(GZipMiddleware)]), "GZipMiddleware stands inside"),
    ],
)
def test_what_belongs_outside_and_stands_inside_is_warned_of(inner, said):
    """R49: CORS and compression, and an application that has a door of its own; on the user's own line."""
    with pytest.warns(TwiceproofWarning) as caught:
        IdempotencyMiddleware(inner, store="memory://", principal=anonymous, accept_volatile=True)
    assert [str(warning.message) for warning in caught if said in str(warning.message)] != []
    assert {Path(warning.filename).name for warning in caught} == {Path(__file__).name}


@pytest.mark.parametrize("outer", [lambda app: CORSMiddleware(app, allow_origins=["*"]), GZipMiddleware])
def test_the_right_order_is_not_warned_of(outer):
    """R49: they stand outside, and a plain application inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outer(protect(Counted())) is not None


def test_a_chain_of_applications_that_bites_its_tail_is_looked_at_once_around():
    """R49: looking for middleware must end."""
    app = Counted()
    app.app = app  # type: ignore[attr-defined]
    assert protect(app).app is app


@in_loop
async def test_inside_starlette_it_stands_where_its_middleware_is_named():
    """R49: authentication outside of it comes first, CORS adds its fields to replays."""

    class Authenticate:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != b"Bearer good":
                await PlainTextResponse("no", 401)(scope, receive, send)
                return
            scope["account"] = "anna"
            await self.app(scope, receive, send)

    effects = 0

    async def create(request: Request) -> JSONResponse:
        nonlocal effects
        effects += 1
        return JSONResponse({"got": (await request.json())["n"], "again": await request.json()}, 201)

    app = Starlette(
        routes=[Route("/orders", create, methods=["POST"])],
        middleware=[
            Middleware(CORSMiddleware, allow_origins=["https://shop.example"]),
            Middleware(Authenticate),
            Middleware(
                IdempotencyMiddleware,
                store="memory://",
                principal=lambda scope: scope["account"],
                accept_volatile=True,
                policy={"POST /orders": Policy(required=True)},
            ),
        ],
    )
    good, origin = (b"authorization", b"Bearer good"), (b"origin", b"https://shop.example")
    first, again = await post(app, "k1", good, origin), await post(app, "k1", good, origin)
    revoked = await post(app, "k1", (b"authorization", b"Bearer revoked"))
    assert first.brief == (201, False, b'{"got":1,"again":{"n":1}}')
    assert again.brief == (201, True, first.body)
    assert first.all("access-control-allow-origin") == again.all("access-control-allow-origin")
    assert len(again.all("access-control-allow-origin")) == 1
    assert (revoked.status, revoked.body, effects) == (401, b"no", 1)
