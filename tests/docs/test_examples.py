"""What the pages show runs as they say."""

import subprocess
import sys
import types
import uuid
from dataclasses import replace

import psycopg
import pytest

from tests.support.docs_pages import DOCS, PAGES, ROOT, Answer, blocks, command_lines, curl, name, send, served

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WITH_CODE = [page for page in PAGES if blocks(page, "python")]


def curls(page):
    return [curl(line) for line in command_lines(page) if line.startswith("curl ")]


def other(request, before, after):
    """The same request with another payload."""
    return replace(request, url=request.url.replace(before, after), body=request.body.replace(before, after))


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
@pytest.mark.filterwarnings("ignore:by_authorization tells accounts apart")
def test_the_python_on_a_page_runs(page, tmp_path, monkeypatch):
    """Block after block, as a reader would type them into one file; its own assertions hold."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), module.__dict__)
    assert [key for key in vars(module) if not key.startswith("__")]


@pytest.mark.parametrize(
    ("page", "changed", "first"),
    [
        (ROOT / "README.md", ("amount=5", "amount=6"), '{"transfer":1,"amount":5}'),
        (DOCS / "quickstart-fastapi.md", ('"amount": 5', '"amount": 6'), '{"id":"tr_1","from":"alice"}'),
        (DOCS / "quickstart-asgi.md", ("two pears", "three pears"), "order 1"),
    ],
    ids=lambda value: name(value) if hasattr(value, "name") else "",
)
def test_a_page_s_application_answers_its_curl_line_as_the_page_says(page, changed, first, tmp_path):
    """Saved as app.py and served: 201, then the same with the marker, then 422 for another payload."""
    (tmp_path / "app.py").write_text(blocks(page, "python")[0])
    [request] = curls(page)
    with served("app:app", tmp_path) as port:
        seen = [send(port, request), send(port, request)]
        reuse = send(port, other(request, *changed))
    assert seen == [Answer(201, first, replayed=False), Answer(201, first, replayed=True)]
    assert (reuse.status, reuse.replayed) == (422, False)
    if page.name == "README.md":
        assert first in page.read_text()


@pytest.mark.parametrize("module", ["fastapi_transfers", "asgi_orders"])
def test_an_example_answers_the_curl_line_in_its_docstring(module, tmp_path):
    """The same request twice: one order, and the same answer."""
    source = (ROOT / "examples" / f"{module}.py").read_text()
    (tmp_path / f"{module}.py").write_text(source)
    command = source.split('"""')[1].partition("then twice:")[2]
    request = curl(command.replace("\\\n", " ").strip())
    with served(f"{module}:app", tmp_path) as port:
        first, again = send(port, request), send(port, request)
    assert (first.status, first.replayed) == (201, False)
    assert again == replace(first, replayed=True)


def test_the_example_on_postgresql_moves_money_once(postgresql_server, tmp_path, monkeypatch):
    """Prepared and served as its docstring says, and asked twice: one row, and the same answer."""
    database = f"example_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    url = postgresql_server.url.removesuffix("postgres") + database
    monkeypatch.setenv("DATABASE_URL", url)
    source = (ROOT / "examples" / "postgresql_app.py").read_text()
    (tmp_path / "postgresql_app.py").write_text(source)
    prepare = ["-m", "twiceproof.cli", "store", "init", url]
    assert 'twiceproof store init "$DATABASE_URL"' in source
    subprocess.run([sys.executable, *prepare], check=True, timeout=60, capture_output=True)
    request = curl(source.split('"""')[1].partition("then twice:")[2].replace("\\\n", " ").strip())
    with served("postgresql_app:app", tmp_path) as port:
        first, again = send(port, request), send(port, request)
    assert (first.status, first.body, first.replayed) == (201, '{"id":"tr_1","from":"alice"}', False)
    assert again == replace(first, replayed=True)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT payer, payee, amount FROM transfers").fetchall() == [("alice", "bob", 5)]


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (
            "queue_worker.py",
            ["m-1 200 invoice 1", "m-2 200 invoice 2", "m-1 200 invoice 1 (replayed)", "2 sent by this run"],
        ),
        (
            "reconcile_hook.py",
            [
                "first attempt: the reply of the provider was lost",
                "retry without a hook: 500",
                "retry with a hook: 201 b'paid'",
            ],
        ),
        (
            "custom_store.py",
            ["200 b'invoice 1' None", "200 b'invoice 1' b'true'", "1 sent"],
        ),
    ],
)
def test_an_example_program_prints_what_it_did(script, printed, tmp_path):
    """It ends by itself, and its effects are counted once."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [line.strip() for line in ran.stdout.splitlines()] == printed


def test_every_example_is_one_of_those_that_are_run():
    """None is left out above."""
    tested = {
        "asgi_orders.py",
        "custom_store.py",
        "fastapi_transfers.py",
        "flask_app.py",
        "postgresql_app.py",
        "queue_worker.py",
        "reconcile_hook.py",
    }
    assert {path.name for path in EXAMPLES} == tested
