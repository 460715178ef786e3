"""Serve the demo's API: worker processes on one listening socket, each started again when it dies.

``python -m twiceproof.cli._demo.serve --port 8642 --store sqlite:///keys.db --effects effects.db``
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

SERVICE: Final = "twiceproof.cli._demo.service:app"
STARTUP_FAILURE: Final = 3
"""How uvicorn ends where the application can't start; starting it again would change nothing."""
TICK: Final = 0.05
GRACE: Final = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    options = _options(arguments)
    if options.worker is not None:
        work(options.worker, options.app)
        return 0
    try:
        listener = listen(options.port)
    except OSError as error:
        print(f"port {options.port} can't be listened on: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 2
    for name in ("store", "effects", "lease", "store_timeout"):
        if (value := getattr(options, name)) is not None:
            os.environ[f"TWICEPROOF_DEMO_{name.upper()}"] = value
    supervisor = Supervisor(listener, options.app, options.workers)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    if options.lifeline:
        threading.Thread(target=_until_closed, args=(supervisor.stop,), daemon=True).start()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)  # noqa: T201  # whoever started us reads it
    return supervisor.run()


def listen(port: int) -> socket.socket:
    """Return the socket that all workers accept from; port 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(512)
    except OSError:
        listener.close()
        raise
    return listener


def work(fd: int, app: str) -> None:
    """Be a worker: serve until the supervisor lets go of our standard input, also by its own death."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3, lifespan="on")
    server = uvicorn.Server(config)

    def leave() -> None:
        server.should_exit = True

    threading.Thread(target=_until_closed, args=(leave,), daemon=True).start()
    server.run(sockets=[socket.socket(fileno=fd)])
    if not server.started:
        sys.exit(STARTUP_FAILURE)


class Supervisor:
    """Keeps so many workers alive on one socket."""

    def __init__(self, listener: socket.socket, app: str, workers: int) -> None:
        self._listener = listener
        self._app = app
        self._count = workers
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End `run`; safe in a signal handler and from another thread."""
        self._stopped.set()

    def run(self) -> int:
        """Start the workers, start the dead again, and end them all at last; returns an exit code."""
        inner, lifeline = os.pipe()  # the workers' standard input: it closes with us, however we end
        workers = [self._start(inner) for _ in range(self._count)]
        code = 0
        try:
            while not self._stopped.is_set() and not code:
                for at, worker in enumerate(workers):
                    if worker.poll() == STARTUP_FAILURE:
                        code = 1
                    elif worker.returncode is not None:
                        workers[at] = self._start(inner)
                time.sleep(TICK)  # not Event.wait: a signal handler that sets it would lock the waiting thread
        finally:
            os.close(lifeline)
            _end(workers)
            os.close(inner)
            self._listener.close()
        return code

    def _start(self, stdin: int) -> subprocess.Popen[bytes]:
        fd = self._listener.fileno()
        command = [sys.executable, "-m", "twiceproof.cli._demo.serve", "--worker", str(fd), "--app", self._app]
        return subprocess.Popen(command, stdin=stdin, pass_fds=[fd], stdout=subprocess.DEVNULL)  # noqa: S603


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + GRACE
    for worker in workers:
        try:
            worker.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _until_closed(then: threading.Thread | object) -> None:
    while os.read(0, 1024):
        pass
    then()  # type: ignore[operator]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m twiceproof.cli._demo.serve", description=__doc__)
    parser.add_argument("--port", type=int, default=8642, help="0 takes a free one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", help="URL of the store that keeps the keys")
    parser.add_argument("--effects", help="SQLite file in which effects are counted")
    parser.add_argument("--lease", help="seconds that a claim holds without renewal")
    parser.add_argument("--store-timeout", help="seconds that one verb of the store may take")
    parser.add_argument("--app", default=SERVICE, help="the ASGI application to serve")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
