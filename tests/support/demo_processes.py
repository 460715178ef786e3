"""Runs ``twiceproof demo`` as a process, and finds whatever it left behind."""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "TWICEPROOF_TEST_MARK"


class Demo:
    """A command line of the demo. Everything that it starts bears a mark in its environment."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "twiceproof.cli", "demo", *arguments],
            cwd=ROOT,
            env={**os.environ, MARK: self.mark, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, timeout: float = 100) -> tuple[int, str, str]:
        """Wait for its end; return exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    @property
    def left(self) -> Sequence[int]:
        """The processes that it started and that still live."""
        return marked(self.mark)

    def is_gone(self) -> bool:
        """Whether nothing that it started lives any more."""
        return not self.left


def marked(mark: str) -> Sequence[int]:
    """Return the living processes, ourselves apart, that bear the mark in the environment they were started with."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def wait_until(holds: Callable[[], object], timeout: float = 30) -> bool:
    """Say whether it comes to hold within a bound that only a hang reaches."""
    end = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
