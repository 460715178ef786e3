"""Applications of plain WSGI and Flask that requests steer by their header fields, and that count effects in a file.

``x-sleep``: seconds between effect and answer. ``x-mode``: how it answers. ``x-account``: the principal. ``GET
/counts``: how many effects there were, how often an answer was closed, and which process says so.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.asgi_app import count, note
from twiceproof import Policy
from twiceproof.server.wsgi import IdempotencyMiddleware

SETTINGS = "TWICEPROOF_TEST_WSGI_APP"
JSON = ("Content-Type", "application/json")


def settings() -> Any:
    return json.loads(os.environ[SETTINGS])


class Watched:
    """The parts of an answer; notes when it is closed."""

    def __init__(self, parts: Iterator[bytes], closed: Path) -> None:
        self.parts = parts
        self.closed = closed

    def __iter__(self) -> Iterator[bytes]:
        return self.parts

    def close(self) -> None:
        note(self.closed)


class Steered:
    """See the module."""

    def __init__(self, effects: Path) -> None:
        self.effects = effects
        self.closed = effects.with_suffix(".closed")

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET":
            start_response("200 OK", [JSON])
            return [json.dumps(self.counts()).encode()]
        mode = environ.get("HTTP_X_MODE", "plain")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or -1))
        note(self.effects)
        time.sleep(float(environ.get("HTTP_X_SLEEP", "0")))
        if mode == "raise":
            raise LookupError("as the test wants it")
        if mode == "file":
            start_response("201 Created", [("Content-Length", str(self.effects.stat().st_size))])
            wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](self.effects.open("rb"))
            return wrapped
        if mode in {"stream", "cut", "endless"}:
            start_response("201 Created", [("Content-Type", "text/plain")])
            return Watched(self.parts(mode, float(environ.get("HTTP_X_GAP", "0"))), self.closed)
        if mode == "empty":
            start_response("204 No Content", [])
            return []
        answer = {"effect": count(self.effects), "sha256": hashlib.sha256(body).hexdigest(), "pid": os.getpid()}
        data = json.dumps(answer).encode()
        start_response("201 Created", [JSON, ("Content-Length", str(len(data)))])
        return Watched(iter([data]), self.closed)

    def counts(self) -> dict[str, int]:
        return {"effects": count(self.effects), "closed": count(self.closed), "pid": os.getpid()}

    def parts(self, mode: str, gap: float) -> Iterator[bytes]:
        at = 0
        while at < 3 or mode == "endless":
            yield b"part %d\n" % at
            at += 1
            time.sleep(gap)
            if mode == "cut":
                raise LookupError("in mid-stream")
        yield b"end\n"


def make_wsgi() -> Any:
    """Return the plain application as the settings in the environment say: ``effects``, ``policy``, ``door``."""
    given = settings()
    return IdempotencyMiddleware(
        Steered(Path(given["effects"])),
        principal=lambda environ: environ.get("HTTP_X_ACCOUNT", "anna"),
        policy=Policy(**given["policy"]),
        **given["door"],
    )


def make_flask() -> Any:
    """Return the same as a Flask application behind its own door."""
    from flask import Flask, Response, request

    from twiceproof.server.flask import Idempotency

    given = settings()
    steered = Steered(Path(given["effects"]))
    app = Flask("steered")
    idempotency = Idempotency(principal=lambda: request.headers.get("X-Account", "anna"), **given["door"])
    idempotency.install(app)

    @app.get("/counts")
    def counts() -> Any:
        return steered.counts()

    @app.post("/orders")
    @idempotency.operation(**given["policy"])
    def create() -> Any:
        heads: list[Any] = []
        result = steered(request.environ, lambda status, headers: heads.append((status, headers)))
        status, headers = heads[0]
        return Response(result, status, headers, direct_passthrough=True)

    return app
