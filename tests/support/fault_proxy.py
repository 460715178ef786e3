"""A TCP proxy in front of a real server, for everything that a network does to a request and its reply.

A request is what a client sends from one reply to the next, however many packets that takes: so a pipeline is one, and
the handshake of a new connection is one or more. A fault that waits for "the n-th next request" counts those of all
connections. Whoever calls a method finds it in force when it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self, TypeVar

from twiceproof.testing._server import free_port

T = TypeVar("T")
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class Fault(Enum):
    """What happens to one request or its reply."""

    REQUEST_LOST = auto()
    REPLY_LOST = auto()
    REPLY_HALVED = auto()


@dataclass(slots=True, eq=False)
class Link:
    """One client's connection: ``up`` and ``down`` count the bytes that came from the client and from the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    up: int = 0
    down: int = 0
    requests: int = 0
    open: bool = True
    asking: bool = False
    swallowed: bool = False
    fault: Fault | None = None
    pumps: list[asyncio.Task[None]] = field(default_factory=list)

    def close(self) -> None:
        """Cut both sides at once, with a reset."""
        self.open = False
        for writer in (self.client, self.server):
            if writer is not None:
                with contextlib.suppress(OSError):  # it is gone already
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
                writer.transport.abort()


class FaultProxy:
    """A context manager that listens on ``port`` of 127.0.0.1, in front of the server at ``upstream``.

    ``links`` are all connections so far, the closed ones too; ``faults`` those that have come to pass.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.port = free_port()
        self.links: list[Link] = []
        self.faults: list[Fault] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._hole = False
        self._delays = (0.0, 0.0)
        self._waiting: tuple[int, Fault] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.restore()
        return self

    def __exit__(self, *_: object) -> None:
        self._wait_for(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, url: str) -> str:
        """Return the server's URL with our port instead of its own."""
        return url.replace(f":{self.upstream}", f":{self.port}")

    # ---- what holds from now on --------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Pass everything on again; connections of which a hole took bytes are cut, since they can't go on."""
        self._wait_for(self._restore())

    def refuse(self) -> None:
        """Refuse new connections and cut those there are: no server."""
        self._wait_for(self._refuse())

    def swallow(self) -> None:
        """Accept connections and take every byte of both sides, and pass nothing on: a black hole."""
        self._now(lambda: setattr(self, "_hole", True))

    def delay(self, *, requests: float = 0.0, replies: float = 0.0) -> None:
        """Hold what comes from now on back for so many seconds."""
        self._now(lambda: setattr(self, "_delays", (requests, replies)))

    # ---- what happens once -------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Cut all connections at once; new ones are welcome."""
        self._now(self._cut)

    def drop_request(self, n: int = 1) -> None:
        """Keep the n-th next request from the server, and cut its connection."""
        self._fail(n, Fault.REQUEST_LOST)

    def drop_reply(self, n: int = 1) -> None:
        """Let the server act on the n-th next request; swallow its reply, and cut the connection."""
        self._fail(n, Fault.REPLY_LOST)

    def halve_reply(self, n: int = 1) -> None:
        """Pass on half of the first bytes of the reply to the n-th next request, and cut the connection."""
        self._fail(n, Fault.REPLY_HALVED)

    # ---- counts ------------------------------------------------------------------------------------------------------

    @property
    def open_links(self) -> list[Link]:
        """The connections that are open."""
        return self._now(lambda: [link for link in self.links if link.open])

    @property
    def requests(self) -> int:
        """The requests so far."""
        return self._now(lambda: sum(link.requests for link in self.links))

    @property
    def counted(self) -> tuple[int, int]:
        """The bytes that came from clients and from the server so far."""
        return self._now(lambda: (sum(link.up for link in self.links), sum(link.down for link in self.links)))

    # ---- on the loop -------------------------------------------------------------------------------------------------

    def _wait_for(self, work) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _now(self, act: Callable[[], T]) -> T:
        async def call() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def _fail(self, n: int, fault: Fault) -> None:
        self._now(lambda: setattr(self, "_waiting", (n, fault)))

    async def _restore(self) -> None:
        self._hole, self._delays, self._waiting = False, (0.0, 0.0), None
        for link in self.links:
            if link.swallowed:
                link.close()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._cut()
        await asyncio.sleep(0)  # sockets close in the next turn of the loop

    def _cut(self) -> None:
        for link in self.links:
            if link.open:
                link.close()

    async def _end(self) -> None:
        await self._refuse()
        pumps = [pump for link in self.links for pump in link.pumps]
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(writer)
        self.links.append(link)
        task = asyncio.current_task()
        assert task is not None
        link.pumps.append(task)
        if self._listener is None:  # it was accepted while we began to refuse
            link.close()
        elif self._hole:
            link.swallowed = True
        else:
            try:
                answers, link.server = await asyncio.open_connection("127.0.0.1", self.upstream)
            except OSError:
                link.close()
                return
            link.pumps.append(asyncio.create_task(self._pump(answers, link, self._downwards)))
        await self._pump(reader, link, self._upwards)

    async def _pump(self, reader: asyncio.StreamReader, link: Link, pass_on) -> None:
        with contextlib.suppress(OSError):
            while link.open and (data := await reader.read(65536)):
                await pass_on(link, data)
        link.close()  # whichever side ended, the other has nobody to talk to

    async def _upwards(self, link: Link, data: bytes) -> None:
        link.up += len(data)
        if not link.asking:
            link.asking = True
            link.requests += 1
            link.fault = self._due()
        if link.fault is Fault.REQUEST_LOST:
            self._strike(link)
        elif self._hole or link.server is None:
            link.swallowed = True
        else:
            await asyncio.sleep(self._delays[0])
            if link.open:
                link.server.write(data)
                await link.server.drain()

    async def _downwards(self, link: Link, data: bytes) -> None:
        link.down += len(data)
        link.asking = False
        if link.fault is not None:
            if link.fault is Fault.REPLY_HALVED:
                link.client.write(data[: (len(data) + 1) // 2])
                await link.client.drain()
            self._strike(link)
        elif self._hole:
            link.swallowed = True
        else:
            await asyncio.sleep(self._delays[1])
            if link.open:
                link.client.write(data)
                await link.client.drain()

    def _due(self) -> Fault | None:
        """Count one more request; return the fault that was waiting for it."""
        if self._waiting is None:
            return None
        left, fault = self._waiting
        self._waiting = (left - 1, fault) if left > 1 else None
        return fault if left == 1 else None

    def _strike(self, link: Link) -> None:
        if link.open and link.fault is not None:
            self.faults.append(link.fault)
            link.close()
