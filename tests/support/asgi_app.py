"""An application of plain ASGI that requests steer by their header fields, and that counts its effects in a file.

``x-sleep``: seconds between effect and answer. ``x-status``: the answer's status. ``x-mode``: how it answers.
``x-account``: the principal. ``GET /effects``: the number of effects, and of background works behind them.
"""

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from twiceproof import NotExecuted, Policy
from twiceproof.server.asgi import IdempotencyMiddleware

SETTINGS = "TWICEPROOF_TEST_ASGI_APP"
JSON = (b"content-type", b"application/json")
RICH = [(b"location", b"/orders/1"), (b"link", b"</a>"), (b"link", b"</b>"), (b"x-name", b"caf\xe9")]


def make() -> Any:
    """Return the application as the settings in the environment say: ``effects``, ``policy``, ``door``, ``bare``."""
    settings = json.loads(os.environ[SETTINGS])
    app = Steered(Path(settings["effects"]))
    if settings.get("bare"):
        return app
    return IdempotencyMiddleware(
        app, principal=account, policy=Policy(**settings.get("policy", {})), accept_volatile=True, **settings["door"]
    )


def account(scope: Any) -> str:
    return dict(scope["headers"]).get(b"x-account", b"anna").decode()


class Steered:
    """See the module."""

    def __init__(self, effects: Path) -> None:
        self.effects = effects
        self.works = effects.with_suffix(".works")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
        elif scope["type"] == "websocket":
            await self.talk(receive, send)
        elif scope["method"] == "GET":
            counts = {"effects": count(self.effects), "works": count(self.works), "pid": os.getpid()}
            await reply(send, 200, [JSON], json.dumps(counts).encode())
        else:
            await self.serve(scope, receive, send)

    async def live(self, receive: Any, send: Any) -> None:
        for event in ("startup", "shutdown"):
            await receive()
            note(self.effects.with_suffix(f".{event}"))
            await send({"type": f"lifespan.{event}.complete"})

    async def talk(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"].upper()})

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        fields = dict(scope["headers"])
        mode = fields.get(b"x-mode", b"plain").decode()
        body = b"" if mode == "unread" else await whole(receive)
        note(self.effects)
        await asyncio.sleep(float(fields.get(b"x-sleep", b"0")))
        status = int(fields.get(b"x-status", b"201"))
        if mode == "raise":
            raise LookupError("as the test wants it")
        if mode == "nothing":
            raise NotExecuted
        if mode == "silent":
            return
        if mode in {"stream", "cut", "endless", "events"}:
            await stream(send, status, mode, float(fields.get(b"x-gap", b"0")))
            return
        if mode == "empty":
            await reply(send, status, RICH, b"")
            return
        answer = {"effect": count(self.effects), "sha256": hashlib.sha256(body).hexdigest(), "pid": os.getpid()}
        await reply(send, status, [JSON, *RICH, (b"set-cookie", b"s=1")], json.dumps(answer).encode())
        if mode == "background":
            await asyncio.sleep(0.3)
            note(self.works)


def count(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def note(path: Path) -> None:
    """Count one effect: appended by the system in one piece, whatever process dies next."""
    with path.open("ab", buffering=0) as file:
        file.write(b"*")


async def whole(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionResetError("the client left")
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


async def reply(send: Any, status: int, headers: Any, body: bytes) -> None:
    length = [] if status in {204, 304} else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})


async def stream(send: Any, status: int, mode: str, gap: float) -> None:
    media = b"text/event-stream" if mode == "events" else b"text/plain"
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", media)]})
    at = 0
    while at < 3 or mode == "endless":
        await send({"type": "http.response.body", "body": b"part %d\n" % at, "more_body": True})
        at += 1
        await asyncio.sleep(gap)
        if mode == "cut":
            raise LookupError("in mid-stream")
    await send({"type": "http.response.body", "body": b"end\n"})
