"""The demo's service is a program of its own: workers on one socket, kept alive, and never orphaned."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.demo_processes import MARK, ROOT, marked, wait_until
from twiceproof.cli._demo.wire import Lost, Wire


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running service, and the mark that all its processes bear."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "twiceproof.cli._demo.serve", "--port", "0"]
    command += ["--store", f"sqlite:///{tmp_path}/keys.db", "--effects", str(tmp_path / "effects.db")]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, text=True)
    try:
        yield process, mark
    finally:
        process.kill()
        process.communicate()
        wait_until(lambda: not marked(mark), 10)
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


def serving(process: subprocess.Popen[str], workers: int = 2) -> Wire:
    """Wait until so many workers have started; return how to talk to them."""
    assert process.stdout is not None
    wire = Wire(process.stdout.readline().strip())
    assert wait_until(lambda: len(pids(wire)) >= workers)
    return wire


def pids(wire: Wire) -> list[int]:
    try:
        found: list[int] = wire.ask("GET", "/workers").document.get("pids", [])
    except Lost:  # a worker that is being killed may have accepted the connection
        return []
    return found


def test_a_killed_worker_is_started_again_while_the_other_serves(server):
    """After kill -9 of a worker there are two again, at the same address."""
    process, mark = server
    wire = serving(process)
    first, second = pids(wire)
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: len(pids(wire)) == 3)
    assert sorted(marked(mark)) == sorted([process.pid, second, pids(wire)[2]])


def test_a_terminated_supervisor_ends_its_workers(server):
    """SIGTERM ends the program in good order."""
    process, mark = server
    serving(process)
    process.terminate()
    assert (process.wait(30), marked(mark)) == (0, [])


def test_a_killed_supervisor_orphans_no_worker(server):
    """Workers end by themselves when their supervisor is killed."""
    process, mark = server
    serving(process)
    process.kill()
    process.wait()
    assert wait_until(lambda: not marked(mark))


def test_two_accounts_and_their_books_are_there_from_the_start(server):
    """The API keeps apart who asks, refuses whom it doesn't know, and counts what really happened."""
    process, _ = server
    wire = serving(process)
    body = b'{"intent": "order-1", "to": "acct_7", "amount": 5}'
    fields = [("Content-Type", "application/json"), ("Idempotency-Key", "k-1")]
    seen = [
        wire.ask("POST", "/transfers", [*fields, ("Authorization", f"Bearer {token}")], body).status
        for token in ("demo-alice", "demo-bob", "demo-nobody")
    ]
    books = wire.ask("GET", "/effects?intent=order-1").document
    assert (seen, books["effects"]) == ([201, 201, 401], 2)
    assert [(one["account"], one["effects"]) for one in books["intents"]] == [("alice", 1), ("bob", 1)]
