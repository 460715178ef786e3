"""What the pages and the example of the blocking doors show runs as they say."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.docs_pages import DOCS, ROOT, Answer, blocks, command_lines, curl, send

WAITRESS = ["-m", "waitress", "--listen=127.0.0.1:{}", "app:app"]
GUNICORN = ["-m", "gunicorn", "--bind", "127.0.0.1:{}", "--log-level", "warning", "app:app"]
FLASK = ["-m", "flask", "--app", "flask_app", "run", "--port", "{}"]


@contextlib.contextmanager
def served(command: list[str], folder: Path) -> Iterator[int]:
    """Serve an application of a folder, in a process of its own; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *(word.format(port) for word in command)],
            cwd=folder,
            env=os.environ | {"HOME": str(folder)},
            stdout=log,
            stderr=log,
        )
    try:
        until = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command", "changed", "first"),
    [
        ("quickstart-flask.md", GUNICORN, ('"amount": 5', '"amount": 6'), '{"from":"alice","id":"tr_1"}'),
        ("quickstart-wsgi.md", WAITRESS, ("two pears", "three pears"), "order 1"),
    ],
)
def test_a_page_s_application_answers_its_curl_line_as_the_page_says(page, command, changed, first, tmp_path):
    """Saved as app.py and served as the page says: 201, then the same with the marker, then 422 for another payload."""
    (tmp_path / "app.py").write_text(blocks(DOCS / page, "python")[0])
    [request] = [curl(line) for line in command_lines(DOCS / page) if line.startswith("curl ")]
    with served(command, tmp_path) as port:
        seen = [send(port, request), send(port, request)]
        reuse = send(port, replace(request, body=request.body.replace(*changed)))
    seen = [replace(answer, body=answer.body.strip()) for answer in seen]
    assert seen == [Answer(201, first, replayed=False), Answer(201, first, replayed=True)]
    assert (reuse.status, reuse.replayed) == (422, False)
    assert first in (DOCS / page).read_text() or page == "quickstart-wsgi.md"


@pytest.mark.slow
def test_the_flask_example_answers_the_curl_line_in_its_docstring(tmp_path):
    """The same request twice: one transfer, and the same answer."""
    source = (ROOT / "examples" / "flask_app.py").read_text()
    (tmp_path / "flask_app.py").write_text(source)
    request = curl(source.split('"""')[1].partition("then twice:")[2].replace("\\\n", " ").strip())
    with served(FLASK, tmp_path) as port:
        first, again = send(port, request), send(port, request)
    assert (first.status, first.replayed) == (201, False)
    assert again == replace(first, replayed=True)
