"""The promises of ``twiceproof explain`` on applications behind the blocking doors."""

import json
import sys
import textwrap

import pytest

from tests.support.cli_keys import invoke

APPS = """
    from flask import Blueprint, Flask
    from flask.views import MethodView
    from werkzeug.middleware.dispatcher import DispatcherMiddleware
    from werkzeug.middleware.proxy_fix import ProxyFix
    from twiceproof.server.flask import Idempotency
    from twiceproof.server.wsgi import IdempotencyMiddleware, Policy, anonymous

    def current_user(): return "acct_1"
    def who(environ): return "acct_1"

    idempotency = Idempotency(store="sqlite:///keys.db", principal=current_user)
    shop = Blueprint("shop", __name__, url_prefix="/shop")

    @shop.post("/transfers/<int:number>")
    @idempotency.operation(required=True)
    def transfer(number): ...

    @shop.route("/plain", methods=["GET", "POST"])
    def plain(): ...

    class Orders(MethodView):
        def get(self): ...
        @idempotency.operation(guarantee="at_least_once")
        def patch(self): ...
        def post(self): ...

    class Things(MethodView):
        decorators = (idempotency.operation,)
        def post(self): ...

    def make(install=True):
        app = Flask("shop")
        if install:
            idempotency.install(app)
        app.register_blueprint(shop)
        app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
        app.add_url_rule("/things", view_func=Things.as_view("things"))
        return app

    app = make()
    app.wsgi_app = ProxyFix(app.wsgi_app)
    forgotten = make(install=False)

    def bare(environ, start_response): ...

    table = {"POST /orders/{id}": Policy(required=True), "POST /b": None, "*": Policy(guarantee="at_least_once")}
    ours = IdempotencyMiddleware(bare, store="sqlite:///keys.db", principal=who, policy=table)
    proxied = ProxyFix(ours)
    mounted = DispatcherMiddleware(make(), {"/api": ours})

    inner = Flask("inner")
    inner.add_url_rule("/orders/<id>", "o", lambda id: "", methods=["POST"])
    inner.add_url_rule("/b", "b", lambda: "", methods=["POST"])
    around = IdempotencyMiddleware(inner.wsgi_app, store="sqlite:///keys.db", principal=who, policy=table)
    inside = Flask("inside")
    inside.add_url_rule("/orders/<int:id>", "o", lambda id: "", methods=["POST"])
    inside.wsgi_app = IdempotencyMiddleware(inside.wsgi_app, store="sqlite:///keys.db", principal=who,
                                            policy={"POST /orders/{id}": Policy()})
"""


@pytest.fixture(autouse=True)
def apps(tmp_path, monkeypatch):
    """A folder with that module, as the current one; what is imported from it is forgotten afterwards."""
    (tmp_path / "explained_wsgi.py").write_text(textwrap.dedent(APPS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("explained_wsgi", None)


def explained(name: str, code: int = 0) -> dict:
    done = invoke("explain", f"explained_wsgi:{name}", "--json")
    assert done.exit_code == code
    return json.loads(done.stdout)


def covered(document: dict) -> list[tuple[str, str, str]]:
    return [(each["method"], each["path"], each["door"]) for each in document["operations"]]


OF_THE_SHOP = [
    ("POST", "/shop/transfers/{number}", "flask"),
    ("PATCH", "/orders", "flask"),
    ("POST", "/things", "flask"),
]


def test_a_flask_application_is_explained():
    """Its blueprints, its classes of handlers and single handlers in them, and what has no protection."""
    document = explained("app")
    assert covered(document) == OF_THE_SHOP
    assert [(each["method"], each["path"]) for each in document["unprotected"]] == [
        ("POST", "/shop/plain"),
        ("POST", "/orders"),
    ]
    assert document["problems"] == []
    first, second = document["operations"][:2]
    assert (first["required"], first["endpoint"], first["scope"]["principal"]) == (
        True,
        "transfer",
        "explained_wsgi.current_user",
    )
    assert (second["guarantee"], first["store"]["durable"]) == ("at_least_once", True)
    assert "Depends(" not in invoke("explain", "explained_wsgi:app").stdout


def test_a_flask_application_without_install_is_told():
    """Its marked views answer 500."""
    document = explained("forgotten", code=1)
    assert covered(document) == OF_THE_SHOP
    assert document["problems"] == [
        f"{method} {path} is marked, but install(app) was not called: it answers 500."
        for method, path, _ in OF_THE_SHOP
    ]


@pytest.mark.parametrize("name", ["ours", "proxied"])
def test_a_wsgi_middleware_is_explained_by_its_table(name):
    """What stands behind it can't be seen, so its table is all there is to tell."""
    assert covered(explained(name)) == [
        ("POST", "/orders/{id}", "wsgi"),
        ("POST", "/*", "wsgi"),
        ("PATCH", "/*", "wsgi"),
    ]


def test_a_middleware_around_flask_is_explained_by_its_routes():
    """The table is held against them; a warning says that this is the wrong door."""
    document = explained("around")
    assert covered(document) == [("POST", "/orders/{id}", "wsgi")]
    assert [each["path"] for each in document["unprotected"]] == ["/b"]
    assert [warning for warning in document["warnings"] if "use twiceproof.server.flask" in warning] != []
    assert covered(explained("inside")) == [("POST", "/orders/{id}", "wsgi")]


def test_what_a_dispatcher_mounts_is_found_below_its_prefix():
    """Each application by its own door."""
    assert sorted(covered(explained("mounted"))) == sorted(
        [
            *OF_THE_SHOP,
            ("POST", "/api/orders/{id}", "wsgi"),
            ("POST", "/api/*", "wsgi"),
            ("PATCH", "/api/*", "wsgi"),
        ]
    )
