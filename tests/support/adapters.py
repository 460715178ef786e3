"""One shop behind every door and on every server, in processes of their own, for tests that hold all to one promise.

``POST /orders``, ``/stream``, ``/cut``, ``/slow``, ``/large``, ``/raise``, ``/background``, ``/status/N`` and
``/items/PATH`` each have one effect; ``GET`` and ``HEAD /report`` have none. What has to wait, waits for the file that
``x-gate`` names: tests decide what happens first, no clock does.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.asgi_app import count, note, whole
from tests.support.raw_http import Connection, Reply
from twiceproof import Policy

ROOT = Path(__file__).resolve().parents[2]
FOLDER: Final = "TWICEPROOF_TEST_ADAPTERS"
POLICY: Final = Policy(required=True, max_response_bytes=100_000)
LARGE: Final = 150_000
PATHS: Final = ["/orders", "/stream", "/cut", "/slow", "/large", "/raise", "/background"]
GUNICORN: Final = ["-m", "gunicorn", "--graceful-timeout", "5", "--no-control-socket", "--workers", "2"]
THREADS: Final = ["--worker-class", "gthread", "--threads", "30"]


@dataclass(frozen=True)
class Adapter:
    """A door on a server, and what only some of them can do.

    ``chunked``: request bodies of unknown length reach the door. ``keep-alive``: a connection serves several requests.
    ``concurrent``: a second request is served while the first still runs. ``raw-path``: the path reaches the door as it
    was sent. ``background``: an answer is whole for its client before the work behind it ends. ``loses``: the server
    drops the body beside an upgrade.
    """

    id: str
    app: str
    server: str
    has: frozenset[str]


FULL: Final = frozenset({"chunked", "keep-alive", "concurrent", "raw-path", "background"})
WSGI: Final = FULL - {"background"}
ADAPTERS: Final = [
    Adapter("asgi-uvicorn-h11", "asgi", "h11", FULL),
    Adapter("asgi-uvicorn-httptools", "asgi", "httptools", FULL | {"loses"}),
    Adapter("asgi-hypercorn", "asgi", "hypercorn", FULL),
    Adapter("fastapi-uvicorn-h11", "fastapi", "h11", FULL),
    Adapter("fastapi-uvicorn-httptools", "fastapi", "httptools", FULL | {"loses"}),
    Adapter("fastapi-hypercorn", "fastapi", "hypercorn", FULL),
    Adapter("wsgi-waitress", "wsgi", "waitress", WSGI),
    Adapter("wsgi-gunicorn-sync", "wsgi", "sync", WSGI - {"keep-alive"}),
    Adapter("wsgi-gunicorn-gthread", "wsgi", "gthread", WSGI),
    Adapter("wsgi-wsgiref", "wsgi", "wsgiref", frozenset()),
    Adapter("flask-waitress", "flask", "waitress", WSGI),
    Adapter("flask-gunicorn-gthread", "flask", "gthread", WSGI),
    Adapter("flask-wsgiref", "flask", "wsgiref", frozenset()),
]


# ------------------------------------------------------------------ the shop


@dataclass
class Answer:
    """What an operation says, and what has to happen around it."""

    status: int
    body: bytes
    headers: list[tuple[str, str]] = field(default_factory=list)
    media: str = "application/json"
    before: Path | None = None
    between: Path | None = None
    after: Path | None = None
    fails: bool = False
    cut: bool = False


class Shop:
    """The operations, apart from any framework."""

    def __init__(self) -> None:
        self.folder = Path(os.environ[FOLDER])
        self.url = f"sqlite:///{self.folder / 'keys.db'}"

    def serve(self, path: str, gate: str, body: bytes) -> Answer:
        """Take the one effect of an operation."""
        note(self.folder / "effects")
        effect = count(self.folder / "effects")
        said = {"effect": effect, "path": path, "sha256": hashlib.sha256(body).hexdigest()}
        answer = Answer(201, json.dumps(said).encode(), [("Location", f"/orders/{effect}"), ("ETag", f'"{effect}"')])
        answer.headers.append(("Set-Cookie", "session=1"))
        held = self.folder / gate
        if path == "/slow":
            answer.before = held
        elif path in {"/stream", "/cut"}:
            answer.between, answer.media = held, "text/plain"
            answer.cut = path == "/cut"
        elif path == "/large":
            answer.body = b"x" * LARGE
        elif path == "/background":
            answer.after = held
        elif path.startswith("/status/"):
            answer.status = int(path.removeprefix("/status/"))
            answer.body = b"" if answer.status in {204, 304} else answer.body
        answer.fails = path == "/raise"
        return answer

    def report(self) -> bytes:
        note(self.folder / "reads")
        return b"%d" % count(self.folder / "reads")

    def work(self) -> None:
        note(self.folder / "works")


def closed(gate: Path | None) -> Iterator[float]:
    """Yield pauses until a gate opens; none is open. It ends by itself when its test is long gone."""
    deadline = time.monotonic() + 30
    while gate is not None and not gate.exists() and time.monotonic() < deadline:
        yield 0.01


async def opened(gate: Path | None) -> None:
    for pause in closed(gate):
        await asyncio.sleep(pause)


def opened_blocking(gate: Path | None) -> None:
    for pause in closed(gate):
        time.sleep(pause)


def broken(answer: Answer) -> None:
    """Fail in mid-stream, where that is wanted."""
    if answer.cut:
        raise LookupError("as the test wants it")


# ------------------------------------------------------------------ behind each door


def make_asgi() -> Any:
    from twiceproof.server.asgi import IdempotencyMiddleware, anonymous

    shop = Shop()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        if scope["method"] in {"GET", "HEAD"}:
            answer = Answer(200, shop.report())
        else:
            gate = dict(scope["headers"]).get(b"x-gate", b"").decode()
            answer = shop.serve(scope["path"], gate, await whole(receive))
        await opened(answer.before)
        if answer.fails:
            raise LookupError("as the test wants it")
        length = [] if answer.status in {204, 304} or answer.between else [("content-length", str(len(answer.body)))]
        fields = [*answer.headers, ("content-type", answer.media), *length]
        headers = [(name.lower().encode(), value.encode()) for name, value in fields]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if answer.between:
            await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
            await opened(answer.between)
            broken(answer)
            await send({"type": "http.response.body", "body": b"rest\n", "more_body": True})
        body = b"" if scope["method"] == "HEAD" else b"end\n" if answer.between else answer.body
        await send({"type": "http.response.body", "body": body})
        if answer.after:
            await opened(answer.after)
            shop.work()

    return IdempotencyMiddleware(app, store=shop.url, principal=anonymous, policy=POLICY)


def make_fastapi() -> Any:
    from fastapi import BackgroundTasks, FastAPI, Request, Response
    from fastapi.responses import StreamingResponse

    from twiceproof.server.fastapi import Idempotency, anonymous

    shop = Shop()
    app = FastAPI()
    idempotency = Idempotency(store=shop.url, principal=anonymous, policy=POLICY)
    idempotency.install(app)

    async def work(gate: Path) -> None:
        await opened(gate)
        shop.work()

    async def parts(answer: Answer) -> AsyncIterator[bytes]:
        yield b"first\n"
        await opened(answer.between)
        broken(answer)
        yield b"rest\n"
        yield b"end\n"

    @idempotency.operation()
    async def serve(request: Request, tasks: BackgroundTasks) -> Response:
        answer = shop.serve(request.url.path, request.headers.get("x-gate", ""), await request.body())
        await opened(answer.before)
        if answer.fails:
            raise LookupError("as the test wants it")
        if answer.after:
            tasks.add_task(work, answer.after)
        if answer.between:
            response: Response = StreamingResponse(parts(answer), answer.status, media_type=answer.media)
        else:
            response = Response(answer.body, answer.status, media_type=answer.media)
        for name, value in answer.headers:
            response.headers.append(name, value)
        return response

    @app.api_route("/report", methods=["GET", "HEAD"])
    def report() -> Response:
        return Response(shop.report())

    for path in [*PATHS, "/status/{number}", "/items/{name:path}"]:
        app.post(path)(serve)
    return app


class Parts:
    """The body of a WSGI answer; what is left to do is done when it is closed."""

    def __init__(self, parts: Iterator[bytes], then: Callable[[], None]) -> None:
        self.parts = parts
        self.close = then

    def __iter__(self) -> Iterator[bytes]:
        return self.parts


def blocking(shop: Shop, answer: Answer) -> Parts:
    """Wait for what comes before an answer, and return its body."""
    opened_blocking(answer.before)
    if answer.fails:
        raise LookupError("as the test wants it")

    def parts() -> Iterator[bytes]:
        yield b"first\n"
        opened_blocking(answer.between)
        broken(answer)
        yield b"rest\n"
        yield b"end\n"

    plain = iter([answer.body] if answer.body else [])
    return Parts(parts() if answer.between else plain, shop.work if answer.after else lambda: None)


def make_wsgi() -> Any:
    from http import HTTPStatus

    from twiceproof.server.wsgi import IdempotencyMiddleware, anonymous

    shop = Shop()

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in {"GET", "HEAD"}:
            report = shop.report()
            start_response("200 OK", [("Content-Length", str(len(report)))])
            return [report] if environ["REQUEST_METHOD"] == "GET" else []
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or -1))
        answer = shop.serve(environ["PATH_INFO"], environ.get("HTTP_X_GATE", ""), body)
        parts = blocking(shop, answer)
        length = [] if answer.status in {204, 304} or answer.between else [("Content-Length", str(len(answer.body)))]
        status = f"{answer.status} {HTTPStatus(answer.status).phrase}"
        start_response(status, [*answer.headers, ("Content-Type", answer.media), *length])
        return parts

    return IdempotencyMiddleware(app, store=shop.url, principal=anonymous, policy=POLICY)


def make_flask() -> Any:
    from flask import Flask, Response, request

    from twiceproof.server.flask import Idempotency, anonymous

    shop = Shop()
    app = Flask("shop")
    idempotency = Idempotency(store=shop.url, principal=anonymous, policy=POLICY)
    idempotency.install(app)

    @idempotency.operation()
    def serve(**_: str) -> Response:
        answer = shop.serve(request.path, request.headers.get("x-gate", ""), request.get_data())
        parts = blocking(shop, answer)
        response = Response(parts if answer.between else answer.body, answer.status, content_type=answer.media)
        response.call_on_close(parts.close)
        response.headers.extend(answer.headers)
        return response

    @app.get("/report")
    def report() -> bytes:
        return shop.report()

    for path in [*PATHS, "/status/<number>", "/items/<path:name>"]:
        app.add_url_rule(path, view_func=serve, methods=["POST"])
    return app


# ------------------------------------------------------------------ on each server


class Served:
    """An adapter that serves, seen from its clients and from the folder that it counts in."""

    def __init__(self, adapter: Adapter, folder: Path) -> None:
        self.adapter = adapter
        self.has = adapter.has
        self.folder = folder
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = listener.getsockname()[1]
        listener.set_inheritable(True)
        fd = listener.fileno()
        if adapter.server in {"sync", "gthread"}:
            kind = THREADS if adapter.server == "gthread" else ["--preload"]
            command = [*GUNICORN, *kind, "--bind", f"fd://{fd}", f"tests.support.adapters:make_{adapter.app}()"]
        else:
            command = ["-m", "tests.support.adapters", adapter.app, adapter.server, str(fd)]
        with (folder / "log").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=os.environ | {FOLDER: str(folder)},
                pass_fds=[fd],
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        listener.close()

    def connect(self) -> Connection:
        return Connection(self.port)

    def post(self, key: str | None, **options: Any) -> Reply:
        """Send one request on a connection of its own."""
        with self.connect() as connection:
            return connection.post(key, **options)

    def settled(self, key: str, **options: Any) -> Reply:
        """Send it again until nothing is in flight any more."""
        deadline = time.monotonic() + 20
        while (reply := self.post(key, **options)).code == "in-progress" and time.monotonic() < deadline:
            time.sleep(0.02)
        return reply

    def raw(self, data: bytes, *, cut: bool = False) -> bytes:
        """Send bytes, ``cut``: and end the sending there; return all that comes back until the server closes."""
        with self.connect() as connection:
            connection.send(data)
            if cut:
                connection.socket.shutdown(socket.SHUT_WR)
            return connection.until(b"no answer has this")

    def leave(self, connection: Connection) -> None:
        """Reset a connection, so that the server's next write fails."""
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.socket.close()

    def together(self, data: bytes, total: int) -> list[Future[Reply]]:
        """Send the last byte of so many equal requests at once, each on a connection of its own."""
        connections = [self.connect() for _ in range(total)]
        for end in (data[:-1], data[-1:]):
            for connection in connections:
                connection.send(end)

        def finish(connection: Connection) -> Reply:
            with connection:  # closed at once: a server may linger until then
                return connection.read()

        pool = ThreadPoolExecutor(total)
        replies = [pool.submit(finish, connection) for connection in connections]
        pool.shutdown(wait=False)
        return replies

    def open(self, gate: str) -> None:
        (self.folder / gate).touch()

    def until(self, name: str, total: int) -> None:
        """Wait until so many have been counted."""
        deadline = time.monotonic() + 20
        while count(self.folder / name) < total:
            assert time.monotonic() < deadline, f"{name}: {count(self.folder / name)} of {total}"
            time.sleep(0.01)

    @property
    def effects(self) -> int:
        return count(self.folder / "effects")

    def stop(self) -> None:
        """Ask it to stop; whatever is left of it is killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # its own session: the server and its workers
            self.process.wait(10)


@contextlib.contextmanager
def serving(adapter: Adapter, folder: Path) -> Iterator[Served]:
    served = Served(adapter, folder)
    try:
        yield served
    finally:
        served.stop()


def having(capability: str) -> list[Any]:
    """Return the adapters that can do something, as parameters."""
    return params(adapter for adapter in ADAPTERS if capability in adapter.has)


def lacking(capability: str) -> list[Any]:
    """Return the adapters that by their nature can't."""
    return params(adapter for adapter in ADAPTERS if capability not in adapter.has)


def params(adapters: Iterable[Adapter]) -> list[Any]:
    import pytest

    return [pytest.param(adapter, id=adapter.id) for adapter in adapters]


def serve_asgi(app: Any, server: str, listener: socket.socket) -> None:
    if server != "hypercorn":
        import uvicorn

        config = uvicorn.Config(app, http=server, lifespan="on", timeout_graceful_shutdown=5)
        uvicorn.Server(config).run(sockets=[listener])
        return
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        config = Config()
        config.bind = [f"fd://{listener.detach()}"]
        await serve(app, config, shutdown_trigger=stop.wait)

    asyncio.run(run())


def serve_wsgi(app: Any, server: str, listener: socket.socket) -> None:
    if server == "waitress":
        import waitress

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        waitress.serve(app, sockets=[listener], threads=30, send_bytes=1)
        return
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    plain = WSGIServer(listener.getsockname(), WSGIRequestHandler, bind_and_activate=False)
    plain.socket = listener
    plain.server_name, plain.server_port = "t", 80
    plain.setup_environ()
    plain.set_app(app)
    # no sys.exit in mid-request: its handler takes any exception for the application's
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=plain.shutdown).start())
    plain.serve_forever(0.05)


if __name__ == "__main__":
    made = {"asgi": make_asgi, "fastapi": make_fastapi, "wsgi": make_wsgi, "flask": make_flask}[sys.argv[1]]()
    serve = serve_asgi if sys.argv[1] in {"asgi", "fastapi"} else serve_wsgi
    serve(made, sys.argv[2], socket.socket(fileno=int(sys.argv[3])))
