"""An application behind the ASGI door, with a memory store that can be looked into and made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from tests.support.asgi_client import App
from twiceproof import Event, Policy, Record, StoreUnavailable
from twiceproof.server.asgi import IdempotencyMiddleware, anonymous
from twiceproof.stores._protocol import Filter
from twiceproof.stores.memory import AsyncMemoryStore, MemoryStore


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SteeredStore(AsyncMemoryStore):
    """A memory store that counts its calls, can be down, and can be held at a verb."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        super().__init__(store)
        self.calls: list[str] = []
        self.down: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}
        self.reached = asyncio.Event()

    async def _verb(self, name: str) -> None:
        self.calls.append(name)
        if name in self.held:
            self.reached.set()
            await self.held[name].wait()
        if name in self.down:
            raise StoreUnavailable

    async def open(self) -> None:
        await self._verb("open")

    async def close(self) -> None:
        await self._verb("close")

    async def claim(self, *args: Any) -> Any:
        await self._verb("claim")
        answer = await super().claim(*args)
        if "claimed" in self.held:
            await self._verb("claimed")
        return answer

    async def complete(self, *args: Any) -> Any:
        await self._verb("complete")
        return await super().complete(*args)

    async def release(self, *args: Any) -> Any:
        await self._verb("release")
        return await super().release(*args)

    async def park(self, *args: Any) -> Any:
        await self._verb("park")
        return await super().park(*args)


class Door:
    """The protected application; ``door(scope, receive, send)`` serves. Leaving it closes the engine."""

    def __init__(
        self,
        app: App,
        *,
        policy: Any = None,
        principal: Any = anonymous,
        store: AsyncMemoryStore | None = None,
        **options: Any,
    ) -> None:
        self.store = AsyncMemoryStore() if store is None else store
        self.events: list[tuple[str, str]] = []
        self.middleware = IdempotencyMiddleware(
            app,
            store=self.store,
            principal=principal,
            policy=Policy() if policy is None else policy,
            accept_volatile=True,
            on_event=self._note,
            **options,
        )

    def _note(self, event: Event) -> None:
        self.events.append((event.name, event.code))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.middleware(scope, receive, send)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.middleware.engine.close()

    async def records(self) -> list[Record]:
        return list((await self.store.scan(Filter())).records)

    async def states(self) -> list[str]:
        """The states of all records."""
        return [str(record.state) for record in await self.records()]

    async def until(self, expected: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the states of the records are as expected, and return them: for what a thread of ours does."""
        while not expected(states := await self.states()):  # noqa: ASYNC110  # another thread writes them
            await asyncio.sleep(0.01)
        return states
