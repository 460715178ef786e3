"""A FastAPI application behind its door, with a memory store that can be looked into and made to fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from tests.support.asgi_door import SteeredStore
from twiceproof import Event, Record
from twiceproof.server.fastapi import Idempotency, anonymous
from twiceproof.stores._protocol import Filter

ACCOUNTS = {"Bearer ann-1": "ann", "Bearer ann-2": "ann", "Bearer bob-1": "bob"}
"""Who a token belongs to; a test takes one out to revoke it."""

ANN = (b"authorization", b"Bearer ann-1")
ANN_REFRESHED = (b"authorization", b"Bearer ann-2")
BOB = (b"authorization", b"Bearer bob-1")


class Order(BaseModel):
    n: int


class Receipt(BaseModel):
    effect: int


class Service:
    """An application, its `Idempotency` and its effects. Leaving it closes the engine."""

    def __init__(
        self,
        principal: Any = anonymous,
        *,
        app: FastAPI | None = None,
        store: SteeredStore | None = None,
        **options: Any,
    ) -> None:
        self.store = SteeredStore() if store is None else store
        self.events: list[tuple[str, str]] = []
        self.effects = 0
        self.idempotency = Idempotency(
            store=self.store, principal=principal, accept_volatile=True, on_event=self._note, **options
        )
        self.app = FastAPI() if app is None else app
        self.idempotency.install(self.app)

    def _note(self, event: Event) -> None:
        self.events.append((event.name, event.code))

    def effect(self) -> int:
        self.effects += 1
        return self.effects

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.idempotency.engine.close()

    async def records(self) -> list[Record]:
        return list((await self.store.scan(Filter())).records)

    async def states(self) -> list[str]:
        return [str(record.state) for record in await self.records()]


def with_orders(service: Service, **options: Any) -> Service:
    """Give a service one protected operation."""

    @service.app.post("/orders", status_code=201)
    @service.idempotency.operation(**options)
    async def create(order: Order) -> dict[str, int]:
        return {"effect": service.effect(), "n": order.n}

    return service


class Calls:
    """Endpoints of every kind with one effect per run."""

    def __init__(self, effect: Callable[[], int]) -> None:
        self.effect = effect

    async def coroutine(self, order: Order) -> Receipt:
        return Receipt(effect=self.effect())

    def function(self, order: Order) -> Receipt:
        return Receipt(effect=self.effect())

    async def __call__(self, order: Order) -> Receipt:
        return Receipt(effect=self.effect())

    async def stream(self, order: Order) -> AsyncIterator[Receipt]:
        effect = self.effect()
        yield Receipt(effect=effect)
        yield Receipt(effect=effect)

    def plain_stream(self, order: Order) -> Iterator[Receipt]:
        effect = self.effect()
        yield Receipt(effect=effect)
        yield Receipt(effect=effect)


async def until(happened: Callable[[], object]) -> None:
    """Wait until something is the case; the test's own time limit bounds it."""
    while not happened():  # noqa: ASYNC110  # threads and stores set no event of this loop
        await asyncio.sleep(0.001)


class Tokens:
    """The accounts that tokens belong to, as a dependency; counts how often it is asked."""

    def __init__(self) -> None:
        self.accounts = dict(ACCOUNTS)
        self.asked = 0

    async def __call__(self, request: Request) -> str:
        self.asked += 1
        account = self.accounts.get(request.headers.get("authorization", ""))
        if account is None:
            raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})
        return account


async def run_lifespan(app: Callable[..., Awaitable[None]], while_up: Callable[[], Awaitable[None]]) -> list[Any]:
    """Start an application as a server does, do something, and stop it; return what it said."""
    said: list[Any] = []
    incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        message = incoming.pop(0)
        if message["type"] == "lifespan.shutdown":
            await while_up()
        return message

    async def send(message: Any) -> None:
        said.append(message)

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    return said
