"""One request and its answer on their way through an ASGI door: R43-R47, R50-R52."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from twiceproof.core._messages import Response
from twiceproof.core._outcome import Answered, Cancelled, CutShort, NothingHappened, Outcome, Raised
from twiceproof.core._problems import UNPROTECTED
from twiceproof.errors import NotExecuted

if TYPE_CHECKING:
    from twiceproof.core._lifecycle import Reply
    from twiceproof.engine import AsyncEngine, Run

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

START: Final = "http.response.start"
BODY: Final = "http.response.body"
UNKEPT: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})


class Exchange:
    """The state of one covered request. ``run`` is set once it is claimed, ``reply`` where the handler must not run."""

    __slots__ = (
        "_chunks",
        "_engine",
        "_held",
        "_open",
        "_receive",
        "_send",
        "_size",
        "_start",
        "body",
        "gone",
        "nothing",
        "reply",
        "run",
        "unprotected",
    )

    def __init__(self, engine: AsyncEngine, receive: Receive, send: Send) -> None:
        self._engine = engine
        self._receive = receive
        self._send = send
        self._start: Message | None = None
        self._held: Message | None = None
        self._chunks: list[bytes] | None = []
        self._size = 0
        self._open: asyncio.Event | None = None
        self.body: bytes | None = None
        self.gone: Message | None = None
        self.run: Run | None = None
        self.reply: Reply | None = None
        self.nothing = False
        self.unprotected = False

    # ------------------------------------------------------------------ towards the application

    async def receive(self) -> Message:
        """Give the body, then withhold the disconnect until the answer begins to stream (R44)."""
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self.run is not None:
            if self._open is None:
                self._open = asyncio.Event()
                if self.run.finished:
                    self._open.set()
            await self._open.wait()
        if self.gone is not None:
            return self.gone
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Pass the answer on, copy it, and hold its last message until the record is written (R43, R45)."""
        if self.reply is not None:
            return
        kind = message["type"]
        if self.run is None or self.run.finished:
            if self.unprotected and kind == START:
                message = {**message, "headers": [*message.get("headers", ()), UNPROTECTED]}
            await self._send(message)
        elif kind == START:
            self._start = message
            if _is_event_stream(message):
                self._chunks = None
            await self._send(message)
        elif kind == BODY and self._start is not None:
            await self._body(message)
        else:
            if kind in UNKEPT and self._start is not None:
                self._chunks = None
                await self._last(message)
                return
            await self._send(message)

    async def _body(self, message: Message) -> None:
        chunk: bytes = message.get("body", b"")
        if self._chunks is not None and chunk:
            assert self.run is not None  # noqa: S101  # checked by `send`
            self._size += len(chunk)
            if self._size > self.run.call.policy.max_response_bytes:
                self._chunks = None  # R43: bounded memory
            else:
                self._chunks.append(bytes(chunk))
        if message.get("more_body", False):
            self._opened()
            await self._send(message)
        else:
            await self._last(message)

    async def _last(self, message: Message) -> None:
        """Record, then send (R45); the last message of a 5xx waits for how the application ends (CONTRACT 5)."""
        assert self._start is not None  # noqa: S101  # checked by `send`
        if self._start["status"] >= 500:  # noqa: PLR2004
            self._held = message
            return
        await self._settle(self._answered())
        await self._send(message)

    def _opened(self) -> None:
        if self._open is not None:
            self._open.set()

    # ------------------------------------------------------------------ the end

    async def run_app(self, app: App, scope: Scope) -> None:
        """Run the application and settle with whatever it comes to (R38-R40, R50, R51)."""
        try:
            await app(scope, self.receive, self.send)
        except BaseException as error:
            await self._failed(error)
            raise
        run = self.run
        if run is None or run.finished:
            if run is not None:
                self._opened()
            return
        if self._held is not None:
            await self._settle(self._answered())
            await self._send(self._held)
        elif self._start is not None:
            await self._settle(CutShort())
        else:
            await self._settle(Raised())

    async def _failed(self, error: BaseException) -> None:
        run = self.run
        if run is None:
            return
        if run.finished:
            if isinstance(error, Exception):
                self._engine.settings.emit("completed", "late-error", run.call.new)  # R51
            return
        outcome: Outcome = Raised()
        if isinstance(error, NotExecuted):
            outcome = NothingHappened()
        elif isinstance(error, asyncio.CancelledError):
            outcome = Cancelled()
        elif self._start is not None and self._held is None:
            outcome = CutShort()
        await self._settle(outcome)
        if self._held is not None:
            await self._send(self._held)

    async def _settle(self, outcome: Outcome) -> None:
        assert self.run is not None  # noqa: S101  # only called on a claimed request
        if self.nothing:
            outcome = NothingHappened()
        try:
            await self._engine.finish(self.run, outcome)
        finally:
            self._opened()
            self._chunks = None

    def _answered(self) -> Answered:
        assert self._start is not None  # noqa: S101  # checked by the callers
        assert self.run is not None  # noqa: S101  # checked by the callers
        body = None if self._chunks is None else b"".join(self._chunks)
        headers = [(bytes(name), bytes(value)) for name, value in self._start.get("headers", ())]
        return Answered(Response(self._start["status"], headers, body), self.run.attempt.released)


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.lstrip().lower().startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )


async def send_response(send: Send, response: Response) -> None:
    """Send one of our own answers or a replay."""
    await send({"type": START, "status": response.status, "headers": list(response.headers)})
    await send({"type": BODY, "body": response.body or b"", "more_body": False})
