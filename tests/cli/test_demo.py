"""``twiceproof demo`` starts a real service, plays every scene, tells the truth about it, and leaves nothing behind."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.support.demo_processes import MARK, ROOT, Demo, marked, wait_until
from twiceproof.cli._demo.place import CannotRun
from twiceproof.cli._demo.run import play, service
from twiceproof.cli._demo.scenes import SCENES
from twiceproof.cli._demo.wire import Wire
from twiceproof.cli._output import Cannot
from twiceproof.cli.demo import demo

LONG = ("outlives", "killed", "store gone")
QUICK = [scene for scene in SCENES if not any(word in scene.name for word in LONG)]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Demo]]:
    """Demos that a test starts; whatever happens, none of their processes outlives it."""
    demos: list[Demo] = []
    yield demos
    for one in demos:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
        wait_until(one.is_gone, 10)
        for pid in one.left:
            os.kill(pid, signal.SIGKILL)


def start(started: list[Demo], folder: Path, *arguments: str) -> Demo:
    started.append(Demo(folder, "--port", "0", *arguments))
    return started[-1]


def until_line(demo: Demo, word: str) -> str:
    """Read the demo's progress until a line has the word."""
    assert demo.process.stderr is not None
    for line in demo.process.stderr:
        if word in line:
            return line
    raise AssertionError(f"it ended without saying {word}")


@pytest.mark.slow
def test_every_scene_is_as_promised_and_the_service_stays_up_on_request(started: list[Demo], tmp_path: Path):
    """The document says of each scene what was expected and seen; every intent had one effect; with --keep the
    service answers afterwards at the address it names, until Ctrl-C, and then nothing of it is left."""
    demo = start(started, tmp_path, "--json", "--keep")
    url = until_line(demo, "The service is up").split()[5].rstrip(",")
    assert Wire(url).ask("GET", "/effects").document["effects"] == sum(scene.effects for scene in SCENES)
    demo.process.send_signal(signal.SIGINT)
    code, out, _ = demo.end()
    report = json.loads(out)
    assert [scene for scene in report["scenes"] if not scene["ok"]] == []
    assert [scene["name"] for scene in report["scenes"]] == [scene.name for scene in SCENES]
    assert {*report["scenes"][0]} == {"name", "expected", "seen", "effects", "ok", "detail"}
    assert (code, report["ok"], report["intents"], report["effects"]) == (0, True, 15, 15)
    assert (demo.left, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.slow
def test_a_service_without_protection_differs_in_every_scene_but_the_first(started: list[Demo], tmp_path: Path):
    """The demo can fail: without protection every retry is another effect, the table says so, the exit code is 1."""
    demo = start(started, tmp_path, "--app", "tests.support.demo_apps:unprotected")
    code, out, err = demo.end()
    progress = [line.rpartition(": ")[2] for line in err.splitlines()]
    assert progress == ["as promised"] + ["DIFFERS"] * (len(SCENES) - 1)
    assert f"{len(SCENES)} scenes, 1 as promised" in out
    assert "50 requests were carried out instead of 1" in out
    assert (code, demo.left, list(tmp_path.iterdir())) == (1, [], [])


@pytest.mark.slow
def test_a_service_that_mixes_accounts_differs_in_that_scene_alone(monkeypatch, tmp_path: Path):
    """A broken promise shows where it is broken: one space for all accounts is seen by the scene of two accounts."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(MARK, tmp_path.name)
    with service(0, "tests.support.demo_apps:one_space") as stage:
        report = play(QUICK, stage)
    assert [result.name for result in report.results if not result.ok] == ["another account, same key"]
    assert marked(tmp_path.name) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_nothing_behind(started: list[Demo], tmp_path: Path, number: int, code: int):
    """Ctrl-C or a SIGTERM in the middle of the scenes ends the service and removes its files."""
    demo = start(started, tmp_path)
    until_line(demo, "reply lost")
    running = len(demo.left)
    demo.process.send_signal(number)
    seen = demo.end()[0]
    assert (running >= 4, seen, demo.left, list(tmp_path.iterdir())) == (True, code, [], [])


def test_a_killed_demo_leaves_no_process_behind(started: list[Demo], tmp_path: Path):
    """Not even kill -9 of the demo orphans the service: it ends when whoever started it is gone."""
    demo = start(started, tmp_path)
    until_line(demo, "first request")
    demo.process.kill()
    demo.end()
    assert wait_until(demo.is_gone)


def test_a_taken_port_is_told_in_one_sentence(started: list[Demo], tmp_path: Path):
    """A port that somebody else listens on ends the demo with exit code 2 and a sentence that names it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        started.append(Demo(tmp_path, "--port", str(port)))
        code, out, err = started[0].end()
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"Port {port} " in err
    assert "--port" in err
    assert (started[0].left, list(tmp_path.iterdir())) == ([], [])


def test_a_missing_extra_is_told_with_what_to_install(monkeypatch):
    """Without uvicorn the demo says what to install, before it starts anything."""
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    with pytest.raises(Cannot) as told:
        demo.main([], standalone_mode=False)
    assert (told.value.exit_code, "pip install 'twiceproof[demo]'" in told.value.message) == (2, True)
    assert "uvicorn" in told.value.message


def test_a_service_that_cannot_start_says_why(monkeypatch, tmp_path: Path):
    """An application that fails at its import is not started again and again; its own last words are the message."""
    monkeypatch.setenv(MARK, tmp_path.name)
    with pytest.raises(CannotRun, match="no_such_module"), service(0, "no_such_module:app"):
        raise AssertionError("unreachable")
    assert marked(tmp_path.name) == []


@pytest.mark.slow
def test_the_usual_port_gives_way_when_nobody_asked_for_it(monkeypatch, tmp_path: Path):
    """Without --port, a second demo beside the first takes another port."""
    monkeypatch.setenv(MARK, tmp_path.name)
    with service() as first, service() as second:
        assert first.url != second.url
        assert (first.books().effects, second.books().effects) == (0, 0)
    assert marked(tmp_path.name) == []


def test_help_has_examples():
    """--help shows how it is called, and says nothing of what is for tests."""
    text = demo.get_help(click.Context(demo))
    assert "twiceproof demo --keep" in text
    assert "--app" not in text
