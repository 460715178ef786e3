"""What the Flask door records is what is really sent, and how a run ends: CONTRACT 5, R25, R43, R46, R49, R50, R51."""

import pytest
from flask import Response, abort, flash, g, make_response, request, send_file, session, stream_with_context
from werkzeug.exceptions import ServiceUnavailable

from tests.support.flask_service import Service, with_orders
from tests.support.wsgi_door import Serving, environ_of
from twiceproof import NotExecuted


class OutOfStock(Exception):
    """An application's own error."""


def serving(view, app=None, **options):
    """A service with one protected view."""
    service = Service(app=app)
    service.app.add_url_rule("/orders", view_func=service.idempotency.operation(**options)(view), methods=["POST"])
    return service


def raising(error):
    def view():
        raise error

    return view


def test_hooks_after_the_view_are_part_of_the_answer():
    """R25: recorded as it is really sent, and they do not change a replay a second time."""
    with with_orders(Service()) as service:

        @service.app.after_request
        def wrap(response):
            response.headers.add("X-Hook", "1")
            response.set_data(b"[" + response.get_data() + b"]")
            return response

        first, again = service.post(), service.post()
    assert first.body.startswith(b"[{")
    assert (again.body, again.all("x-hook"), again.replayed) == (first.body, ["1"], True)


def test_what_is_about_the_session_is_never_stored_and_fresh_on_a_replay():
    """R46: cookies, CORS and request ids of a replay are those of its own request."""
    with with_orders(Service()) as service:

        @service.app.after_request
        def stamp(response):
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["X-Request-Id"] = request.headers["Origin"][-1]
            response.set_cookie("seen", request.headers["Origin"][-1])
            response.headers["X-Frame-Options"] = "DENY"
            return response

        def post(number, **options):
            return service.post(headers=[("Origin", f"https://o{number}")], **options)

        names = ("access-control-allow-origin", "x-request-id", "set-cookie", "x-frame-options", "date")
        first, again, refused = post(1), post(2), post(3, json={"n": 2})
        stored = [name.decode() for record in service.records() for name, _ in decoded(record)]
    assert [first.all(name) for name in names] == [["https://o1"], ["1"], ["seen=1; Path=/"], ["DENY"], []]
    assert [again.all(name) for name in names] == [["https://o2"], ["2"], ["seen=2; Path=/"], ["DENY"], []]
    assert (refused.problem, refused.all("access-control-allow-origin")) == ("idempotency-key-reuse", ["https://o3"])
    assert [name.lower() for name in stored] == ["content-type", "x-frame-options"]


def decoded(record):
    from twiceproof.core._codec import decode

    return decode(record.answer).headers


def test_a_kept_cookie_is_not_sent_twice():
    """R46: where the policy keeps the field, the stored one is the one."""

    def view():
        session["n"] = 1
        return "done"

    with serving(view, keep_headers={"set-cookie"}) as service:
        service.app.before_request(lambda: session.update(before=1))
        first, again = service.post(), service.post()
    assert (again.all("set-cookie"), len(again.all("set-cookie"))) == (first.all("set-cookie"), 1)


def test_session_and_flash_write_their_cookie_once():
    """R46: a replay neither repeats the session's change nor the message."""

    def view():
        flash("saved")
        session["n"] = 1
        return "done"

    with serving(view) as service:
        first, again = service.post(), service.post()
    assert (len(first.all("set-cookie")), again.all("set-cookie"), again.body) == (1, [], b"done")


@pytest.mark.parametrize(
    ("view", "status"),
    [
        (lambda: ("done", 201, {"X-A": "1"}), 201),
        (lambda: make_response({"n": 1}, 202), 202),
        (lambda: Response(status=204), 204),
        (lambda: abort(409), 409),
        (lambda: abort(422, response=Response("mine", 422)), 422),
        (raising(ServiceUnavailable(retry_after=7)), 503),
        (lambda: (["a", "b"], 200), 200),
    ],
)
def test_answers_of_every_kind_are_stored_and_replayed(view, status):
    """R25, R35, R36: also the one that abort makes, and a 503 under at-most-once."""
    with serving(view) as service:
        first, again = service.post(), service.post()
    assert ((first.status, first.replayed), (again.status, again.replayed)) == ((status, False), (status, True))
    assert again.body == first.body
    assert again.all("retry-after") == first.all("retry-after")


@pytest.mark.parametrize("status", [401, 403, 429])
def test_a_gate_in_the_view_frees_the_key(status):
    """R37."""
    with serving(lambda: abort(status)) as service:
        assert ([service.post().status, service.post().status], service.states()) == ([status, status], [])


@pytest.mark.parametrize(("guarantee", "states"), [("at_most_once", ["parked"]), ("at_least_once", [])])
@pytest.mark.parametrize("shown", ["default", "500 handler", "Exception handler", "propagated"])
def test_an_exception_is_one_whoever_renders_it(guarantee, states, shown):
    """CONTRACT 5: Flask makes a 500 of it, which is no answer of the view; under at-most-once nobody knows."""
    with serving(raising(LookupError("as the test wants it")), guarantee=guarantee) as service:
        if shown == "propagated":
            service.app.config["PROPAGATE_EXCEPTIONS"] = True
            with pytest.raises(LookupError):
                service.post()
        else:
            if shown == "500 handler":
                service.app.register_error_handler(500, lambda error: ("sorry", 500))
            if shown == "Exception handler":
                service.app.register_error_handler(Exception, lambda error: ("sorry", 500))
            first = service.post()
            assert (first.status, first.body == b"sorry") == (500, shown != "default")
        assert (service.states(), service.causes) == (states, ["exception"] * len(states))
        if states:
            assert service.post().problem == "outcome-unknown"


@pytest.mark.parametrize("status", [409, 502])
@pytest.mark.parametrize("where", ["app", "blueprint"])
def test_an_error_handler_written_for_an_error_makes_it_an_answer(status, where):
    """R36: the application knows what it means."""
    from flask import Blueprint

    service = Service()
    blueprint = Blueprint("shop", "shop")
    blueprint.post("/orders", endpoint="create")(service.idempotency.operation(raising(OutOfStock())))
    (service.app if where == "app" else blueprint).register_error_handler(
        OutOfStock, lambda error: ({"error": "out of stock"}, status)
    )
    service.app.register_blueprint(blueprint)
    with service:
        seen = [service.post().brief for _ in range(2)]
    assert seen == [(status, False, {"error": "out of stock"}), (status, True, {"error": "out of stock"})]


def test_a_handler_for_everything_may_still_make_an_answer_below_500():
    """R36: that is what it says then."""
    with serving(raising(LookupError())) as service:
        service.app.register_error_handler(Exception, lambda error: ("gone", 410))
        assert [(one.status, one.replayed) for one in (service.post(), service.post())] == [(410, False), (410, True)]


def test_a_hook_that_fails_after_the_view_leaves_the_outcome_unknown():
    """CONTRACT 5: the view took effect, and its client was told 500."""
    with with_orders(Service()) as service:

        @service.app.after_request
        def fail(response):
            if response.status_code == 201:
                raise LookupError
            return response

        assert (service.post().status, service.causes, service.effects) == (500, ["exception"], 1)
        assert (service.post().problem, service.effects) == ("outcome-unknown", 1)


def test_a_teardown_that_fails_leaves_the_outcome_unknown():
    """CONTRACT 5: Flask tears down before the answer goes out, and the server answers 500 instead."""
    with with_orders(Service()) as service:

        @service.app.teardown_request
        def fail(error):
            if service.effects:
                raise LookupError

        with pytest.raises(LookupError):
            service.post()
        assert (service.states(), service.causes) == (["parked"], ["exception"])


@pytest.mark.parametrize("handled", [False, True])
def test_not_executed_frees_the_key_whatever_is_made_of_it(handled):
    """CONTRACT 5."""
    with serving(raising(NotExecuted())) as service:
        if handled:
            service.app.register_error_handler(NotExecuted, lambda error: ("not now", 503))
        assert (service.post().status, service.states()) == (503 if handled else 500, [])


@pytest.mark.parametrize(("status", "states"), [(422, []), (201, ["completed"])])
def test_release_frees_the_key_of_a_refusal_only(status, states):
    """CONTRACT 5."""

    def view():
        g.twiceproof.release()
        return "x", status

    with serving(view) as service:
        assert (service.post().status, service.states()) == (status, states)


def test_a_decorator_above_may_work_on_the_answer():
    """A replay is given for the whole; a decorator sees an empty answer, and its failing on that changes nothing."""
    with Service() as service:

        def as_list(view):
            def listed():
                return [view()["effect"]], 201

            return listed

        service.app.add_url_rule(
            "/orders",
            "o",
            as_list(service.idempotency.operation(lambda: {"effect": service.effect()})),
            methods=["POST"],
        )
        seen = [service.post().brief, service.post().brief]
        service.app.config["PROPAGATE_EXCEPTIONS"] = True
        seen.append(service.post().brief)
    assert seen == [(201, False, [1]), (201, True, [1]), (201, True, [1])]


# ---------------------------------------------------------------------- streams


@pytest.mark.parametrize("how", ["generator", "stream_with_context", "view"])
def test_a_stream_goes_out_as_it_comes_and_is_stored(how):
    """R43: each part before the next is made; the record is written before the end is told."""
    made = []

    def parts():
        for at in range(3):
            made.append(at)
            yield f"{at}{request.method if how == 'stream_with_context' else ''}"

    views = {
        "generator": lambda: Response(parts()),
        "stream_with_context": lambda: Response(stream_with_context(parts())),
        "view": parts,
    }
    with serving(views[how]) as service:
        serving_ = Serving(service.app, environ_of())
        steps = [(serving_.next(), len(made), service.states()) for _ in range(4)]
        serving_.close()
        suffix = b"POST" if how == "stream_with_context" else b""
        running, done = ["in_flight"], ["completed"]
        assert steps == [
            (b"0" + suffix, 1, running),
            (b"1" + suffix, 2, running),
            (b"2" + suffix, 3, running),
            (None, 3, done),
        ]
        assert (service.post().body, made) == (b"".join(b"%d" % at + suffix for at in range(3)), [0, 1, 2])


def test_a_client_that_leaves_a_stream_cuts_it_short_and_closes_it():
    """R50, B45: the response's own close hooks run once."""
    closed = []

    def view():
        response = Response(iter(["a", "b"]))
        response.call_on_close(lambda: closed.append(1))
        return response

    with serving(view) as service:
        serving_ = Serving(service.app, environ_of())
        serving_.next()
        serving_.close()
        assert (service.causes, closed) == (["cut-short"], [1])


def test_the_close_hooks_of_a_first_answer_run_once_and_those_of_a_replay_s_stand_in_too():
    """B45: whatever Flask has made for a request is closed."""
    closed = []
    with with_orders(Service()) as service:

        @service.app.after_request
        def count(response):
            response.call_on_close(lambda: closed.append(1))
            return response

        service.post()
        service.post()
    assert len(closed) == 2


def test_a_file_is_sent_and_kept_where_the_server_has_no_way_of_its_own(tmp_path):
    """R26, R43: with a wrapper of the server's own the body is not kept."""
    from wsgiref.util import FileWrapper

    (tmp_path / "f.txt").write_bytes(b"content")
    with serving(lambda: send_file(tmp_path / "f.txt")) as service:
        assert [one.body for one in (service.post(), service.post())] == [b"content", b"content"]
        environ = environ_of("k2") | {"wsgi.file_wrapper": FileWrapper}
        serving_ = Serving(service.app, environ)
        assert isinstance(serving_.result, FileWrapper)
        assert serving_.next() == b"content"
        serving_.close()
        assert service.post(key="k2").problem == "replay-unavailable"
