"""Drives an ASGI application in this process, message by message, as a server and its client would."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

Message = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]
App = Callable[..., Awaitable[None]]


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asynchronous test on a loop of its own, for at most half a minute."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(*args, **fixtures)

        asyncio.run(bounded())

    return run


@dataclass
class Answer:
    """What reached the client."""

    messages: list[Message]

    def _start(self) -> Message:
        return next(message for message in self.messages if message["type"] == "http.response.start")

    @property
    def status(self) -> int:
        return self._start()["status"]

    @property
    def headers(self) -> Headers:
        return [(bytes(name), bytes(value)) for name, value in self._start().get("headers", ())]

    @property
    def body(self) -> bytes:
        return b"".join(
            message.get("body", b"") for message in self.messages if message["type"] == "http.response.body"
        )

    @property
    def whole(self) -> bool:
        """Whether the last message of the body arrived."""
        bodies = [message for message in self.messages if message["type"] == "http.response.body"]
        return bool(bodies) and not bodies[-1].get("more_body", False)

    def all(self, name: str) -> list[bytes]:
        return [value for field, value in self.headers if field.lower() == name.encode()]

    @property
    def replayed(self) -> bool:
        return self.all("idempotent-replayed") == [b"true"]

    @property
    def problem(self) -> dict[str, Any]:
        assert self.all("content-type") == [b"application/problem+json"], (self.status, self.headers)
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The problem's code, or nothing where the answer is the application's or a replay."""
        return self.problem["code"] if self.all("content-type") == [b"application/problem+json"] else ""

    @property
    def brief(self) -> tuple[int, bool, bytes]:
        return self.status, self.replayed, self.body


@dataclass
class Client:
    """One request of one client. Its body arrives in the given chunks; it stays until `leave`.

    ``on_send`` is awaited before each message is taken and may raise, as a server's own send does.
    """

    chunks: Sequence[bytes] = (b"",)
    stays_for_body: bool = True
    on_send: Callable[[Message], Awaitable[None]] | None = None
    sent: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = asyncio.Event()
        self.progress = asyncio.Event()
        self._at = 0

    def leave(self) -> None:
        self.left.set()

    @property
    def answer(self) -> Answer:
        return Answer(self.sent)

    async def receive(self) -> Message:
        if self._at < len(self.chunks):
            chunk = self.chunks[self._at]
            self._at += 1
            more = self._at < len(self.chunks) or not self.stays_for_body
            return {"type": "http.request", "body": chunk, "more_body": more}
        if self.stays_for_body and not self.answer.whole:
            await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.on_send is not None:
            await self.on_send(message)
        self.sent.append(message)
        self.progress.set()

    async def until(self, count: int) -> None:
        """Wait until so many messages have arrived."""
        while len(self.sent) < count:
            self.progress.clear()
            await self.progress.wait()


def http_scope(
    method: str = "POST",
    path: str = "/orders",
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    query: bytes = b"",
    **members: Any,
) -> dict[str, Any]:
    """The scope that a server makes of a request line and its fields."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        **members,
    }


def keyed(
    key: str | None, *more: tuple[bytes, bytes], media: str = "application/json", size: int | None = None
) -> Headers:
    """The fields of a request with a key."""
    fields = [(b"host", b"test"), (b"content-type", media.encode())]
    if size is not None:
        fields.append((b"content-length", b"%d" % size))
    if key is not None:
        fields.append((b"idempotency-key", key.encode("latin-1")))
    return [*fields, *more]


async def post(
    app: App,
    key: str | None = "k1",
    *more: tuple[bytes, bytes],
    path: str = "/orders",
    method: str = "POST",
    body: bytes | Sequence[bytes] = b'{"n":1}',
    client: Client | None = None,
    **members: Any,
) -> Answer:
    """Send one request and return what came back; an exception of the application is raised."""
    chunks = [body] if isinstance(body, bytes) else list(body)
    client = client or Client(chunks)
    headers = keyed(key, *more, size=sum(map(len, chunks)))
    await app(http_scope(method, path, headers, **members), client.receive, client.send)
    return client.answer


async def read(receive: Callable[[], Awaitable[Message]]) -> bytes:
    """Read a request's body as any framework does."""
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request", message
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


async def respond(
    send: Callable[[Message], Awaitable[None]],
    status: int = 201,
    body: bytes = b'{"id":"o_1"}',
    headers: Iterable[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),),
) -> None:
    """Answer as frameworks do: a start, and the whole body in one message."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


class Counted:
    """An application that has one effect per call, and then does as it is told.

    ``then(scope, receive, send)`` answers; by default with 201 and the number of the effect.
    """

    def __init__(self, then: App | None = None) -> None:
        self.effects = 0
        self.bodies: list[bytes] = []
        self.scopes: list[Message] = []
        self.then = then

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        self.effects += 1
        self.scopes.append(scope)
        if self.then is not None:
            await self.then(scope, receive, send)
            return
        self.bodies.append(await read(receive))
        await respond(send, body=b'{"id":"o_%d"}' % self.effects)
