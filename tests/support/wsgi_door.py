"""A WSGI application behind its door, with a memory store that can be looked into and made to fail, and a server's
part of PEP 3333 that notes every step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Self

from tests.support.engines import FakeClock
from tests.support.faulty_store import Faults, FaultyStore
from twiceproof import Event, Policy, Record
from twiceproof.core._problems import PROBLEM_JSON
from twiceproof.server.wsgi import IdempotencyMiddleware, anonymous
from twiceproof.stores._protocol import Filter
from twiceproof.stores.memory import MemoryStore

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def environ_of(
    key: str | None = "k1",
    body: bytes = b'{"n":1}',
    path: str = "/orders",
    method: str = "POST",
    **more: Any,
) -> dict[str, Any]:
    """An environ as a careful server makes it; ``more`` adds to it, and None takes away."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "REQUEST_URI": path,
        "SERVER_NAME": "t",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    if key is not None:
        environ["HTTP_IDEMPOTENCY_KEY"] = key
    environ |= more
    return {name: value for name, value in environ.items() if value is not None}


@dataclass
class Seen:
    """What a server saw of an answer. ``steps``: every write and chunk that went out, in order."""

    status: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    steps: list[bytes] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def code(self) -> int:
        return int(self.status[:3])

    @property
    def body(self) -> bytes:
        return b"".join(self.steps)

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.headers if field.lower() == name]

    @property
    def replayed(self) -> bool:
        return self.all("idempotent-replayed") == ["true"]

    @property
    def brief(self) -> tuple[int, bool, bytes]:
        return self.code, self.replayed, self.body

    @property
    def problem(self) -> str:
        import json

        return str(json.loads(self.body)["code"]) if self.all("content-type") == [PROBLEM_JSON.decode()] else ""


class Serving:
    """A server that takes one request as far as a test says."""

    def __init__(self, app: App, environ: dict[str, Any]) -> None:
        self.seen = Seen()
        self.result = app(environ, self._start)
        self.iterator = iter(self.result)

    def _start(self, status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], None]:
        if exc_info and self.seen.steps:
            raise exc_info[1].with_traceback(exc_info[2])
        assert exc_info or not self.seen.status, "two heads"
        self.seen.status, self.seen.headers = status, list(headers)
        return self.seen.steps.append

    def next(self) -> bytes | None:
        """Send the next chunk; None at the end."""
        for chunk in self.iterator:
            self.seen.steps.append(chunk)
            return chunk
        return None

    def close(self) -> None:
        close = getattr(self.result, "close", None)
        if close is not None:
            close()


def call(app: App, environ: dict[str, Any] | None = None, **options: Any) -> Seen:
    """Take a request to its end; an error of the application is noted where a server would log it."""
    serving = None
    seen = Seen()
    try:
        serving = Serving(app, environ if environ is not None else environ_of(**options))
        seen = serving.seen
        while serving.next() is not None:
            pass
    except Exception as error:
        seen.error = error
    if serving is not None:
        try:
            serving.close()
        except Exception as error:
            seen.error = error
    return seen


class Door:
    """An application behind the middleware. Leaving it closes the engine."""

    def __init__(self, app: App, principal: Any = anonymous, policy: Any = None, **options: Any) -> None:
        self.clock = FakeClock()
        self.memory = MemoryStore(self.clock)
        self.faults = Faults()
        self.events: list[tuple[str, str]] = []
        given: dict[str, Any] = {
            "accept_volatile": True,
            "purge_every": 0,
            "drain": 1,
            "on_event": self._note,
        } | options
        self.middleware = IdempotencyMiddleware(
            app,
            store=FaultyStore(self.memory, self.faults),
            principal=principal,
            policy=Policy() if policy is None else policy,
            **given,
        )

    def _note(self, event: Event) -> None:
        self.events.append((event.name, event.code))

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return self.middleware(environ, start_response)

    def call(self, **options: Any) -> Seen:
        return call(self.middleware, **options)

    def serve(self, **options: Any) -> Serving:
        return Serving(self.middleware, environ_of(**options))

    def records(self) -> list[Record]:
        return list(self.memory.scan(Filter()).records)

    def states(self) -> list[str]:
        return [str(record.state) for record in self.records()]

    @property
    def causes(self) -> list[str | None]:
        return [record.cause for record in self.records()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.middleware.engine.close()


class Counter:
    """An application with one effect per call, which answers what it was given."""

    def __init__(self, status: str = "201 Created", headers: Any = (), body: Any = None) -> None:
        self.effects = 0
        self.bodies: list[bytes] = []
        self.status = status
        self.headers = list(headers)
        self.body = body

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.effects += 1
        length = environ.get("CONTENT_LENGTH")
        self.bodies.append(environ["wsgi.input"].read(int(length) if length else -1))
        start_response(self.status, self.headers)
        return [b"effect %d" % self.effects] if self.body is None else self.body


class Parts:
    """An iterable that can be watched: what was asked of it, and how often it was closed."""

    def __init__(self, *parts: bytes | BaseException, close: BaseException | None = None) -> None:
        self.parts = list(parts)
        self.closed = 0
        self.asked = 0
        self._close = close

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        self.asked += 1
        if not self.parts:
            raise StopIteration
        part = self.parts.pop(0)
        if isinstance(part, BaseException):
            raise part
        return part

    def close(self) -> None:
        self.closed += 1
        if self._close is not None:
            raise self._close


def answering(*parts: bytes | BaseException, status: str = "201 Created", **options: Any) -> tuple[App, list[Parts]]:
    """An application that answers with `Parts`, and those that it made; ``length`` announces one."""
    length, close = options.get("length"), options.get("close")
    made: list[Parts] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(status, [] if length is None else [("Content-Length", str(length))])
        made.append(Parts(*parts, close=close))
        return made[-1]

    return app, made
