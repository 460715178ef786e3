"""Uvicorn in a process of its own, on a free port, in front of `tests.support.asgi_app`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.asgi_app import SETTINGS
from tests.support.raw_http import Connection, Reply

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """One server process. Its socket listens from the beginning, so that nobody has to wait for it."""

    def __init__(self, settings: dict[str, Any], *, http: str, grace: int, log: Path) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.http = http
        self.port: int = listener.getsockname()[1]
        listener.set_inheritable(True)
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.asgi_server", str(listener.fileno()), http, str(grace)],
                cwd=ROOT,
                env=os.environ | {SETTINGS: json.dumps(settings)},
                pass_fds=[listener.fileno()],
                stdout=out,
                stderr=out,
            )
        listener.close()

    def connect(self) -> Connection:
        return Connection(self.port)

    def post(self, key: str | None, **options: Any) -> Reply:
        with self.connect() as connection:
            return connection.post(key, **options)

    def counts(self) -> dict[str, int]:
        with self.connect() as connection:
            connection.send(b"GET /effects HTTP/1.1\r\nhost: t\r\n\r\n")
            counts: dict[str, int] = json.loads(connection.read().body)
        return counts

    @property
    def effects(self) -> int:
        return self.counts()["effects"]

    def kill(self) -> None:
        """Kill it as an operating system out of memory does."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@contextlib.contextmanager
def serving(
    policy: dict[str, Any] | None = None,
    *,
    http: str = "h11",
    folder: Path | None = None,
    bare: bool = False,
    grace: int = 5,
    **door: Any,
) -> Iterator[Server]:
    """A server that is stopped at the end. Two of them with one ``folder`` share their effects.

    ``grace``: the seconds that it gives to running requests when it is stopped.
    """
    with tempfile.TemporaryDirectory() as own:
        place = folder or Path(own)
        door.setdefault("store", "memory://")
        settings = {"effects": str(place / "effects"), "policy": policy or {}, "door": door, "bare": bare}
        server = Server(settings, http=http, grace=grace, log=place / "log")
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()


def main() -> None:
    import uvicorn

    listener = socket.socket(fileno=int(sys.argv[1]))
    config = uvicorn.Config(
        "tests.support.asgi_app:make",
        factory=True,
        http=sys.argv[2],
        timeout_graceful_shutdown=int(sys.argv[3]),
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
