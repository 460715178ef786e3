"""How gunicorn serves the demo's Flask application: ``--config python:twiceproof.cli._demo.gunicorn_settings``."""

from __future__ import annotations

import os
import signal
import threading
from typing import Protocol

worker_class = "gthread"
threads = 64
"""More than the scenes send at once to one worker."""
graceful_timeout = 3
loglevel = "warning"
control_socket_disable = True
"""Nobody talks to this server but by HTTP; releases before 25.1 have no such socket."""


class Worker(Protocol):
    """What we use of gunicorn's worker."""

    ppid: int


def post_worker_init(worker: Worker) -> None:
    """End the server when its standard input closes, also by the death of whoever started it."""
    if os.environ.get("TWICEPROOF_DEMO_LIFELINE"):
        threading.Thread(target=_watch, args=(worker.ppid,), daemon=True).start()


def _watch(server: int) -> None:
    while os.read(0, 1024):
        pass
    if os.getppid() == server:  # else it is gone already, and its workers end by themselves
        os.kill(server, signal.SIGTERM)
