"""The body of a request at the Flask door, whoever has read of it before the claim: R11, R52, B43."""

import functools
from io import BytesIO
from typing import Any

import pytest
from flask import request

from tests.support.flask_service import Service
from tests.support.wsgi_door import environ_of

FORM: dict[str, Any] = {"data": b"n=1&m=2", "content_type": "application/x-www-form-urlencoded"}
OTHER_FORM = FORM | {"data": b"n=2&m=2"}


def service_that(read_before, read_in_view, wrap=functools.wraps, **options):
    """A service whose hook reads the body before the claim, and whose view reads it then."""
    service = Service(**options)
    seen = []

    @service.app.before_request
    def before():
        seen.append(read_before())

    def decorator(view):
        @wrap(view)
        def guarded(**values):
            return view(**values)

        return guarded

    def create():
        service.effect()
        seen.append(read_in_view())
        return "done"

    view = decorator(service.idempotency.operation(create))
    service.app.add_url_rule("/orders", "create", view, methods=["POST"])
    return service, seen


def parts_of(name):
    def read():
        match name:
            case "form":
                return request.form.to_dict()
            case "data":
                return request.get_data()
            case "stream":
                return request.stream.read()
            case "part":
                return request.stream.read(3)
            case "line":
                return request.environ["wsgi.input"].readline(2)
            case "lines":
                return request.environ["wsgi.input"].readlines()
            case _:
                return None

    return read


READERS = {name: parts_of(name) for name in ("nothing", "form", "data", "stream", "part", "line", "lines")}


@pytest.mark.parametrize("before", READERS)
def test_who_reads_first_changes_nothing(before):
    """B43: whatever a hook has read or parsed, the fingerprint is of the whole body."""
    service, _ = service_that(READERS[before], lambda: None)
    with service:
        done = [service.post(**FORM), service.post(**FORM), service.post(**OTHER_FORM)]
        assert [(one.status, one.replayed) for one in done] == [(200, False), (200, True), (422, False)]
    assert service.effects == 1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("form", "form", [{"n": "1", "m": "2"}, {"n": "1", "m": "2"}]),
        ("data", "form", [b"n=1&m=2", {"n": "1", "m": "2"}]),
        ("nothing", "form", [None, {"n": "1", "m": "2"}]),
        ("nothing", "stream", [None, b"n=1&m=2"]),
        ("part", "stream", [b"n=1", b"&m=2"]),
        ("part", "lines", [b"n=1", [b"&m=2"]]),
    ],
)
def test_the_view_reads_what_it_would_read_without_us(before, after, expected):
    """R52."""
    service, seen = service_that(READERS[before], READERS[after])
    with service:
        service.post(**FORM)
    assert seen == expected


def test_a_chunked_body_is_read_whole():
    """B43, R19."""
    service, seen = service_that(READERS["nothing"], READERS["data"])

    def chunked(body):
        return {
            "input_stream": BytesIO(body),
            "content_type": FORM["content_type"],
            "environ_overrides": {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True},
            "data": None,
        }

    with service:
        done = [service.post(**chunked(b"n=1&m=2")), service.post(**FORM), service.post(**chunked(b"n=2&m=2"))]
        assert [(one.status, one.replayed) for one in done] == [(200, False), (200, True), (422, False)]
    assert seen[:2] == [None, b"n=1&m=2"]


def test_a_chunked_body_whose_end_the_server_can_t_tell_is_refused():
    """B43: instead of an empty one."""
    service, _ = service_that(READERS["nothing"], READERS["data"])
    with service:
        environ = environ_of(CONTENT_LENGTH=None, HTTP_TRANSFER_ENCODING="chunked")
        heads = []
        list(service.app(environ, lambda *head: heads.append(head[0])))
    assert (heads, service.effects) == (["400 Bad Request"], 0)


@pytest.mark.parametrize("before", ["nothing", "part", "stream"])
def test_a_body_that_ends_early_is_refused(before):
    """R52: whoever noticed; the key is free."""
    read = READERS[before]

    def careful():
        try:
            return read()
        except Exception as error:
            return type(error).__name__

    service, _ = service_that(careful, lambda: None)
    with service:
        short = service.post(**FORM, environ_overrides={"CONTENT_LENGTH": "9"})
        assert (short.status, short.problem, service.effects, service.states()) == (400, "body-incomplete", 0, [])
        assert service.post(**FORM).status == 200


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_the_bound_of_the_application_is_its_own(framing):
    """R11: over MAX_CONTENT_LENGTH it is the application's refusal, before any claim, and no more is held in memory."""
    service, _ = service_that(READERS["nothing"], READERS["data"])
    service.app.config["MAX_CONTENT_LENGTH"] = 5
    service.app.register_error_handler(413, lambda error: ("mine", 413))
    options: dict[str, Any] = dict(FORM)
    if framing == "chunked":
        options = FORM | {
            "data": None,
            "input_stream": BytesIO(b"n=1&m=2"),
            "environ_overrides": {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"},
        }
    with service:
        seen = service.post(**options)
        assert (seen.status, seen.body, service.effects, service.faults.calls) == (413, b"mine", 0, [])
        service.app.config["MAX_CONTENT_LENGTH"] = 7
        assert service.post(**FORM).status == 200


def test_a_decorator_that_hides_the_mark_is_told_of(caplog):
    """Without functools.wraps nobody can see in time that the body will be wanted: 500, never a wrong fingerprint."""
    service, _ = service_that(READERS["stream"], lambda: None, wrap=lambda view: lambda wrapper: wrapper)
    with service:
        assert (service.post(**FORM).status, service.effects) == (500, 0)
        assert "must use functools.wraps" in caplog.text
        assert service.post(key=None, **FORM).status == 200


def test_a_decorator_that_hides_the_mark_does_no_harm_where_there_is_no_body():
    """An empty read has taken nothing away."""
    service, _ = service_that(READERS["lines"], lambda: None, wrap=lambda view: lambda wrapper: wrapper)
    with service:
        assert [service.post(data=b"").replayed for _ in range(2)] == [False, True]


def test_a_decorator_that_hides_the_mark_does_no_harm_where_nobody_reads_first():
    """The claim is made by the mark itself."""
    service, _ = service_that(READERS["nothing"], READERS["form"], wrap=lambda view: lambda wrapper: wrapper)
    with service:
        assert [service.post(**FORM).replayed for _ in range(2)] == [False, True]


def test_an_input_without_a_key_is_the_server_s_own():
    """R52: nothing is copied or wrapped for a request without a key."""
    service, seen = service_that(lambda: request.environ["wsgi.input"], lambda: None)
    with service:
        environ = environ_of(None)
        source = environ["wsgi.input"]
        list(service.app(environ, lambda *head: None))
    assert seen[0] is source
