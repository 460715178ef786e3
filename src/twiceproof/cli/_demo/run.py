"""Start the service, play the scenes against it, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twiceproof.cli._demo.place import CannotRun, place
from twiceproof.cli._demo.scene import Result, Scene, perform
from twiceproof.cli._demo.stage import LIVELY, Stage
from twiceproof.cli._demo.wire import Lost, Wire

LEASE: Final = 2.0
"""Short, so that a demo can outlive some; long enough for a slow machine to renew it in time."""
STORE_TIMEOUT: Final = 1.0
WORKERS: Final = 2
GRACE: Final = 15.0
_RAISED: Final = re.compile(r"[A-Za-z_.]+(Error|Exception|Exit)\b")


@dataclass(frozen=True, slots=True)
class Server:
    """A way to serve the API: the program that does, and the packages it needs."""

    program: str
    needs: tuple[str, ...]


SERVERS: Final = {
    "fastapi": Server("twiceproof.cli._demo.serve", ("fastapi", "uvicorn")),
    "flask": Server("twiceproof.cli._demo.serve_flask", ("flask", "gunicorn")),
}


@dataclass(frozen=True, slots=True)
class Report:
    """What came of all scenes. ``intents`` is what clients wanted done, ``effects`` what the books say."""

    results: tuple[Result, ...]
    intents: int
    effects: int

    @property
    def ok(self) -> bool:
        """Whether everything was as promised."""
        return all(result.ok for result in self.results)

    def document(self) -> dict[str, Any]:
        """Return the report for programs."""
        scenes = [
            {
                "name": result.name,
                "expected": result.expected,
                "seen": result.seen,
                "effects": result.effects,
                "ok": result.ok,
                "detail": "; ".join(result.detail),
            }
            for result in self.results
        ]
        return {"scenes": scenes, "intents": self.intents, "effects": self.effects, "ok": self.ok}


def play(
    scenes: Sequence[Scene],
    stage: Stage,
    before: Callable[[Scene], None] = lambda _: None,
    after: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Play the scenes one after the other; ``before`` and ``after`` are told of each."""
    started = stage.books().effects
    results: list[Result] = []
    for scene in scenes:
        before(scene)
        results.append(perform(scene, stage))
        after(results[-1])
    return Report(tuple(results), sum(scene.intents for scene in scenes), stage.books().effects - started)


@contextlib.contextmanager
def service(
    port: int | None = None, app: str | None = None, server: str = "fastapi", store: str = "sqlite"
) -> Generator[Stage]:
    """Serve the payments API until the block ends, on files and servers of its own; raises `CannotRun`.

    Without a ``port`` it is 8642, or where that is taken any free one. ``app`` is another application for the same
    ``server``, which is one of `SERVERS`. ``store`` is one of `place.KINDS`, or a URL.
    """
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="twiceproof-demo-", ignore_cleanup_errors=True))
        folder = Path(name)
        where = stack.enter_context(place(store, folder))
        command = [sys.executable, "-m", SERVERS[server].program, "--lifeline"]
        command += [] if app is None else ["--app", app]
        command += ["--workers", str(WORKERS), *(["--or-any-port"] if port is None else ["--port", str(port)])]
        command += ["--effects", str(folder / "effects.db")]
        command += ["--lease", f"{LEASE:g}", "--store-timeout", f"{STORE_TIMEOUT:g}"]
        log = folder / "service.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **os.environ,
                    "TWICEPROOF_DEMO_STORE": where.url,
                },  # a command line is seen by all; it has a password
                start_new_session=True,  # a Ctrl-C is ours to handle: the service ends after us
            )
        stack.callback(_end, process)
        yield Stage(_await(process, log), where, log, folder, LEASE)


def _await(process: subprocess.Popen[str], log: Path) -> str:
    """Return the address of the service once every worker serves."""
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    wire = Wire(url) if url else None
    end = time.monotonic() + LIVELY
    while wire is not None and process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(Lost):
            if len(wire.ask("GET", "/workers").document.get("pids", ())) >= WORKERS:
                return url
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise CannotRun(_why(log))


def _why(log: Path) -> str:
    """Return the line of a log that says why a service did not start: the end of a traceback, else the last one."""
    said = last_words(log, 50)
    if not said:
        return "The service did not start, and did not say why."
    return next((line for line in reversed(said) if _RAISED.match(line)), said[-1])


def last_words(log: Path, count: int) -> Sequence[str]:
    """Return the last lines that a service wrote."""
    return log.read_text(errors="replace").strip().splitlines()[-count:]


def _end(process: subprocess.Popen[str]) -> None:
    """Let go of the service's standard input, at which it ends by itself; what is left after a while is killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: the supervisor and its workers
        process.wait()
    finally:
        process.stdout.close()
