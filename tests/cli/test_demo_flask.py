"""``twiceproof demo --server flask``: the same scenes against Flask under gunicorn with several workers."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.demo_processes import ROOT, Demo, wait_until
from twiceproof.cli._demo.place import CannotRun
from twiceproof.cli._demo.run import SERVERS, play, service
from twiceproof.cli._demo.scenes import SCENES
from twiceproof.cli.demo import demo

pytestmark = pytest.mark.slow


def started_by(pid: int) -> set[int]:
    """The living processes in the sessions that a process has opened for its children.

    gunicorn writes its title over its environment, so a mark in that would not be seen.
    """
    found: set[tuple[int, int, int]] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            parts = (folder / "stat").read_text().rpartition(") ")[2].split()
            if parts[0] != "Z":
                found.add((int(folder.name), int(parts[1]), int(parts[3])))
    sessions = {own for own, parent, session in found if parent == pid and session == own}
    return {own for own, _, session in found if session in sessions}


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Demo]]:
    """Demos that a test starts; whatever happens, none of their processes outlives it."""
    demos: list[Demo] = []
    yield demos
    for one in demos:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def start(started: list[Demo], folder: Path, *arguments: str) -> Demo:
    started.append(Demo(folder, "--server", "flask", "--port", "0", *arguments))
    return started[-1]


def test_every_scene_is_as_promised_on_flask_too(started: list[Demo], tmp_path: Path):
    """The same scenes, the same expectations, the same count of effects; nothing of it is left afterwards."""
    demo = start(started, tmp_path, "--json")
    assert demo.process.stderr is not None
    demo.process.stderr.readline()
    family = started_by(demo.process.pid)
    code, out, _ = demo.end()
    report = json.loads(out)
    assert [scene for scene in report["scenes"] if not scene["ok"]] == []
    assert [scene["name"] for scene in report["scenes"]] == [scene.name for scene in SCENES]
    assert (code, report["ok"], report["intents"], report["effects"]) == (0, True, 15, 15)
    assert (len(family), [pid for pid in family if alive(pid)], list(tmp_path.iterdir())) == (3, [], [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process_behind(started: list[Demo], tmp_path: Path, number: int):
    """Neither Ctrl-C nor kill -9 of the demo orphans gunicorn or its workers."""
    demo = start(started, tmp_path)
    assert demo.process.stderr is not None
    assert "first request" in demo.process.stderr.readline()
    family = started_by(demo.process.pid)
    demo.process.send_signal(number)
    gone = wait_until(lambda: not any(map(alive, family)))
    for pid in family:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    demo.end()
    assert (len(family), gone) == (3, True)


def test_the_scenes_can_fail_on_flask(monkeypatch):
    """A service without the layer answers its marked views with 500, and the scenes say so."""
    monkeypatch.chdir(ROOT)
    with service(0, "tests.support.demo_flask_apps:not_installed()", "flask") as stage:
        report, workers = play(SCENES[:2], stage), stage.workers()
        assert "did not come through install(app)" in stage.log.read_text()
    assert [(result.ok, result.effects) for result in report.results] == [(False, 0)] * 2
    assert [alive(pid) for pid in workers] == [False, False]


def test_the_service_refuses_what_no_account_may_ask(monkeypatch):
    """As real ones do: nobody is 401, nonsense is 422, and a token is revoked by its own account only."""
    monkeypatch.chdir(ROOT)
    good = {"intent": "i", "to": "bob", "amount": 1}
    with service(0, "twiceproof.cli._demo.service_flask:make_app()", "flask") as stage:

        def sent(method, target, document=None, token="demo-alice", key="k"):
            fields = [("Content-Type", "application/json"), ("Authorization", f"Bearer {token}")]
            fields += [("Idempotency-Key", key)] if method == "POST" else []
            return stage.wire.ask(method, target, fields, json.dumps(document).encode()).status

        nobody = [sent("POST", "/transfers", good, token) for token in ("", "no-such-token")]
        nonsense = [
            sent("POST", "/transfers", document, key=f"k{n}")
            for n, document in enumerate([{}, good | {"x": 1}, good | {"amount": 0}, good | {"to": 5}])
        ]
        others = sent("DELETE", "/tokens/demo-alice", token="demo-bob")
        still = sent("POST", "/transfers", good)
    assert (nobody, nonsense, others, still) == ([401, 401], [422] * 4, 204, 201)


def test_a_service_that_cannot_start_says_why():
    """An application that fails at its import is not started again and again; its own error is the message."""
    before = started_by(os.getpid())  # servers of other tests
    with pytest.raises(CannotRun, match="No module named 'no_such_module'"), service(0, "no_such_module:app", "flask"):
        raise AssertionError("unreachable")
    assert started_by(os.getpid()) - before == set()


def test_the_servers_on_offer_are_those_there_are():
    """--server takes each of them."""
    [option] = [option for option in demo.params if option.name == "server"]
    assert list(getattr(option.type, "choices", ())) == list(SERVERS)
