"""The claim of the Flask door comes after authentication and right before the view: R1, R6, R8, R11, R12, R15, R49."""

from typing import Any
from uuid import UUID

import pytest
from flask import Flask, abort, g, request

from tests.support.faulty_store import DOWN
from tests.support.flask_service import Service, with_orders
from twiceproof import TwiceproofWarning
from twiceproof.server.flask import by_authorization


def guarded(service, **options):
    """A service whose one operation is below a decorator that authenticates."""

    @service.app.post("/orders")
    @service.login_required
    @service.idempotency.operation(**options)
    def create():
        return {"effect": service.effect(), "account": g.account}, 201

    return service


def token(name):
    return {"headers": [("Authorization", f"Bearer {name}")]}


def test_a_key_makes_the_effect_happen_once():
    """R21, R25."""
    with with_orders(Service()) as service:
        first, again = service.post(), service.post()
    assert (first.brief, again.brief) == (
        (201, False, {"effect": 1, "n": 1}),
        (201, True, {"effect": 1, "n": 1}),
    )
    assert (again.body, service.effects) == (first.body, 1)


def test_decorators_that_authenticate_come_first():
    """R49, R12: a revoked token reads no replay, a refreshed one does; two accounts share nothing."""
    with guarded(Service(lambda: g.account)) as service:
        first = service.post(**token("ann-1"))
        refreshed, bob = service.post(**token("ann-2")), service.post(**token("bob-1"))
        del service.accounts["Bearer ann-1"]
        calls = len(service.faults.calls)
        revoked = service.post(**token("ann-1"))
        assert (first.brief, refreshed.brief) == (
            (201, False, {"effect": 1, "account": "ann"}),
            (201, True, {"effect": 1, "account": "ann"}),
        )
        assert (bob.brief, revoked.status) == ((201, False, {"effect": 2, "account": "bob"}), 401)
        assert len(service.faults.calls) == calls


def test_before_request_comes_first_too():
    """R49: a hook that refuses is answered before the key is looked at."""
    with with_orders(Service(lambda: g.account), required=True) as service:

        @service.app.before_request
        def authenticate():
            g.account = service.accounts.get(request.headers.get("Authorization", ""))
            return None if g.account else ({"error": "who?"}, 401)

        assert service.post(key="k1,k2").brief == (401, False, {"error": "who?"})
        assert service.post(key="k1,k2", **token("ann-1")).problem == "idempotency-key-invalid"
        assert service.post(**token("ann-1")).status == 201


def test_the_principal_may_refuse_by_itself():
    """R12: it is the application's own refusal, with its own error handler."""

    def who():
        abort(401)

    with with_orders(Service(who)) as service:
        service.app.register_error_handler(401, lambda error: ({"error": "mine"}, 401))
        assert (service.post().brief, service.states(), service.effects) == ((401, False, {"error": "mine"}), [], 0)


@pytest.mark.parametrize("nobody", [None, ""])
def test_nobody_is_401_and_never_the_anonymous_space(nobody):
    """R12, B19: before what is wrong with the key is told."""
    with with_orders(Service(lambda: nobody)) as service:
        seen = service.post(), service.post(key="k1,k2")
        assert ([one.status for one in seen], service.effects, service.faults.calls) == ([401, 401], 0, [])


def test_the_principal_is_asked_only_where_there_is_a_key_to_protect():
    """R9: a request without one needs no account of ours."""
    asked = []

    def who():
        asked.append(1)
        return "ann"

    with with_orders(Service(who)) as service:
        assert service.post(key=None).brief == (201, False, {"effect": 1, "n": 1})
        assert asked == []


@pytest.mark.parametrize(("account", "same"), [(7, "7"), (UUID(int=7), str(UUID(int=7))), ("ann", "ann")])
def test_accounts_are_texts_numbers_or_uuids(account, same):
    """R12: and a number is the same account as its text."""
    found = [account]
    with with_orders(Service(lambda: found[0])) as service:
        service.post()
        found[0] = same
        assert service.post().replayed


@pytest.mark.parametrize("found", [True, 1.5, object(), {"id": 7}])
def test_an_account_of_another_kind_is_an_error_and_runs_nothing(found, caplog):
    """R12: an object's text may differ at every request."""
    with with_orders(Service(lambda: found)) as service:
        assert (service.post().status, service.effects) == (500, 0)
    assert "say account=lambda user: user.id" in caplog.text


def test_account_takes_the_id_from_what_the_principal_returns():
    """R12: None of it is nobody."""
    found: list[Any] = [{"id": 7}]
    with with_orders(Service(lambda: found[0], account=lambda user: user["id"])) as service:
        seen = [service.post().replayed, service.post().replayed]
        found[0] = None
        assert (seen, service.post().status) == ([False, True], 401)


def test_by_authorization_tells_accounts_apart_by_the_field():
    """R12."""
    with pytest.warns(TwiceproofWarning, match="refreshed token"):
        service = with_orders(Service(by_authorization))
    with service:
        seen = [service.post(**token(name)).replayed for name in ("a", "b", "a")]
        assert (seen, service.post().status) == ([False, False, True], 401)


def test_refusals_touch_neither_view_nor_store():
    """R6, R8, R11: missing, bad, too large."""
    with with_orders(Service(), required=True, max_request_bytes=20) as service:
        seen = [service.post(key=None), service.post(key=""), service.post(json={"n": "x" * 20})]
        assert [one.problem for one in seen] == [
            "idempotency-key-missing",
            "idempotency-key-invalid",
            "request-too-large",
        ]
        assert (service.effects, service.faults.calls) == (0, [])
        assert service.events == [("refused", one.problem) for one in seen]


def test_methods_that_are_not_covered_run_untouched():
    """R1: the same view under GET, with a key."""
    with Service() as service:

        @service.app.route("/things", methods=["GET", "POST"])
        @service.idempotency.operation(required=True)
        def things():
            return {"effect": service.effect(), "protected": service.idempotency.attempt.protected}

        seen = [service.post("/things", method="GET").json for _ in range(2)]
        assert seen == [{"effect": 1, "protected": False}, {"effect": 2, "protected": False}]
        assert service.post("/things").json == {"effect": 3, "protected": True}


def test_views_without_a_mark_are_not_touched():
    """R52: their key is ignored, and their body is not copied."""
    with with_orders(Service()) as service:

        @service.app.post("/plain")
        def plain():
            return {"effect": service.effect(), **request.get_json()}

        assert [service.post("/plain").json["effect"] for _ in range(2)] == [1, 2]
        assert service.faults.calls == []


def test_the_attempt_of_the_request_is_in_g_and_in_the_door():
    """The same one, also in hooks before the view, and a bare one where nothing is protected."""
    seen = []
    app = Flask("service")

    @app.before_request
    def before():
        seen.append(g.twiceproof)

    with Service(app=app) as service:

        @service.app.post("/orders")
        @service.idempotency.operation
        def create():
            attempt = service.idempotency.attempt
            assert attempt is g.twiceproof is seen[-1] is request.environ["twiceproof"]
            return {"key": attempt.key, "protected": attempt.protected, "attempt": attempt.attempt}

        assert service.post().json == {"key": "k1", "protected": True, "attempt": 1}
        assert service.post(key=None).json == {"key": None, "protected": False, "attempt": 1}
        assert service.idempotency.attempt.protected is False


def test_the_store_down_at_the_claim_is_503_unless_the_operation_fails_open():
    """R48."""
    with with_orders(Service()) as service:

        @service.app.post("/open")
        @service.idempotency.operation(fail_open=True)
        def fails_open():
            return {"effect": service.effect(), **request.get_json()}

        service.faults.now["claim"] = DOWN
        refused, run = service.post(), service.post("/open")
    assert (refused.problem, refused.all("retry-after")) == ("store-unavailable", ["5"])
    assert (run.json, run.all("idempotency-unprotected")) == ({"effect": 1, "n": 1}, ["true"])


def test_another_payload_and_another_path_are_told_apart():
    """R24, R16."""
    with Service() as service:

        @service.app.post("/orders/<int:number>")
        @service.idempotency.operation
        def create(number):
            return {"effect": service.effect(), "number": number}

        seen = [
            service.post("/orders/1").json,
            service.post("/orders/2").json,
            service.post("/orders/1", json={"n": 2}).problem,
            service.post("/orders/1?x=1").problem,
            service.post("/orders/1").json,
        ]
    reuse = "idempotency-key-reuse"
    assert seen == [{"effect": 1, "number": 1}, {"effect": 2, "number": 2}, reuse, reuse, {"effect": 1, "number": 1}]
