"""How the demo's gunicorn ends with whoever started it."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from twiceproof.cli._demo import gunicorn_settings

WATCH = """
import os, signal, sys
from twiceproof.cli._demo import gunicorn_settings
signal.signal(signal.SIGTERM, lambda *_: None)
gunicorn_settings._watch(int(sys.argv[1]))
print("left alone")
"""


@dataclass
class Worker:
    ppid: int = 1


def test_without_a_lifeline_nothing_is_watched(monkeypatch):
    """Who serves the application by hand closes its input without harm."""
    monkeypatch.delenv("TWICEPROOF_DEMO_LIFELINE", raising=False)
    before = threading.active_count()
    gunicorn_settings.post_worker_init(Worker())
    assert threading.active_count() == before


@pytest.mark.parametrize("ours", [True, False], ids=["its server", "another process"])
def test_the_end_of_the_input_ends_the_server_and_nobody_else(ours):
    """Bytes mean nothing, only their end does; a server that is gone is not mistaken for who has its place."""
    told = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        worker = subprocess.run(
            [sys.executable, "-c", WATCH, str(os.getpid() if ours else os.getpid() + 1)],
            input="some bytes\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (worker.returncode, worker.stdout, worker.stderr) == (0, "left alone\n", "")
    assert told == ([signal.SIGTERM] if ours else [])
