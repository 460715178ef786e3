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
import traceback
from collections.abc import Callable, Sequence
from typing import Final

SERVICE: Final = "twiceproof.cli._demo.service:app"
STARTUP_FAILURE: Final = 3
"""How a worker ends that never served; starting it again would change nothing."""
TICK: Final = 0.05
GRACE: Final = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    options = read_options(arguments, SERVICE)
    if options.worker is not None:
        work(options.worker, options.app)
        return 0
    listener = announced(options)
    if listener is None:
        return 2
    supervisor = Supervisor(listener, options.app, options.workers)

    def leave(_: int, __: object) -> None:
        supervisor.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    if options.lifeline:
        threading.Thread(target=_until_closed, args=(supervisor.stop,), daemon=True).start()
    return supervisor.run()


def announced(options: argparse.Namespace) -> socket.socket | None:
    """Listen, say where, and hand the options on to the service; None, and a sentence, where that can't be."""
    try:
        listener = listen(options.port, or_any=options.or_any_port)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        print(f"Port {options.port} can't be listened on ({why}); choose another, or --port 0.", file=sys.stderr)  # noqa: T201
        return None
    for name in ("store", "effects", "lease", "store_timeout"):
        if (value := getattr(options, name)) is not None:
            os.environ[f"TWICEPROOF_DEMO_{name.upper()}"] = value
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)  # noqa: T201  # whoever started us reads it
    return listener


def listen(port: int, *, or_any: bool = False) -> socket.socket:
    """Return the socket that all workers accept from; port 0 takes a free one, and so does ``or_any`` if need be."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=512)
    except OSError:
        if not or_any:
            raise
        return socket.create_server(("127.0.0.1", 0), backlog=512)


def work(fd: int, app: str) -> None:
    """Be a worker: serve until the supervisor lets go of our standard input, also by its own death."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3, lifespan="on")
    server = uvicorn.Server(config)

    def leave() -> None:
        server.should_exit = True

    threading.Thread(target=_until_closed, args=(leave,), daemon=True).start()
    with socket.socket(fileno=fd) as listener:
        try:
            server.run(sockets=[listener])
        except SystemExit:  # uvicorn's, which has said why
            pass
        except Exception:  # noqa: BLE001  # whatever an application raises when it is imported
            traceback.print_exc()
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


def _until_closed(then: Callable[[], None]) -> None:
    while os.read(0, 1024):
        pass
    then()


def read_options(arguments: Sequence[str] | None, app: str) -> argparse.Namespace:
    """Return the options of the program that serves ``app`` unless it is told another."""
    parser = argparse.ArgumentParser(description="Serve the demo's API.")
    parser.add_argument("--port", type=int, default=8642, help="0 takes a free one")
    parser.add_argument("--or-any-port", action="store_true", help="take a free one where that is taken")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", help="URL of the store that keeps the keys")
    parser.add_argument("--effects", help="SQLite file in which effects are counted")
    parser.add_argument("--lease", help="seconds that a claim holds without renewal")
    parser.add_argument("--store-timeout", help="seconds that one verb of the store may take")
    parser.add_argument("--app", default=app, help="the application to serve")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
