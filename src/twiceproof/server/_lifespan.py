"""The application's start and stop: the engine opens before and closes after (R41)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from twiceproof.errors import ConfigurationError

if TYPE_CHECKING:
    from twiceproof.engine import AsyncEngine
    from twiceproof.server._exchange import App, Message, Receive, Scope, Send

logger = logging.getLogger("twiceproof.server")

_STOPPED: Final = frozenset({"lifespan.shutdown.complete", "lifespan.shutdown.failed", "lifespan.startup.failed"})


class Lifespan:
    """One lifespan connection. ``touched``: the application took part in it."""

    __slots__ = ("_engine", "_receive", "_refused", "_send", "opened", "touched")

    def __init__(self, engine: AsyncEngine, receive: Receive, send: Send) -> None:
        self._engine = engine
        self._receive = receive
        self._send = send
        self._refused = False
        self.opened = False
        self.touched = False

    async def receive(self) -> Message:
        """Open the engine before the application hears of the start."""
        self.touched = True
        message = await self._receive()
        if message["type"] == "lifespan.startup":
            await self._open()
        return message

    async def send(self, message: Message) -> None:
        """Close the engine before the server hears that the application has stopped."""
        self.touched = True
        if self._refused:
            return
        if message["type"] in _STOPPED:
            await self.close()
        await self._send(message)

    async def _open(self) -> None:
        """Open; a store that is down now may be back at the first request, a wrong set-up will not."""
        self.opened = True
        try:
            await self._engine.open()
        except ConfigurationError as error:
            await self._send({"type": "lifespan.startup.failed", "message": str(error)})
            self._refused = True
            raise
        except Exception:
            logger.exception("the store could not be opened; until it can, covered requests are answered 503")

    async def close(self) -> None:
        """Close, once; an error of the store does not keep the server from stopping."""
        if not self.opened:
            return
        self.opened = False
        try:
            await self._engine.close()
        except Exception:
            logger.exception("the store could not be closed")


async def serve_lifespan(engine: AsyncEngine, app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application's lifespan around the engine's.

    Where the application has none (it returns or raises before it took part), the server is answered in its place, so
    that the engine still drains at the end (R41).
    """
    lifespan = Lifespan(engine, receive, send)
    try:
        try:
            await app(scope, lifespan.receive, lifespan.send)
        except Exception as error:
            if lifespan.touched:
                raise
            logger.info("the application has no lifespan (%s); the store gets one", type(error).__name__)
        if not lifespan.touched:
            await lifespan.receive()
            await lifespan.send({"type": "lifespan.startup.complete"})
            await lifespan.receive()
            await lifespan.send({"type": "lifespan.shutdown.complete"})
    finally:
        await lifespan.close()
