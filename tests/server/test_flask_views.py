"""Views of every kind behind the Flask door: functions, classes, blueprints, factories, async ones."""

import asyncio
import functools
from typing import Any

import pytest
from flask import Blueprint, Flask, current_app, g, request
from flask.views import MethodView, View

from tests.support.flask_service import Service
from twiceproof.server.flask import Idempotency, anonymous


class Looping(Flask):
    """An application that runs async views without asgiref, in the way that Flask documents for that."""

    def async_to_sync(self, func):
        return lambda *args, **values: asyncio.run(func(*args, **values))


class AsyncCall:
    def __init__(self, service):
        self.service = service

    async def __call__(self, number):
        return self.service.effect(), number


def twice(service, path="/orders/7", **options):
    return [service.post(path, **options).brief for _ in range(2)]


def expected(**more):
    return [(200, replayed, {"effect": 1, "number": 7, **more}) for replayed in (False, True)]


@pytest.mark.parametrize("kind", ["function", "partial", "method", "async"])
def test_a_view_may_be_any_callable(kind):
    """In its own colour, with the arguments of its route."""
    with Service(app=Looping("service")) as service:

        def function(number):
            return {"effect": service.effect(), "number": number}

        def more(extra, number):
            return function(number)

        async def waits(number):
            await asyncio.sleep(0)
            return {"effect": service.effect(), "number": number, "key": g.twiceproof.key}

        class Object:
            def view(self, number):
                return function(number)

        views: dict[str, Any] = {
            "function": function,
            "partial": functools.partial(more, 0),
            "method": Object().view,
            "async": waits,
        }
        view = views[kind]
        marked = service.idempotency.operation(view)
        service.app.add_url_rule("/orders/<int:number>", "create", marked, methods=["POST"])
        assert twice(service) == expected(**({"key": "k1"} if kind == "async" else {}))
        assert (marked.__wrapped__, marked.__twiceproof__.required) == (view, False)


def test_an_async_view_that_fails_parks_and_an_async_decorator_above_is_fine():
    """CONTRACT 5, R49: the mark keeps the colour of what it stands on."""
    with Service(app=Looping("service")) as service:

        def guarded(view):
            @functools.wraps(view)
            async def guard():
                if "X-Ok" not in request.headers:
                    return "no", 401
                return await view()

            return guard

        @service.app.post("/orders")
        @guarded
        @service.idempotency.operation
        async def create():
            service.effect()
            raise LookupError

        assert (service.post().status, service.effects) == (401, 0)
        ok: dict[str, Any] = {"headers": [("X-Ok", "1")]}
        assert (service.post(**ok).status, service.causes) == (500, ["exception"])
        assert (service.post(**ok).problem, service.effects) == ("outcome-unknown", 1)


@pytest.mark.parametrize("where", ["decorators", "method"])
def test_a_class_of_handlers_is_marked_as_a_whole_or_by_the_method(where):
    """A mark on the class's ``decorators`` covers its POST and PATCH, one on a method that method; GET is untouched."""
    with Service() as service:
        mark = service.idempotency.operation(required=True)

        def on(method):
            return mark(method) if where == "method" else method

        class Orders(MethodView):
            decorators = [mark] if where == "decorators" else []

            def get(self, number):
                return {"effect": service.effect(), "number": number}

            @on
            def post(self, number):
                return {"effect": service.effect(), "number": number, **request.form}

        service.app.add_url_rule("/orders/<int:number>", view_func=Orders.as_view("orders"))

        @service.app.before_request
        def read():
            assert request.form is not None  # its body is read before the claim

        assert twice(service, data={"a": "b"}) == expected(a="b")
        assert [service.post("/orders/7", method="GET").json["effect"] for _ in range(2)] == [2, 3]
        assert service.post("/orders/7", key=None).problem == "idempotency-key-missing"


def test_a_view_class_is_marked_by_its_decorators():
    """A `View` with one ``dispatch_request``."""
    with Service() as service:

        class Create(View):
            methods = ("POST",)
            decorators = [service.idempotency.operation]  # noqa: RUF012  # as Flask has it

            def dispatch_request(self, number):  # type: ignore[override]  # the arguments of its route
                return {"effect": service.effect(), "number": number}

        service.app.add_url_rule("/orders/<int:number>", view_func=Create.as_view("create"))
        assert twice(service) == expected()


def test_blueprints_nested_and_registered_twice_are_protected():
    """R16: each place where a view is registered is an operation of its own."""
    with Service() as service:
        inner, outer = Blueprint("inner", "inner"), Blueprint("outer", "outer", url_prefix="/v1")

        @inner.post("/orders/<int:number>")
        @service.idempotency.operation
        def create(number):
            return {"effect": service.effect(), "number": number}

        outer.register_blueprint(inner)
        service.app.register_blueprint(outer)
        service.app.register_blueprint(outer, name="again", url_prefix="/v2")
        assert twice(service, "/v1/orders/7") == expected()
        assert service.post("/v2/orders/7").json == {"effect": 2, "number": 7}


def test_a_factory_makes_several_applications_with_one_door():
    """``init_app``: the door is made once at import, and knows its application at every request."""
    idempotency = Idempotency(store="memory://", principal=anonymous, accept_volatile=True)
    blueprint = Blueprint("shop", "shop")
    effects = []

    @blueprint.post("/orders")
    @idempotency.operation
    def create():
        effects.append(current_app.name)
        return {"effect": len(effects)}

    def make_app(name):
        app = Flask(name)
        idempotency.init_app(app)
        app.register_blueprint(blueprint, url_prefix=f"/{name}")
        return app

    for name in ("one", "two"):
        client = make_app(name).test_client()
        seen = [client.post(f"/{name}/orders", headers={"Idempotency-Key": "k"}).json for _ in range(2)]
        assert seen == [{"effect": len(effects)}] * 2
    assert effects == ["one", "two"]
    idempotency.engine.close()


def test_two_doors_in_one_application_keep_their_own_marks():
    """Each has its own store and options; a request has one Attempt."""
    with Service() as service, Service(app=service.app) as other:
        for name, door in (("a", service), ("b", other)):
            door.app.add_url_rule(
                f"/{name}",
                name,
                door.idempotency.operation(lambda door=door: {"effect": door.effect(), "key": g.twiceproof.key}),
                methods=["POST"],
            )
        for name in "ab":
            assert [service.post(f"/{name}").json for _ in range(2)] == [{"effect": 1, "key": "k1"}] * 2
        assert (service.states(), other.states()) == (["completed"], ["completed"])


def test_a_request_inside_a_view_has_a_claim_of_its_own():
    """A view that calls its own application."""
    with Service() as service:

        @service.app.post("/inner")
        @service.idempotency.operation
        def inner():
            return {"effect": service.effect()}

        @service.app.post("/outer")
        @service.idempotency.operation
        def outer():
            return {"outer": service.effect(), "inner": service.post("/inner", "k2").json}

        assert [service.post("/outer").json for _ in range(2)] == [{"outer": 1, "inner": {"effect": 2}}] * 2
        assert service.states() == ["completed", "completed"]
