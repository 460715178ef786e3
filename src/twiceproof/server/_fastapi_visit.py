"""One request on its way through a FastAPI application: the claim comes late, between dependencies and handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from twiceproof.core._lifecycle import Keyed, Reply, field_names
from twiceproof.core._problems import unauthorized
from twiceproof.engine import Attempt, Run
from twiceproof.errors import ConfigurationError
from twiceproof.server._body import BodyCopy, framing_of
from twiceproof.server._exchange import START, App, Exchange, Message, Receive, Scope, Send, send_response
from twiceproof.server.asgi import make_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from twiceproof.core._policy import Policy
    from twiceproof.engine import AsyncEngine

MARK = "__twiceproof_mark__"
"""Where an endpoint carries its mark; decorators that use `functools.wraps` above ours carry it on."""


class Marked(Protocol):
    """What a visit reads of the mark on an endpoint."""

    @property
    def policy(self) -> Policy:
        """The resolved policy."""
        ...

    @property
    def streams(self) -> bool:
        """Whether the endpoint is a generator, so that its answer may start before it was claimed."""
        ...

    @property
    def owner(self) -> object:
        """The door that made the mark."""
        ...


class Visit(Exchange):
    """An exchange that is not claimed yet when the application is called.

    Until `enter` it only watches: it copies the body that a marked endpoint is given (R11), and holds the head of an
    answer that a generator has not been asked for yet. From then on it is an `Exchange`, or leads to ``reply``.
    """

    __slots__ = (
        "_copied",
        "_decided",
        "_entered",
        "_head_of_stream",
        "_keyed",
        "_owner",
        "_replied",
        "_scope",
        "_tee",
        "_waiting",
        "_whole",
        "attempt",
        "cancelled",
        "found",
    )

    def __init__(self, owner: object, engine: AsyncEngine, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(engine, receive, send)
        self._owner = owner
        self._scope = scope
        self._tee: bool | None = None
        self._copied: BodyCopy | None = None
        self._whole = False
        self._keyed: bool | None = None
        self._entered = self._decided = self._replied = False
        self._waiting: asyncio.Event | None = None
        self.cancelled: asyncio.CancelledError | None = None
        self._head_of_stream: Message | None = None
        self.attempt: Attempt = scope.setdefault("twiceproof", Attempt())
        self.found: object = None

    @property
    def drain(self) -> float:
        """How long a handler in a thread is waited for after a cancellation (R40)."""
        return self._engine.settings.drain

    # ------------------------------------------------------------------ the claim

    async def enter(self, policy: Policy, account: Callable[[Scope, object], str | None]) -> bool:
        """Claim; return whether the handler may run, else ``reply`` is set. ``account`` judges what was ``found``.

        The order is 401, then what is wrong with the key, then with the body (R49); nothing of it reaches the store.
        """
        self._entered = True
        try:
            if self._has_key(policy) or policy.required:
                await self._claim(policy, account)
            return self.reply is None
        finally:
            self._copied = None  # R11
            self._decided = True
            if self._waiting is not None:
                self._waiting.set()

    async def _claim(self, policy: Policy, account: Callable[[Scope, object], str | None]) -> None:
        principal = account(self._scope, self.found)
        if not principal:
            self.reply = Reply(unauthorized())  # R12
            return
        scope = self._scope
        admitted = self._engine.admit(scope["method"], scope["headers"], policy)
        if isinstance(admitted, Reply):
            self.reply = admitted  # R3, R6, R8
            return
        if not isinstance(admitted, Keyed):
            return
        body = await self._read(policy)
        if body is None:
            return
        self.attempt.key = admitted.key
        request = make_request(scope, body)
        del body
        left = self.watch() if policy.wait else None
        try:
            begun = await self._engine.begin(
                request,
                principal,
                policy,
                key=admitted.key,
                attempt=self.attempt,
                left=left.event if left else None,
            )
        finally:
            if left is not None:
                left.stop()
        request.body = b""  # R11: the copy is dropped
        if isinstance(begun, Reply):
            self.reply = begun
        elif isinstance(begun, Run):
            self.run = begun
        else:
            self.unprotected = begun.unprotected  # R48

    async def _read(self, policy: Policy) -> bytes | None:
        """Return the whole body: what was copied on its way, and what is left; None: ``reply`` says why not."""
        framing = framing_of(self._scope["headers"])
        limit = policy.max_request_bytes
        if self._tee is False:
            raise ConfigurationError(
                "the body of this request was read before its endpoint could be recognised; the application that it "
                "belongs to is mounted behind something that hides it: call install on that application too"
            )
        copy = self._copied or BodyCopy(limit)
        size = copy.size if framing.length is None else max(copy.size, framing.length)
        if size <= limit and not self._whole:
            size = await self._drain(copy, limit)
        if size > limit:
            self.reply = self._engine.refuse("request-too-large")  # R11
        elif not self._whole or not framing.fits(copy.size):
            self.reply = self._engine.refuse("body-incomplete")  # R52
        else:
            return copy.value()
        return None

    async def _drain(self, copy: BodyCopy, limit: int) -> int:
        """Read what nobody has asked for yet, and keep it for the handler; return the size of the whole."""
        rest = BodyCopy(limit) if copy.size else copy
        while copy.size <= limit and not self._whole:
            message = await self._receive()
            if message["type"] != "http.request":
                self.gone = message
                return copy.size
            part: bytes = message.get("body", b"")
            self._whole = not message.get("more_body", False)
            copy.add(part)
            if rest is not copy:
                rest.add(part)
        self.body = rest.value()
        return copy.size

    # ------------------------------------------------------------------ towards the application

    async def receive(self) -> Message:
        """Copy the body that a marked endpoint reads before the claim; afterwards as any exchange."""
        if self._decided:
            return await super().receive()
        message = await self._receive()
        if self._tee is None:
            mark = self._mark()
            self._tee = mark is not None and self._scope["method"] in mark.policy.methods and self._has_key(mark.policy)
            if self._tee and mark is not None:
                self._copied = BodyCopy(mark.policy.max_request_bytes)
        if self._copied is not None and message["type"] == "http.request":
            self._copied.add(message.get("body", b""))
            self._whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send the reply in place of the answer, and hold the head of a stream until its first step has claimed."""
        if self.reply is not None:
            await self._give_reply()
            return
        if self._decided:
            if self.run is None and not self.unprotected:
                await self._send(message)  # R9, R52
                return
        elif await self._held_back(message):
            return
        await super().send(message)

    async def _held_back(self, message: Message) -> bool:
        if message["type"] == START:
            mark = self._mark()
            if mark is not None and mark.streams:
                self._head_of_stream = message
                return True
        elif self._head_of_stream is not None:
            if self._entered:  # a stream that says it lives while its first step waits for the claim
                self._waiting = self._waiting or asyncio.Event()
                await self._waiting.wait()
                await self.send(message)
                return True
            await self.start_stream()  # not the generator's answer: a refusal from before it
        return False

    async def start_stream(self) -> None:
        """Let go of the head that was held back; in favour of a reply it is dropped."""
        head, self._head_of_stream = self._head_of_stream, None
        if head is not None:
            await super().send(head)

    async def _give_reply(self) -> None:
        if not self._replied and self.reply is not None:
            self._replied = True
            await send_response(self._send, self.reply.response)

    # ------------------------------------------------------------------ the end

    async def serve(self, app: App) -> None:
        """Run the application for this request."""
        await self.run_app(app, self._scope)
        if self.reply is not None:
            await self._give_reply()
        if self._head_of_stream is not None:
            await self.start_stream()
        if self.cancelled is not None:
            raise self.cancelled

    def _mark(self) -> Marked | None:
        mark: Marked | None = getattr(self._scope.get("endpoint"), MARK, None)
        return mark if mark is not None and mark.owner is self._owner else None

    def _has_key(self, policy: Policy) -> bool:
        if self._keyed is None:
            self._keyed = False
            names = field_names(policy)
            for name, _ in self._scope["headers"]:
                if name.lower() in names:
                    self._keyed = True
                    break
        return self._keyed
