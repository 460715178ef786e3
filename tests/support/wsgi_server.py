"""Real WSGI servers in processes of their own, on free ports, in front of `tests.support.wsgi_app`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.raw_http import Connection, Reply
from tests.support.wsgi_app import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
GUNICORN: Final = ["-m", "gunicorn", "--graceful-timeout", "5", "--no-control-socket"]
SERVERS: Final[dict[str, list[str]]] = {
    "waitress": ["-m", "tests.support.wsgi_server", "waitress"],
    "wsgiref": ["-m", "tests.support.wsgi_server", "wsgiref"],
    "werkzeug": ["-m", "tests.support.wsgi_server", "werkzeug"],
    "gunicorn": [*GUNICORN, "--workers", "2", "--preload"],
    "gthread": [*GUNICORN, "--workers", "2", "--worker-class", "gthread", "--threads", "30"],
}


class Server:
    """One server with all its workers, in a session of its own. Its socket listens from the beginning."""

    def __init__(self, kind: str, settings: dict[str, Any], framework: str, log: Path) -> None:
        self.log = log
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = listener.getsockname()[1]
        listener.set_inheritable(True)
        fd = listener.fileno()
        command = [sys.executable, *SERVERS[kind]]
        made = f"tests.support.wsgi_app:make_{framework}"
        command += ["--bind", f"fd://{fd}", made + "()"] if "gunicorn" in command else [str(fd), framework]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | {SETTINGS: json.dumps(settings)},
                pass_fds=[fd],
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        listener.close()

    def connect(self) -> Connection:
        return Connection(self.port)

    def post(self, key: str | None, **options: Any) -> Reply:
        with self.connect() as connection:
            return connection.post(key, **options)

    def counts(self) -> dict[str, int]:
        with self.connect() as connection:
            connection.send(b"GET /counts HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")
            counts: dict[str, int] = json.loads(connection.read().body)
        return counts

    @property
    def effects(self) -> int:
        return self.counts()["effects"]

    def stop(self) -> int:
        """Ask it to stop, and return its exit code; whatever of it is left is killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # its own session: the server and its workers
            self.process.wait(10)


@contextlib.contextmanager
def serving(kind: str, folder: Path, framework: str = "wsgi", **policy: Any) -> Iterator[Server]:
    """A server on the SQLite store of a folder, which several may share."""
    settings = {
        "effects": str(folder / "effects"),
        "policy": policy,
        "door": {"store": f"sqlite:///{folder / 'keys.db'}"},
    }
    with tempfile.TemporaryDirectory() as own:
        server = Server(kind, settings, framework, Path(own) / "log")
        try:
            yield server
        finally:
            server.stop()


def until(condition: Callable[[], Any], limit: float = 20) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def main(kind: str, fd: int, framework: str) -> None:
    from tests.support import wsgi_app

    app = getattr(wsgi_app, f"make_{framework}")()
    listener = socket.socket(fileno=fd)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if kind == "waitress":
        import waitress

        waitress.serve(app, sockets=[listener], threads=60)
    elif kind == "werkzeug":
        from werkzeug.serving import make_server

        host, port = listener.getsockname()
        make_server(host, port, app, threaded=True, fd=fd).serve_forever()
    else:
        from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

        server = WSGIServer(listener.getsockname(), WSGIRequestHandler, bind_and_activate=False)
        server.socket = listener
        server.server_name, server.server_port = "t", 80
        server.setup_environ()
        server.set_app(app)
        # no sys.exit in mid-request: its handler takes any exception for the application's
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever(0.05)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
