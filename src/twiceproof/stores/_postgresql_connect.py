"""Connecting through libpq, and waiting for it, with a deadline that no server or network outlasts."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Generator, Mapping
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from twiceproof.stores._postgresql_address import Address
from twiceproof.stores._postgresql_errors import unreachable

T = TypeVar("T")
_READ: Final = 1  # psycopg's bits: what is waited for, and what is ready
_WRITE: Final = 2
_ERROR: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL


class Late(Exception):
    """The deadline of a connection has passed."""


class Timed(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits until ``until`` and no longer."""

    until: float = 0.0

    def __del__(self, *_: Any) -> None:
        """Close quietly, and only in the process that connected: libpq's own object sees to that."""

    def wait(self, gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        """Run what psycopg sends and reads; raises `Late` at the deadline, and the connection is then of no use."""
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(ready(self.pgconn.socket, wanted, self.until))
        except StopIteration as done:
            value: T = done.value
            return value


class AsyncTimed(psycopg.AsyncConnection[tuple[Any, ...]]):
    """`Timed` for an event loop."""

    until: float = 0.0

    def __del__(self, *_: Any) -> None:
        """See `Timed`; a loop that ended can't be asked to close what it left open."""

    async def wait(self, gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        """See `Timed.wait`; a cancelled one asks the server for nothing."""
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(await ready_async(self.pgconn.socket, wanted, self.until))
        except StopIteration as done:
            value: T = done.value
            return value


def ready(fd: int, wanted: int, until: float) -> int:
    """Wait until the socket is ready for some of what is wanted, and return for what; raise `Late` at ``until``."""
    left = until - time.monotonic()
    poll = select.poll()
    poll.register(fd, (select.POLLIN if wanted & _READ else 0) | (select.POLLOUT if wanted & _WRITE else 0))
    for _, events in poll.poll(left * 1000) if left > 0 else ():
        if events & _ERROR:
            return wanted
        return (_READ if events & select.POLLIN else 0) | (_WRITE if events & select.POLLOUT else 0)
    raise Late


async def ready_async(fd: int, wanted: int, until: float) -> int:
    """See `ready`."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[int] = loop.create_future()

    def tell(what: int) -> None:
        if not found.done():
            found.set_result(what)

    timer = loop.call_later(until - time.monotonic(), tell, 0)
    if wanted & _READ:
        loop.add_reader(fd, tell, _READ)
    if wanted & _WRITE:
        loop.add_writer(fd, tell, _WRITE)
    try:
        what = await found
    finally:
        timer.cancel()
        if wanted & _READ:
            loop.remove_reader(fd)
        if wanted & _WRITE:
            loop.remove_writer(fd)
    if not what:
        raise Late
    return what


def dial(conninfo: str, where: str) -> Generator[tuple[int, int], int, pq.abc.PGconn]:
    """Connect through libpq: yields a socket and what it waits for, is sent what is ready; a failure is ours."""
    start = pq.PGconn.connect_start(conninfo.encode())
    try:
        while start.status != pq.ConnStatus.BAD:
            match start.connect_poll():
                case pq.PollingStatus.READING:
                    yield start.socket, _READ
                case pq.PollingStatus.WRITING:
                    yield start.socket, _WRITE
                case pq.PollingStatus.OK:
                    start.nonblocking = 1
                    return start
                case _:
                    break
        raise unreachable(where, start.get_error_message().partition("\n")[0])
    except BaseException:
        start.finish()
        raise


def connected(address: Address, until: float) -> Timed:
    """Return a connection in autocommit, made before ``until``."""
    dialling = dial(address.conninfo(), address.where)
    try:
        fd, wanted = next(dialling)
        while True:
            fd, wanted = dialling.send(ready(fd, wanted, until))
    except Late:
        raise unreachable(address.where, f"no answer within {address.timeout:g} s.") from None
    except StopIteration as done:
        made: Timed = Timed(done.value, tuple_row)
        made.autocommit = True
        return made
    finally:
        dialling.close()


async def connected_async(address: Address, until: float) -> AsyncTimed:
    """See `connected`."""
    try:
        async with asyncio.timeout(until - time.monotonic()):
            resolved = await _resolved(address.parameters)
    except TimeoutError:
        raise unreachable(address.where, f"its name is not resolved within {address.timeout:g} s.") from None
    except OSError:
        raise unreachable(address.where, "its name can't be resolved.") from None
    dialling = dial(address.conninfo(**resolved), address.where)
    try:
        fd, wanted = next(dialling)
        while True:
            fd, wanted = dialling.send(await ready_async(fd, wanted, until))
    except Late:
        raise unreachable(address.where, f"no answer within {address.timeout:g} s.") from None
    except StopIteration as done:
        made: AsyncTimed = AsyncTimed(done.value, tuple_row)
        await made.set_autocommit(True)
        return made
    finally:
        dialling.close()


async def _resolved(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of the host, which libpq would look up while the loop stands still."""
    host, port = str(parameters.get("host") or ""), str(parameters.get("port") or "5432")
    if not host or "," in host or "," in port or host.startswith(("/", "@")) or parameters.get("hostaddr"):
        return {}
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    many = len(addresses)
    return {"hostaddr": ",".join(addresses), "host": ",".join([host] * many), "port": ",".join([port] * many)}
