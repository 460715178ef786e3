"""What our servers have in common: a folder, a port, and a process that dies with us."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final, Self

from twiceproof.testing._server_guard import clear, descendants, signal_all

_GUARD: Final = str(Path(__file__).with_name("_server_guard.py"))
_PATIENCE: Final = 30.0
_numbers: Final = itertools.count(os.getpid() * 8)  # processes that start together try different ports


class Server(ABC):
    """A server of our own, stopped until `start`; not to be used from several threads at once.

    ``settings`` are those of the server itself; a change of them holds from the next start on. ``port`` is chosen at
    the first start and then stays.
    """

    name: ClassVar[str]
    farewell: ClassVar[signal.Signals] = signal.SIGTERM
    """What makes it stop in good order without waiting for its clients."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        self.settings: dict[str, object] = dict(settings or {})
        self.port: int = 0
        self._owner: int = os.getpid()
        self._folder: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid: int = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL by which a store finds it."""

    @property
    def pid(self) -> int:
        """The process that the server consists of, or the first of them."""
        if not self.running:
            raise RuntimeError(f"{self.name} is not running.")
        return self._pid

    @property
    def folder(self) -> Path:
        """The folder of its data and its log, there until `stop`."""
        if self._folder is None:
            raise RuntimeError(f"{self.name} has no data: start it.")
        return self._folder

    @property
    def data(self) -> Path:
        """The folder that is the server's own."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The file with what the server says."""
        return self.folder / "server.log"

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._guard is not None and self._guard.poll() is None

    def start(self) -> None:
        """Start it and wait until it answers: with new data, or after `kill` with what is there."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already.")
        self._end(orderly=False)  # one that died by itself
        self.port = self.port or free_port()
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix=f"twiceproof-{self.name.lower()}-"))
                if self.user is not None:
                    os.chown(self._folder, *self.user)
                self.prepare()
            self._run()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it in good order, or at once where that takes too long, and remove its data."""
        if os.getpid() != self._owner:  # a forked child on its way out; the server is its parent's
            return
        self._end(orderly=True)
        if self._folder is not None:
            clear(self._folder)
            self._folder = None

    def kill(self) -> None:
        """Kill it as ``kill -9`` does, and wait until nothing of it is left; its data stays for `start`."""
        self._end(orderly=False)

    def restart(self) -> None:
        """Start it again with its data: stopped in good order before, or after a `kill`."""
        self._end(orderly=True)
        self.start()

    def pause(self) -> None:
        """Stop all its processes where they are: connections stay, and nothing answers."""
        todo = [self.pid]  # first of all, so that no more of them come
        done: set[int] = set()
        while todo:
            signal_all(todo, signal.SIGSTOP)
            done.update(todo)
            todo = [pid for pid in descendants(self._pid) if pid not in done]

    def resume(self) -> None:
        """Let it go on after `pause`."""
        signal_all([*descendants(self.pid), self._pid], signal.SIGCONT)

    def _run(self) -> None:
        asked = {"command": self.command(), "folder": str(self.folder), "user": self.user}
        self._guard = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", _GUARD, json.dumps(asked)],
            stdin=subprocess.PIPE,  # it ends with us, and that tells the guard
            stdout=subprocess.PIPE,
            env=environment(),
            start_new_session=True,  # Ctrl-C is for us; we stop it
        )
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline())

    def _end(self, *, orderly: bool) -> None:
        guard = self._guard
        if guard is None:
            return
        if guard.poll() is None:
            signal_all([self._pid], self.farewell if orderly else signal.SIGKILL)
            signal_all(descendants(guard.pid), signal.SIGCONT)  # what is paused would not notice
            try:
                guard.wait(_PATIENCE / 3)
            except subprocess.TimeoutExpired:
                signal_all(descendants(guard.pid), signal.SIGKILL)
                guard.wait(_PATIENCE)
        for pipe in (guard.stdin, guard.stdout):
            if pipe is not None:
                pipe.close()
        self._guard = None

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _PATIENCE
        while not self.ready():
            if not self.running or time.monotonic() > until:
                said = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
                raise RuntimeError(f"{self.name} did not start on port {self.port}:\n{said}")
            time.sleep(0.01)

    @property
    def user(self) -> tuple[int, int] | None:
        """The ids of the user and the group that it runs as, None for our own."""
        return None

    @abstractmethod
    def prepare(self) -> None:
        """Make its data in a new folder."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs it in the foreground."""

    @abstractmethod
    def ready(self) -> bool:
        """Say whether it answers by now."""


def word(value: object, yes: str, no: str) -> str:
    """Return a setting as a server reads it."""
    return (yes if value else no) if isinstance(value, bool) else str(value)


def environment() -> dict[str, str]:
    """Return ours without what would speak to PostgreSQL's programs; their words are in English."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def free_port() -> int:
    """Return a free port below those that systems give to clients: while the server is down, nobody else gets it."""
    for number in _numbers:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port := 20_000 + number % 12_000))
            except OSError:
                continue
            return port
    raise AssertionError("counting never ends")


def packaged(package: str, name: str, pattern: str) -> Path:
    """Return the program of an installed package, without importing it."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for found in sorted(Path(folder).glob(pattern)):
            return found
    raise ImportError(f"{name} needs {package.replace('_', '-')}: pip install 'twiceproof[demo-servers]'")
