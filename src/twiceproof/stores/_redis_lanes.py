"""Connections to a Redis server: what goes out together is one pipeline, and what comes back is read by a deadline.

A pipeline without MULTI: each script is atomic by itself, and an error reply is the answer of its own verb alone. A
connection whose replies were not all read is never used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

from redis import connection as theirs
from redis.asyncio import connection as theirs_async
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from twiceproof.errors import StoreError, StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores._redis_address import Address
from twiceproof.stores._redis_errors import NO_SCRIPT, code_of, failed, told
from twiceproof.stores._redis_scripts import Script
from twiceproof.stores._redis_verbs import Command, Verb

AnyVerb: TypeAlias = Verb[Any]
Commands: TypeAlias = Sequence[Command]


class RedisLane:
    """One connection of the blocking colour; making it connects."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._until = time.monotonic() + address.timeout  # of the first run, too
        self._fresh = True
        self._broken = False
        kind: Any = theirs.SSLConnection if address.tls else theirs.Connection
        self._connection: Any = kind(
            **address.options,
            socket_timeout=address.timeout,
            socket_connect_timeout=address.timeout,
            protocol=2,
            retry=Retry(NoBackoff(), 0),  # a verb whose outcome is unknown is never repeated here
        )
        # redis-py waits anew for every few bytes, and has no other place where its socket could be replaced
        self._socket = _TimedSocket(self._until)
        self._connection._connect = partial(self._socket.around, self._connection._connect)  # noqa: SLF001
        try:
            self._connection.connect()
        except (RedisError, OSError, ValueError) as error:
            self.close()
            raise unreachable(address, error) from None
        except BaseException:
            self.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket.fileno(), select.POLLIN)

    def usable(self) -> bool:
        """See `Lane.usable`: nobody has asked, so whatever is there to read is the end, or not ours."""
        return not self._broken and not self._poll.poll(0)

    def run(self, verbs: Sequence[AnyVerb]) -> Sequence[object]:
        """See `Lane.run`."""
        if not self._fresh:
            self._until = time.monotonic() + self._address.timeout
        self._fresh = False
        self._socket.until = self._until
        steps = exchange(self._address, verbs)
        commands = next(steps)
        try:
            while True:
                commands = steps.send(self.ask(commands))
        except StopIteration as end:
            answers: list[object] = end.value
            return answers

    def ask(self, commands: Commands) -> list[object]:
        """Send them and return their replies, an error of the server's among them."""
        connection, replies = self._connection, list[object]()
        try:
            connection.send_packed_command([packed(commands)], check_health=False)
            for _ in commands:
                try:
                    replies.append(connection.read_response(disconnect_on_error=False))
                except RedisError as error:
                    if code_of(error) is None:
                        raise
                    replies.append(error)
        except (RedisError, OSError) as error:
            self._broken = True
            if not replies:
                raise lost(self._address, error) from None
            replies += [lost(self._address, error) for _ in commands[len(replies) :]]
        return replies

    def close(self) -> None:
        """See `Lane.close`."""
        self._broken = True
        self._connection.disconnect()


class AsyncRedisLane:
    """One connection of one event loop; `connect` makes it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._until = asyncio.get_running_loop().time() + address.timeout  # of the first run, too
        self._fresh = True
        self._broken = False
        kind: Any = theirs_async.SSLConnection if address.tls else theirs_async.Connection
        self._connection: Any = kind(
            **address.options,
            socket_timeout=None,  # one timer for everything that goes out together is ours
            socket_connect_timeout=None,
            protocol=2,
            retry=AsyncRetry(NoBackoff(), 0),
        )

    @classmethod
    async def connect(cls, address: Address) -> AsyncRedisLane:
        """Return a connected one."""
        lane = cls(address)
        try:
            async with asyncio.timeout_at(lane._until):
                await lane._connection.connect()
        except (RedisError, OSError, ValueError) as error:
            lane.close()
            raise unreachable(address, error) from None
        except BaseException:
            lane.close()
            raise
        return lane

    def usable(self) -> bool:
        """See `Lane.usable`."""
        reader = self._connection._reader  # noqa: SLF001  # redis-py asks by a coroutine, and differently in each release
        return not self._broken and reader is not None and not reader.at_eof() and reader.exception() is None

    async def run(self, verbs: Sequence[AnyVerb]) -> Sequence[object]:
        """See `AsyncLane.run`."""
        if not self._fresh:
            self._until = asyncio.get_running_loop().time() + self._address.timeout
        self._fresh = False
        steps = exchange(self._address, verbs)
        commands = next(steps)
        try:
            while True:
                commands = steps.send(await self._ask(commands))
        except StopIteration as end:
            answers: list[object] = end.value
            return answers

    async def _ask(self, commands: Commands) -> list[object]:
        connection, replies = self._connection, list[object]()
        try:
            async with asyncio.timeout_at(self._until):
                await connection.send_packed_command([packed(commands)], check_health=False)
                for _ in commands:
                    try:
                        replies.append(await connection.read_response(disconnect_on_error=False))
                    except RedisError as error:
                        if code_of(error) is None:
                            raise
                        replies.append(error)
        except (RedisError, OSError) as error:
            self._broken = True
            if not replies:
                raise lost(self._address, error) from None
            replies += [lost(self._address, error) for _ in commands[len(replies) :]]
        return replies

    def close(self) -> None:
        """See `Lane.close`."""
        self._broken = True
        writer = self._connection._writer  # noqa: SLF001  # redis-py's own way is a coroutine,
        if writer is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended, and the socket goes with the connection
                writer.transport.abort()  # and TLS would say good-bye for up to half a minute
        self._connection._close()  # noqa: SLF001


def packed(commands: Commands) -> bytes:
    """Return what goes over the wire: redis-py takes three times as long, in asyncio."""
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        parts += [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in command]
    return b"".join(parts)


def exchange(address: Address, verbs: Sequence[AnyVerb]) -> Generator[Commands, list[object], list[object]]:
    """Yield the commands of ``verbs``, be sent their replies, and return the answers: one body for both colours.

    A script that the server doesn't know did not run; it is sent whole, and known from then on.
    """
    replies = yield [verb.command() for verb in verbs]
    unknown = [at for at, reply in enumerate(replies) if isinstance(reply, RedisError) and code_of(reply) == NO_SCRIPT]
    if unknown and not isinstance(replies[-1], StoreError):  # else the connection is of no use any more
        sent: set[Script | None] = set()
        commands: list[Command] = []
        for at in unknown:
            script = verbs[at].script
            commands.append(verbs[at].command() if script in sent else verbs[at].whole())
            sent.add(script)
        again = yield commands
        for at, reply in zip(unknown, again, strict=True):
            replies[at] = reply
    return [_answer(address, verb, reply) for verb, reply in zip(verbs, replies, strict=True)]


def _answer(address: Address, verb: AnyVerb, reply: object) -> object:
    if isinstance(reply, RedisError):
        return failed(address.where, reply)
    if isinstance(reply, StoreError):
        return reply
    try:
        return verb.told(reply)
    except StoreError as error:  # UnknownFormat
        return error


def unreachable(address: Address, error: Exception) -> StoreUnavailable:
    """Return what to raise where no connection could be made."""
    if isinstance(error, RedisError) and (code := code_of(error)) is not None:
        return told(address.where, code)
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return StoreUnavailable(f"{address.where}: no connection within {address.timeout:g} s.")
    return StoreUnavailable(f"{address.where}: no connection ({str(error).rstrip('.')}).")


def lost(address: Address, error: Exception) -> StoreOutcomeUnknown:
    """Return what to raise where the reply to something sent did not come."""
    why = "no answer in time" if isinstance(error, TimeoutError | RedisTimeoutError) else "the connection broke"
    return StoreOutcomeUnknown(f"{address.where}: {why}; what was asked may have been done, or be done yet.")


class _TimedSocket:
    """A socket whose reads and writes end by a common deadline, however slowly the bytes come."""

    def __init__(self, until: float) -> None:
        self.until = until
        self._socket: Any = None

    def around(self, connect: Callable[[], Any]) -> _TimedSocket:
        """Hold what ``connect`` returns."""
        self._socket = connect()
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv_into(self, *arguments: Any) -> Any:
        self._keep_time()
        return self._socket.recv_into(*arguments)

    def recv(self, *arguments: Any) -> Any:
        self._keep_time()
        return self._socket.recv(*arguments)

    def sendall(self, data: bytes) -> None:
        self._keep_time()
        self._socket.sendall(data)

    def _keep_time(self) -> None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
