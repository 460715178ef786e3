"""The pages of the project as a test reads them: their code blocks, and applications that they describe, served."""

from __future__ import annotations

import contextlib
import http.client
import re
import shlex
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *DOCS.rglob("*.md")])

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name(page: Path) -> str:
    """How a test's id calls a page."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks of a page in those languages."""
    return [text for language, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def command_lines(page: Path) -> list[str]:
    """The commands that a page shows, continued lines joined, without prompts and comments."""
    text = "\n".join(blocks(page, "sh", "console")).replace("\\\n", " ")
    return [line.removeprefix("$ ").strip() for line in text.splitlines() if line.strip()]


@dataclass
class Curl:
    """What a curl command sends."""

    url: str
    method: str = "GET"
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: str = ""


def curl(command: str) -> Curl:
    """Read a curl command that uses nothing but -i, -X, -H and -d."""
    program, *words = shlex.split(command)
    assert program == "curl"
    sent, rest = Curl(""), iter(words)
    for word in rest:
        match word:
            case "-i":
                pass
            case "-X":
                sent.method = next(rest)
            case "-H":
                field_name, _, value = next(rest).partition(": ")
                sent.headers.append((field_name, value))
            case "-d":
                sent.body, sent.method = next(rest), "POST"
            case _:
                assert not word.startswith("-"), word
                sent.url = word
    if sent.body and not any(field_name.lower() == "content-type" for field_name, _ in sent.headers):
        sent.headers.append(("Content-Type", "application/x-www-form-urlencoded"))
    return sent


@dataclass
class Answer:
    """What came back."""

    status: int
    body: str
    replayed: bool


def send(port: int, request: Curl) -> Answer:
    """Send a request to a local port, whatever its URL says."""
    parts = urlsplit(request.url)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(request.method, target, request.body or None, dict(request.headers))
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode(), answer.getheader("idempotent-replayed") == "true")


@contextlib.contextmanager
def served(application: str, folder: Path) -> Iterator[int]:
    """Serve ``module:app`` of a folder with uvicorn, in a process of its own; yields the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", application, "--port", str(port), "--log-level", "warning"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _await_port(process, port)
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=20)


def _await_port(process: subprocess.Popen[str], port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.terminate()
    output, _ = process.communicate(timeout=20)
    raise AssertionError(textwrap.shorten(output, 2000))
