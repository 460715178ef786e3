"""Setting up the Flask door: what is refused, what is warned of, and what never runs unprotected."""

from typing import Any

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView
from werkzeug.middleware.proxy_fix import ProxyFix

from tests.support.flask_service import Service, with_orders
from twiceproof import ConfigurationError, Policy, TwiceproofWarning
from twiceproof.core._kept import DROPPED
from twiceproof.server import flask as door
from twiceproof.server._flask_visit import FRESH
from twiceproof.server.flask import Idempotency, anonymous


def make(**options: Any) -> Idempotency:
    given: dict[str, Any] = {"store": "memory://", "principal": anonymous, "accept_volatile": True} | options
    return Idempotency(**given)


async def waits():
    return "ann"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"principal": None}, "whose keys are they"),
        ({"principal": waits}, "principal= is an async function"),
        ({"policy": 7}, "policy must be a Policy"),
        ({"account": str}, "account= takes the account from"),
        ({"drian": 1}, "did you mean drain"),
        ({"accept_volatile": False}, "accept_volatile=True"),
    ],
)
def test_a_wrong_set_up_fails_at_start_up(options, sentence):
    """R12: in one sentence that says what to change."""
    with pytest.raises(ConfigurationError, match=sentence):
        make(**options)


def test_its_names_are_those_of_every_door():
    """The same names in each."""
    assert door.__all__ == ["Idempotency", "Policy", "anonymous", "by_authorization"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"requierd": True}, "did you mean required"),
        ({"lease": 0}, "lease must lie between"),
        ({"reconcile": waits}, "reconcile is an async function"),
    ],
)
def test_a_wrong_option_of_an_operation_fails_where_it_is_written(options, sentence):
    """One sentence."""
    with pytest.raises(ConfigurationError, match=sentence):
        make().operation(**options)


def test_defaults_of_the_door_hold_unless_an_operation_changes_them():
    """``policy=``."""
    idempotency = make(policy=Policy(required=True, lease=5))
    marked: list[Any] = [idempotency.operation(lambda: ""), idempotency.operation(lease=7)(lambda: "")]
    assert [(one.__twiceproof__.required, one.__twiceproof__.lease) for one in marked] == [(True, 5), (True, 7)]


@pytest.mark.parametrize("view", [MethodView, 7, "view"])
def test_a_mark_on_something_else_than_a_view_is_refused(view):
    """A class takes it in its decorators."""
    with pytest.raises(ConfigurationError, match="goes on the function of a view"):
        make().operation(view)


def test_two_marks_on_one_view_are_refused():
    """Also with a decorator in between."""
    idempotency = make()
    with pytest.raises(ConfigurationError, match="create is marked twice"):

        @idempotency.operation
        @idempotency.operation
        def create(): ...


def test_install_takes_an_application_once_and_before_it_serves():
    """R41: later it would be too late for what was served before."""
    idempotency, app = make(), Flask("a")
    with pytest.raises(ConfigurationError, match="install takes the Flask application"):
        idempotency.install(app.wsgi_app)  # type: ignore[arg-type]
    idempotency.install(app)
    with pytest.raises(ConfigurationError, match="install was called twice"):
        idempotency.init_app(app)
    app.test_client().get("/")
    with pytest.raises(ConfigurationError, match="after the application has served"):
        make().install(app)


def test_a_marked_view_that_is_not_installed_never_runs(caplog):
    """500, one sentence in the log, no effect; methods that are not covered run."""
    idempotency, app, effects = make(), Flask("a"), []

    @app.route("/orders", methods=["GET", "POST"])
    @idempotency.operation
    def create():
        effects.append(1)
        return "done"

    client = app.test_client()
    assert (client.post("/orders", headers={"Idempotency-Key": "k"}).status_code, effects) == (500, [])
    assert "create is marked as safe to retry, but its request did not come through install(app)" in caplog.text
    assert client.post("/orders").status_code == 500
    assert (client.get("/orders").status_code, effects) == (200, [1])


def test_a_marked_view_that_is_called_by_itself_says_how():
    """In a test, __wrapped__ is the function as written."""
    marked: Any = make().operation(lambda: "done")
    with pytest.raises(ConfigurationError, match=r"<lambda>.__wrapped__"):
        marked()
    assert marked.__wrapped__() == "done"


def test_a_route_above_whose_function_is_not_marked_is_refused_at_import():
    """The wrong order of decorators would leave the view unprotected in silence."""
    sentence = "create is not protected: its route was given the function"
    with Service() as service, pytest.raises(ConfigurationError, match=sentence):

        @service.idempotency.operation
        @service.app.post("/orders")
        def create(): ...


def test_the_wrong_order_in_a_blueprint_is_refused_at_the_first_request():
    """A blueprint meets the application later; nothing of it runs."""
    blueprint, effects = Blueprint("b", "b"), []
    with Service() as service:

        @service.idempotency.operation
        @blueprint.post("/orders")
        def create():
            effects.append(1)
            return ""

        service.app.register_blueprint(blueprint)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="create is not protected"):
                service.post()
        assert effects == []


def test_a_mark_that_covers_none_of_its_route_s_methods_is_warned_of():
    """R1: the key would be ignored."""
    with Service() as service:
        service.app.add_url_rule("/o", "o", service.idempotency.operation(lambda: ""), methods=["PUT"])
        with pytest.warns(TwiceproofWarning, match=r"none of its methods \(OPTIONS, PUT\) is covered"):
            service.post("/o", method="PUT")


class Compress:
    """Stands for an extension that compresses in after_request."""

    def after_request(self, response):
        return response


def test_compression_inside_the_layer_is_warned_of():
    """R49."""
    with with_orders(Service()) as service:
        service.app.after_request(Compress().after_request)
        with pytest.warns(TwiceproofWarning, match="Compress works inside"):
            service.post()


class Gzip:
    """Stands for a middleware that is wrapped around an application."""

    def __init__(self, app):
        self.app = app

    def __call__(self, environ, start_response):
        def start(status, headers, exc_info=None):
            return start_response(status, [*headers, ("X-Outside", "1")], exc_info)

        return self.app(environ, start)


@pytest.mark.parametrize("order", ["before", "after"])
def test_middleware_stays_outside_whenever_it_was_put_around(order):
    """R49: what it adds is added to replays, and is not in the record."""
    app = Flask("a")
    if order == "before":
        app.wsgi_app = ProxyFix(Gzip(app.wsgi_app))  # type: ignore[method-assign]
    with with_orders(Service(app=app)) as service:
        if order == "after":
            app.wsgi_app = ProxyFix(Gzip(app.wsgi_app))  # type: ignore[method-assign]
        seen = [service.post() for _ in range(2)]
    assert [(one.replayed, one.all("x-outside")) for one in seen] == [(False, ["1"]), (True, ["1"])]


def test_middleware_that_hides_what_it_wraps_is_warned_of():
    """R49: install comes before it."""
    app = Flask("a")
    inner = app.wsgi_app

    def hiding(environ, start_response):
        return inner(environ, start_response)

    app.wsgi_app = hiding  # type: ignore[method-assign]
    with pytest.warns(TwiceproofWarning, match="function stands inside the idempotency layer"):
        service = Service(app=app)
    with with_orders(service):
        assert [service.post().replayed for _ in range(2)] == [False, True]


def test_the_engine_opens_at_the_first_request_with_a_key():
    """R41."""
    with with_orders(Service()) as service:
        service.post(key=None)
        assert service.faults.calls == []
        service.post()
        assert service.faults.calls[:2] == ["open", "claim"]


def test_what_is_fresh_on_a_replay_is_never_stored():
    """R46: no field comes from both."""
    assert FRESH <= DROPPED
