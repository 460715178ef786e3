"""Levers of the Redis tests: a prefix of their own, a look past the store, and a server that says what we want."""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import redis

from twiceproof.stores.redis import AsyncRedisStore, RedisStore

COLOURS: dict[str, type[RedisStore | AsyncRedisStore]] = {"blocking": RedisStore, "async": AsyncRedisStore}
CERTIFICATE = Path(__file__).with_name("localhost.pem")
Answer = Callable[[list[bytes]], bytes | None]


def own_prefix() -> str:
    """Return a prefix that no other test has."""
    return f"t{uuid.uuid4().hex}"


@contextlib.contextmanager
def client(server: Any) -> Iterator[redis.Redis]:
    """Yield a client that looks past the store."""
    with redis.Redis(port=server.port, protocol=2) as found:
        yield found


def keys_of(server: Any, prefix: str) -> dict[bytes, int]:
    """Return all keys under the prefix and their seconds to live; -1 has no end."""
    with client(server) as looking:
        names: Any = looking.keys(f"{{{prefix}}}:*")
        return {name: looking.ttl(name) for name in names}


def record_key(prefix: str, id: bytes) -> str:
    """Return the key of a record."""
    return f"{{{prefix}}}:record:{id.hex()}"


def called(store: RedisStore | AsyncRedisStore, verb: str, *values: Any, times: int = 1) -> list[Any]:
    """Call a verb, or the same verb several times at the same moment, and return the answers or errors."""
    if isinstance(store, AsyncRedisStore):
        asynchronous = store

        async def all_of_them() -> list[Any]:
            calls = [getattr(asynchronous, verb)(*values) for _ in range(times)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            await asynchronous.close()
            return list(answers)

        return asyncio.run(all_of_them())
    answers: list[Any] = []

    def one() -> None:
        try:
            answers.append(getattr(store, verb)(*values))
        except Exception as error:
            answers.append(error)

    threads = [threading.Thread(target=one) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    return answers


def commands(server: Any, work: Callable[[], object]) -> list[str]:
    """Return the commands that reach the server while ``work`` runs, without those that a script calls."""
    with client(server) as looking, looking.monitor() as monitor:
        work()
        with client(server) as other:
            other.echo("the end")
        seen: list[str] = []
        for told in monitor.listen():
            if told["command"].startswith("ECHO"):
                return [name for name in seen if name not in {"CLIENT", "SELECT"}]  # of the handshake
            if told["client_type"] != "lua":
                seen.append(told["command"].split()[0])
    raise AssertionError


class _Handler(socketserver.StreamRequestHandler):
    server: ScriptedServer

    def handle(self) -> None:
        self.server.connections += 1
        while (head := self.rfile.readline()).startswith(b"*"):
            command = [self._argument() for _ in range(int(head[1:]))]
            reply = b"+OK\r\n" if command[0] in {b"CLIENT", b"SELECT"} else self.server.answer(command)
            if reply is None:
                return
            for piece in self.server.pieces(reply):
                try:
                    self.wfile.write(piece)
                except OSError:
                    return
                if self.server.ended.wait(self.server.pause):
                    return

    def _argument(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:-2]


class ScriptedServer(socketserver.ThreadingTCPServer):
    """A server on loopback whose every reply is ``answer``'s; None closes the connection, b"" says nothing at all."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answer: Answer, pause: float = 0.0, *, tls: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tls = tls
        self.answer = answer
        self.pause = pause
        self.connections = 0
        self.ended = threading.Event()

    def pieces(self, reply: bytes) -> Sequence[bytes]:
        """Return what goes out at once: all of it, or a long reply one byte after the other."""
        return [reply] if not self.pause or len(reply) < 50 else [reply[at : at + 1] for at in range(len(reply))]

    @property
    def url(self) -> str:
        port = self.server_address[1]
        return f"rediss://localhost:{port}/0" if self.tls else f"redis://127.0.0.1:{port}/0"

    def finish_request(self, request: Any, client_address: Any) -> None:
        if not self.tls:
            super().finish_request(request, client_address)
            return
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
        with contextlib.suppress(OSError), context.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)  # unless the client did not like the certificate

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()
