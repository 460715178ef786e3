"""The engine lives as long as the application behind the ASGI door (R41, R48)."""

import asyncio
from typing import Any

import pytest

from tests.support.asgi_client import Counted, in_loop, post
from tests.support.asgi_door import Door, SteeredStore
from twiceproof import ConfigurationError, Policy


class Server:
    """The server's side of one lifespan connection."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None
        self.heard: list[tuple[str, list[str]]] = []

    async def hear(self, message: Any) -> None:
        """Take a message, and note what the store had been asked for by then."""
        self.heard.append((message["type"], list(getattr(self.door.store, "calls", []))))
        await self.outbox.put(message)

    async def tell(self, type: str) -> str:
        """Send one message and return the type of the answer, or the name of what the application raised."""
        if self.task is None:
            scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
            self.task = asyncio.create_task(self.door(scope, self.inbox.get, self.hear))
        await self.inbox.put({"type": type})
        answer = asyncio.create_task(self.outbox.get())
        await asyncio.wait({answer, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done() and self.outbox.empty():
            answer.cancel()
            error = self.task.exception()
            return "returned" if error is None else type_name(error)
        return (await answer)["type"]

    async def end(self) -> BaseException | None:
        assert self.task is not None
        await asyncio.wait({self.task})
        return self.task.exception()


def type_name(error: BaseException) -> str:
    return f"raised {type(error).__name__}"


class Hooked(Counted):
    """An application with start and stop hooks that note what the store had seen by then."""

    def __init__(self, store: SteeredStore, *, fail_at: str = "") -> None:
        super().__init__()
        self.store = store
        self.fail_at = fail_at
        self.log: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await super().__call__(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            message = await receive()
            assert message["type"] == f"lifespan.{event}"
            self.log.append(f"{event} after {self.store.calls}")
            if self.fail_at == event:
                await send({"type": f"lifespan.{event}.failed", "message": "no"})
                raise OSError(event)
            await send({"type": f"lifespan.{event}.complete"})


@in_loop
async def test_the_store_opens_before_the_application_starts_and_closes_after_it_has_stopped():
    """R41, B42: the hooks of the application run inside the life of the store."""
    store = SteeredStore()
    app = Hooked(store)
    server = Server(Door(app, store=store))
    assert await server.tell("lifespan.startup") == "lifespan.startup.complete"
    assert await server.tell("lifespan.shutdown") == "lifespan.shutdown.complete"
    assert await server.end() is None
    assert app.log == ["startup after ['open']", "shutdown after ['open']"]
    assert server.heard == [
        ("lifespan.startup.complete", ["open"]),
        ("lifespan.shutdown.complete", ["open", "close"]),
    ]
    assert store.calls == ["open", "close"]


@pytest.mark.parametrize("event", ["startup", "shutdown"])
@in_loop
async def test_the_store_closes_also_where_the_application_fails_to_start_or_stop(event):
    """R41: the failure is told as the application told it, and nothing stays open."""
    store = SteeredStore()
    server = Server(Door(Hooked(store, fail_at=event), store=store))
    said = await server.tell("lifespan.startup")
    if event == "shutdown":
        said = await server.tell("lifespan.shutdown")
    assert said == f"lifespan.{event}.failed"
    assert isinstance(await server.end(), OSError)
    assert store.calls == ["open", "close"]


async def _refuses_at_once(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"


async def _returns_at_once(scope: Any, receive: Any, send: Any) -> None:
    return


@pytest.mark.parametrize("app", [_refuses_at_once, _returns_at_once])
@in_loop
async def test_an_application_without_lifespan_starts_and_stops_as_if_it_had_one(app):
    """R41: the store opens and drains all the same, since the server is answered in its place."""
    store = SteeredStore()
    server = Server(Door(app, store=store))
    assert await server.tell("lifespan.startup") == "lifespan.startup.complete"
    assert store.calls == ["open"]
    assert await server.tell("lifespan.shutdown") == "lifespan.shutdown.complete"
    assert await server.end() is None
    assert store.calls == ["open", "close"]


@in_loop
async def test_an_error_in_a_start_hook_is_not_mistaken_for_missing_support():
    """Only an application that has not touched the connection has no lifespan."""

    async def breaks(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise LookupError("no such setting")

    store = SteeredStore()
    server = Server(Door(breaks, store=store))
    assert await server.tell("lifespan.startup") == "raised LookupError"
    assert store.calls == ["open", "close"]


@in_loop
async def test_a_store_that_is_down_at_the_start_does_not_keep_the_application_from_starting():
    """R48: covered requests are told 503 while it is down, the others are served, and then all goes on."""
    store = SteeredStore()
    store.down = {"open", "claim"}
    app = Hooked(store)
    server = Server(Door(app, store=store, policy=Policy()))
    assert await server.tell("lifespan.startup") == "lifespan.startup.complete"
    down = await post(server.door, "k1")
    unkeyed = await post(server.door, None)
    store.down = set()
    up = await post(server.door, "k1")
    assert await server.tell("lifespan.shutdown") == "lifespan.shutdown.complete"
    assert (down.status, down.code, down.all("retry-after")) == (503, "store-unavailable", [b"5"])
    assert (unkeyed.status, up.status, up.replayed) == (201, 201, False)
    assert app.effects == 2
    assert store.calls.count("open") >= 2


@in_loop
async def test_a_store_that_was_set_up_wrongly_keeps_the_application_from_starting():
    """R41: the server is told in one sentence, once, whatever the application says about it."""

    class Wrong(SteeredStore):
        async def open(self) -> None:
            raise ConfigurationError("the file has a schema of a later release")

    async def starlette_like(scope: Any, receive: Any, send: Any) -> None:
        try:
            await receive()
        except BaseException:
            await send({"type": "lifespan.startup.failed", "message": "Traceback ..."})
            raise

    server = Server(Door(starlette_like, store=Wrong()))
    assert await server.tell("lifespan.startup") == "lifespan.startup.failed"
    assert isinstance(await server.end(), ConfigurationError)
    assert server.outbox.empty()


@in_loop
async def test_a_store_that_fails_to_close_does_not_keep_the_server_from_stopping():
    """R41: the server hears the application's own word."""
    store = SteeredStore()
    store.down = {"close"}
    server = Server(Door(Hooked(store), store=store))
    await server.tell("lifespan.startup")
    assert await server.tell("lifespan.shutdown") == "lifespan.shutdown.complete"
    assert await server.end() is None


@in_loop
async def test_the_first_covered_request_opens_the_store_where_no_lifespan_ever_comes():
    """R41: once per process and loop, not at import and not for uncovered requests."""
    store = SteeredStore()
    async with Door(Counted(), store=store) as door:
        await post(door, None)
        await post(door, "k1")
        await post(door, "k2")
    assert store.calls == ["open", "claim", "complete", "claim", "complete", "close"]


@in_loop
async def test_a_door_serves_again_after_its_lifespan_has_ended():
    """R41: test clients start and stop an application many times."""
    store = SteeredStore()
    app = Hooked(store)
    door = Door(app, store=store)
    for key in ("k1", "k2"):
        server = Server(door)
        await server.tell("lifespan.startup")
        assert (await post(door, key)).status == 201
        await server.tell("lifespan.shutdown")
        await server.end()
    assert app.effects == 2
