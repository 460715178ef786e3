"""One request and its answer on their way through an ASGI door: R43-R47, R50-R52."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twiceproof.core._answer import length_of
from twiceproof.core._messages import Response
from twiceproof.core._outcome import Abandoned, Answered, Cancelled, CutShort, NothingHappened, Outcome, Raised
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


@dataclass(slots=True)
class Leaving:
    """Tells that a client left while its request waits for another's answer (R23)."""

    event: asyncio.Event
    task: asyncio.Future[None]

    def stop(self) -> None:
        """Stop watching. Nothing is awaited: a cancellation that came here would lose what was just claimed."""
        self.task.cancel()


class Exchange:
    """The state of one covered request. ``run`` is set once it is claimed, ``reply`` where the handler must not run."""

    __slots__ = (
        "_broken",
        "_chunks",
        "_engine",
        "_held",
        "_open",
        "_receive",
        "_send",
        "_size",
        "_start",
        "_streaming",
        "abandoned",
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
        self._held: list[Message] | None = None
        self._broken: OSError | asyncio.CancelledError | None = None
        self._chunks: list[bytes] | None = []
        self._size = 0
        self._open: asyncio.Event | None = None
        self._streaming = False
        self.body: bytes | None = None
        self.gone: Message | None = None
        self.run: Run | None = None
        self.reply: Reply | None = None
        self.nothing = self.abandoned = False
        self.unprotected = False

    # ------------------------------------------------------------------ towards the application

    async def receive(self) -> Message:
        """Give the body, then withhold the disconnect until the answer begins to stream (R44)."""
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self.run is not None and not (self._streaming or self.run.finished):
            if self._open is None:
                self._open = asyncio.Event()
            await self._open.wait()
        if self._held is not None:
            return {"type": "http.disconnect"}  # to the application its answer is complete: nothing more will come
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
        elif self._held is not None:
            self._held.append(message)
        elif kind == START:
            if not isinstance(message.get("headers"), list | tuple):
                message = {**message, "headers": list(message.get("headers", ()))}  # an iterator is good for one look
            self._start = message
            try:
                await self._send(message)
            except (OSError, asyncio.CancelledError) as error:
                # That its client has left, or that nobody waits any more, is no news before a stream needs it: of an
                # answer that comes in one piece the record is written first (R40, R50).
                self._broken = error
        elif kind == BODY and self._start is not None:
            self._copy(message.get("body", b""), self.run.call.policy.max_response_bytes)
            await self._part(message, self._start["status"])
        elif kind in UNKEPT and self._start is not None:
            self._chunks = None
            await self._part(message, self._start["status"])
        else:
            await self._send(message)

    def _copy(self, chunk: bytes, most: int) -> None:
        """Keep a copy of the answer while it is small enough to be stored (R43)."""
        if self._chunks is not None and chunk:
            self._size += len(chunk)
            if self._size > most:
                self._chunks = None
            else:
                self._chunks.append(bytes(chunk))

    async def _part(self, message: Message, status: int) -> None:
        """Pass a part of the answer on, and record before the last one (R45).

        The last message of a 5xx waits for how the application ends (CONTRACT 5).
        """
        if message.get("more_body", False):
            self._opened()
        elif status >= 500:
            self._held = [message]
            self._opened()
            return
        else:
            await self._settle(self._answered())
        if self._broken is not None:
            raise self._broken
        await self._send(message)

    async def _let_go(self) -> None:
        """Pass on what was held."""
        if self._broken is not None:
            raise self._broken
        for message in self._held or ():
            await self._send(message)

    def _opened(self) -> None:
        self._streaming = True
        if self._open is not None:
            self._open.set()

    def watch(self) -> Leaving:
        """Notice from now on whether the client leaves (R23)."""
        event = asyncio.Event()

        async def wait() -> None:
            message = await self._receive()  # an error of it is the handler's own receive to tell
            if message["type"] == "http.disconnect":
                self.gone = message
                event.set()

        return Leaving(event, asyncio.ensure_future(wait()))

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
            return
        if self._held is not None:
            await self._settle(self._answered())
            await self._let_go()
        elif self._start is not None:
            await self._settle(CutShort())
            if isinstance(self._broken, asyncio.CancelledError):
                raise self._broken
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
        with contextlib.suppress(Exception):  # the application's own error is the one to tell
            await self._let_go()

    async def _settle(self, outcome: Outcome) -> None:
        assert self.run is not None  # only called on a claimed request
        if self.nothing:
            outcome = NothingHappened()
        elif self.abandoned:
            outcome = Abandoned()
        try:
            await self._engine.finish(self.run, outcome)
        finally:
            self._opened()
            self._chunks = None

    def _answered(self) -> Answered:
        assert self._start is not None  # checked by the callers
        assert self.run is not None  # checked by the callers
        headers = [(bytes(name), bytes(value)) for name, value in self._start["headers"]]
        response = Response(self._start["status"], headers, None)
        body = None if self._chunks is None else b"".join(self._chunks)  # R43
        if body is not None:
            length = length_of(response.status, dict(headers).get(b"content-length"))  # ASGI has names in lower case
            response.body = body if length is None or length == len(body) else None  # R50: else its client saw a break
        return Answered(response, self.run.attempt.released)


async def send_response(send: Send, response: Response) -> None:
    """Send one of our own answers or a replay."""
    await send({"type": START, "status": response.status, "headers": list(response.headers)})
    await send({"type": BODY, "body": response.body or b"", "more_body": False})
