"""Runs a server for as long as whoever asked for it lives: the program between a test and its server.

``python -I -S _server_guard.py SETTINGS``, with a JSON object: the ``command``, the ``folder`` of its data and log, and
the ``user`` (a pair of ids, or null). It writes the server's pid, and ends when the server and all its descendants have
ended. When the asker is gone instead, seen by the end of the standard input or by a new parent, it kills them all and
removes the folder. It stands on the standard library alone, and its helpers are also those of `servers`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LOOK_EVERY: Final = 0.25
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``, parents before children."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def _parents() -> list[tuple[int, int]]:
    """Return each process with its parent."""
    if not Path("/proc/self/stat").exists():  # not Linux
        lines = subprocess.run(["/bin/ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True).stdout
        numbers = [int(word) for word in lines.split()]
        return list(zip(numbers[::2], numbers[1::2], strict=True))
    found: list[tuple[int, int]] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            stat = (process / "stat").read_bytes()
            found.append((int(process.name), int(stat.rpartition(b")")[2].split()[1])))
    return found


def signal_all(pids: Sequence[int], number: int) -> None:
    """Send a signal to each of them that still lives."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def clear(folder: Path) -> None:
    """Remove the folder of a server that has ended, and what a killed PostgreSQL left outside of it."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        line = (folder / "data" / "postmaster.pid").read_text().splitlines()[6]  # there only after a kill
        ctypes.CDLL(None).shmctl(int(line.split()[1]), 0, None)  # its few bytes of shared memory: IPC_RMID
    shutil.rmtree(folder, ignore_errors=True)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _spawn(command: list[str], folder: str, user: Sequence[int] | None) -> int:
    """Start the server as a child that dies with this process."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        if user is not None:
            os.setgroups([])
            os.setgid(user[1])
            os.setuid(user[0])
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which takes it back
        if os.getppid() != guard:
            os._exit(1)
        os.chdir(folder)
        log = os.open(Path(folder, "server.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for ours, theirs in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(ours, theirs)
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except BaseException as error:  # noqa: BLE001 - a forked child must never go on as its parent
        os.write(2, f"{command[0]}: {error}\n".encode())
    os._exit(127)


def _reaped() -> bool:
    """Take the exit of whatever ended; say whether nothing is left below us."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return False
    return True


def main() -> None:
    """Run one server."""
    settings = json.loads(sys.argv[1])
    asker = os.getppid()
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whatever a killed server leaves behind becomes ours to wait for
    server = _spawn(settings["command"], settings["folder"], settings["user"])
    os.write(1, b"%d\n" % server)
    while not _reaped():
        readable, _, _ = select.select([0, wakes], [], [], LOOK_EVERY)
        if wakes in readable:
            os.read(wakes, 4096)
        if 0 in readable or os.getppid() != asker:
            while not _reaped():
                signal_all(descendants(os.getpid()), signal.SIGKILL)
                select.select([wakes], [], [], 0.01)
            clear(Path(settings["folder"]))


if __name__ == "__main__":
    main()
