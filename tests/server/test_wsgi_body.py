"""The body of a request at the WSGI door: R11, R52, B43."""

import logging
import tracemalloc
from io import BytesIO
from typing import Any

import pytest

from tests.support.wsgi_door import Counter, Door, call, environ_of
from twiceproof import Policy


class Socket:
    """An input that counts what was asked of it; it fails the test where it would block on a real socket."""

    def __init__(self, *parts: bytes, end: bool = False, error: Exception | None = None) -> None:
        self.parts = list(parts)
        self.end = end
        self.error = error
        self.read_bytes = 0

    def read(self, size: int = -1) -> bytes:
        if not self.parts:
            if self.error is not None:
                raise self.error
            assert self.end, "a real server would wait here for ever"
            return b""
        part = self.parts.pop(0)
        if 0 <= size < len(part):
            self.parts.insert(0, part[size:])
            part = part[:size]
        self.read_bytes += len(part)
        return part


def chunked(*parts: bytes, **more):
    """The environ of a chunked request at a server that ends the body itself."""
    terminated: dict[str, Any] = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
    return environ_of(CONTENT_LENGTH=None, **(terminated | {"wsgi.input": Socket(*parts, end=True)} | more))


def test_a_body_that_arrives_in_parts_is_one_body():
    """R52: the application gets it whole, and exactly once more than the door asked is never asked for."""
    with Door(app := Counter()) as door:
        source = Socket(b'{"n"', b":1", b"}", b"next request")
        call(door, environ_of() | {"wsgi.input": source})
        assert (app.bodies, source.parts) == ([b'{"n":1}'], [b"next request"])
        assert door.call().replayed


def test_the_application_reads_as_it_likes():
    """PEP 3333: read, readline, readlines and iteration, and the end of the body is an end."""
    seen = []

    def app(environ, start_response):
        source = environ["wsgi.input"]
        seen.extend([source.readline(), source.read(2), next(iter(source)), source.readlines(), source.read()])
        assert environ["wsgi.input_terminated"] is True
        start_response("200 OK", [])
        return []

    with Door(app) as door:
        door.call(body=b"a\nbcd\nef\ngh")
    assert seen == [b"a\n", b"bc", b"d\n", [b"ef\n", b"gh"], b""]


@pytest.mark.parametrize("size", [10, 11])
def test_a_body_over_the_bound_is_refused_unread(size):
    """R11."""
    with Door(app := Counter(), policy=Policy(max_request_bytes=10)) as door:
        environ = environ_of(body=b"x" * size)
        seen = call(door, environ)
        assert (seen.code, app.effects) == ((201, 1) if size == 10 else (413, 0))
        if size == 11:
            assert (seen.problem, environ["wsgi.input"].tell()) == ("request-too-large", 0)
            assert door.faults.foreground() == []


def test_a_chunked_body_over_the_bound_is_refused_when_it_has_grown_over_it():
    """R11: it is not read to its end."""
    with Door(app := Counter(), policy=Policy(max_request_bytes=10)) as door:
        environ = chunked(*[b"x" * 6] * 9)
        assert (call(door, environ).problem, app.effects) == ("request-too-large", 0)
        assert environ["wsgi.input"].read_bytes == 12


def test_chunking_never_matters():
    """R19, B43: the same payload is the same request however it was framed, and another is not."""
    with Door(app := Counter()) as door:
        first = call(door, chunked(b'{"n"', b":1}"))
        assert (first.code, app.bodies) == (201, [b'{"n":1}'])
        assert (door.call().replayed, call(door, chunked(b'{"n":1}')).replayed) == (True, True)
        assert call(door, chunked(b'{"n":2}')).problem == "idempotency-key-reuse"
    assert app.effects == 1


def test_a_chunked_body_whose_end_the_server_can_t_tell_is_refused(caplog):
    """B43: never fingerprinted as an empty body; the log says what such a server needs."""
    with Door(app := Counter()) as door:
        environ = environ_of(CONTENT_LENGTH=None, HTTP_TRANSFER_ENCODING="chunked") | {"wsgi.input": Socket(b"x")}
        with caplog.at_level(logging.WARNING, "twiceproof.server"):
            seen = call(door, environ)
    assert (seen.code, seen.problem, app.effects) == (400, "body-incomplete", 0)
    assert "Content-Length" in caplog.text


def test_a_body_without_any_length_is_read_to_its_end_where_the_server_ends_it():
    """B43: HTTP/2 has no chunked coding and needs no length."""
    with Door(app := Counter()) as door:
        call(door, chunked(b'{"n":1}', HTTP_TRANSFER_ENCODING=None))
        assert app.bodies == [b'{"n":1}']
        assert call(door, chunked(b'{"n":2}', HTTP_TRANSFER_ENCODING=None)).problem == "idempotency-key-reuse"


@pytest.mark.parametrize("length", [None, "", "0"])
def test_no_length_and_no_coding_is_no_body(length):
    """RFC 9112 §6.3: nothing is read."""
    with Door(app := Counter(body=[])) as door:
        source = BytesIO(b"next request")
        call(door, environ_of(CONTENT_LENGTH=length) | {"wsgi.input": source})
        assert (app.bodies, source.tell()) == ([b""], 0)


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
def test_a_body_that_ends_early_is_refused_and_never_fingerprinted(error):
    """R52: the key is free for the whole request."""
    with Door(app := Counter()) as door:
        source = Socket(b'{"n"', end=True, error=error)
        seen = call(door, environ_of() | {"wsgi.input": source})
        assert (seen.code, seen.problem, app.effects) == (400, "body-incomplete", 0)
        assert (door.faults.foreground(), door.call().brief) == ([], (201, False, b"effect 1"))


def test_chunks_that_make_no_sense_are_refused():
    """R52: servers raise an OSError for them."""
    with Door(app := Counter()) as door:
        seen = call(door, chunked(**{"wsgi.input": Socket(b"ab", error=OSError("Invalid chunk header"))}))
        assert (seen.problem, app.effects) == ("body-incomplete", 0)


@pytest.mark.parametrize("length", ["-1", "seven", "\u0663", "1,1"])
def test_a_length_that_is_none_is_refused(length):
    """R52: a server that lets it through can't tell where the body ends."""
    with Door(app := Counter()) as door:
        assert (door.call(CONTENT_LENGTH=length).problem, app.effects) == ("body-incomplete", 0)


def test_a_length_beyond_all_bounds_is_too_large():
    """R11: however many digits it has."""
    with Door(Counter()) as door:
        assert door.call(CONTENT_LENGTH="9" * 5000).problem == "request-too-large"


@pytest.mark.parametrize("parts", [1, 160])
def test_a_large_body_is_in_memory_once(parts):
    """R11: the application reads the very bytes that were fingerprinted, and nobody else holds them then."""
    size = 10 * 1024 * 1024
    body = bytes(size)
    peaks = []
    left = []

    def app(environ, start_response):
        peaks.append(tracemalloc.get_traced_memory()[1])
        environ.pop("wsgi.input").read()
        left.append(tracemalloc.get_traced_memory()[0])
        start_response("200 OK", [])
        return []

    with Door(app) as door:
        step = size // parts
        source = Socket(*(body[at : at + step] for at in range(0, size, step))) if parts > 1 else Socket(body)
        environ = environ_of(CONTENT_TYPE="application/octet-stream", CONTENT_LENGTH=str(size))
        environ["wsgi.input"] = source
        tracemalloc.start()
        call(door, environ)
        tracemalloc.stop()
    assert [peak < 1.3 * size for peak in peaks] == [True]
    assert [current < 0.1 * size for current in left] == [True]
