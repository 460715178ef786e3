"""Races at every isolation level, as a database may have it by default and pgbouncer keeps us from changing it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.stores.postgresql_support import STORES
from tests.support.demo_processes import wait_until
from twiceproof.core._record import Done, Found, Granted, Held
from twiceproof.errors import StoreUnavailable
from twiceproof.stores._postgresql_verbs import claim as claim_verb
from twiceproof.stores.postgresql import PostgresqlStore
from twiceproof.testing import Driven
from twiceproof.testing._server import free_port
from twiceproof.testing.store_contract._ground import new_record

ROOT = Path(__file__).parents[2]
LEVELS = ["read committed", "repeatable read", "serializable"]
KEYS, COPIES, PROCESSES = 12, 6, 4


@pytest.fixture(scope="module", params=LEVELS)
def database(request, postgresql_server) -> Iterator[str]:
    """The URL of a database of its own in which transactions have this level unless they say otherwise."""
    name = request.param.replace(" ", "_")
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{request.param}'".encode())
        url = postgresql_server.url.removesuffix("/postgres") + f"/{name}"
        PostgresqlStore(url).init()
        yield url
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def empty(database) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection
        connection.execute("DELETE FROM twiceproof_record")


def race(url: str, kind: str, *, pgbouncer: bool) -> Counter[str]:
    """Return how often each answer came, of all processes together."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.stores.postgresql_child", url, kind]
    rest = [str(KEYS), str(COPIES), "pgbouncer" if pgbouncer else "direct"]
    children = [
        subprocess.Popen(
            [*command, str(number), *rest],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        for number in range(PROCESSES)
    ]
    answers: Counter[str] = Counter()
    try:
        assert [child.stdout.readline() for child in children if child.stdout] == ["ready\n"] * PROCESSES
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in children:
            said, _ = child.communicate(timeout=60)
            answers.update(json.loads(said))
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return answers


def one_each(answers: Counter[str]) -> None:
    """Check that of each key one call was granted and completed, and all others were shown its record."""
    for key in range(KEYS):
        mine = {answer.split()[1]: count for answer, count in answers.items() if answer.split()[0] == str(key)}
        assert (mine.pop("Granted"), mine.pop("Done")) == (1, 1), mine
        assert set(mine) <= {"Held", "Found"}
        assert sum(mine.values()) == PROCESSES * COPIES - 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_processes_that_race_each_get_a_definite_answer(database, empty, kind):
    """R22, B01, B35: whatever the level, one is granted; a serialization failure is repeated inside, never shown."""
    one_each(race(database, kind, pgbouncer=True))


def test_our_own_connections_read_committed_whatever_the_default(database, empty):
    """A lost race is then never an error, and each claim one round trip."""
    for kind in STORES.values():
        store = kind(database)
        assert store._address.settings["default_transaction_isolation"] == "read committed"
    store = PostgresqlStore(database)
    store.get(b"x")
    lane: Any = next(slot.lane for slot in store._lanes.mine._free if slot.lane)
    assert lane.execute("SELECT current_setting('transaction_isolation')", ()) == [("read committed",)]
    store.close()


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("pinned", [True, False], ids=["direct", "as behind pgbouncer"])
@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_a_claim_that_meets_an_uncommitted_one_is_definite(database, empty, kind, pinned, ends):
    """B35: the loser waits for the winner, which claimed inside a transaction of its own, and is then Held or granted.

    The statement works on a foreign connection, and commits nothing by itself.
    """
    new = new_record()
    made = STORES[kind](database, timeout=10.0, pgbouncer=not pinned)
    store = Driven(made) if "async" in kind else made
    store.get(b"x")
    answers: list[object] = []
    with psycopg.connect(database, cursor_factory=psycopg.RawCursor) as winner:
        verb = claim_verb(made._sql, new, 60.0, b"winner", None)
        rows = winner.execute(verb.statement.one.encode(), verb.values, binary=True).fetchall()
        assert type(verb.answer(rows)) is Granted
        loser = threading.Thread(target=lambda: answers.append(store.claim(new, 60.0, b"loser")))
        loser.start()
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        assert wait_until(lambda: empty.execute(blocked, (winner.info.backend_pid,)).fetchone() == (1,))
        winner.commit() if ends == "commits" else winner.rollback()
        loser.join(20)
    assert [type(answer) for answer in answers] == [Held if ends == "commits" else Granted]
    getattr(store, "stop", store.close)()


# ---- pgbouncer -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pgbouncer(database) -> Iterator[str]:
    """The URL of the database through a pgbouncer of our own, in transaction mode, with fewer servers than clients."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "pgbouncer is missing: apt-get install pgbouncer"
    folder, port = Path(tempfile.mkdtemp(prefix="twiceproof-pgbouncer-")), free_port()  # where its user may look
    address, _, name = database.rpartition("/")
    server_port = address.rpartition(":")[2]
    (folder / "users").write_text('"postgres" ""\n')
    ini = folder / "pgbouncer.ini"
    ini.write_text(
        f"""[databases]
{name} = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 3
"""
    )
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        for path in (folder, folder / "users", ini):
            os.chown(path, 65534, 65534)
        user = {"user": 65534, "group": 65534, "extra_groups": ()}
    process = subprocess.Popen([program, "-q", str(ini)], cwd=folder, **user)
    try:
        assert wait_until(lambda: listens(port))
        yield f"{address.rpartition(':')[0]}:{port}/{name}"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


@pytest.mark.slow
@pytest.mark.debian
@pytest.mark.parametrize("kind", STORES)
def test_processes_race_through_pgbouncer(pgbouncer, empty, kind):
    """R22: in its transaction mode, where statements of one client go to several servers; no prepared ones."""
    one_each(race(f"{pgbouncer}?pgbouncer=true", kind, pgbouncer=True))


@pytest.mark.debian
@pytest.mark.parametrize("kind", STORES)
def test_every_verb_works_through_pgbouncer(pgbouncer, empty, kind):
    """The option in the URL is enough, and the check finds nothing to say."""
    made = STORES[kind](f"{pgbouncer}?pgbouncer=true", timeout=5.0)
    store = Driven(made) if "async" in kind else made
    assert store.check() == []
    new, other = new_record(), new_record()
    for one in (new, other):
        assert type(store.claim(one, 30.0, b"n1")) is Granted
    assert store.complete(new.id, b"n1", b"answer", 30.0) == Done()
    assert store.park(other.id, b"n1", "exception") == Done()
    assert type(store.claim(new, 30.0, b"n2")) is Found
    assert store.purge(10).records == 0
    made.init()
    getattr(store, "stop", store.close)()


@pytest.mark.debian
@pytest.mark.parametrize("kind", STORES)
def test_pgbouncer_without_the_option_is_told_what_to_add(pgbouncer, empty, kind):
    """An operator reads which option is missing, at start-up and in the 503's log."""
    made = STORES[kind](pgbouncer, timeout=5.0)
    store = Driven(made) if "async" in kind else made
    with pytest.raises(StoreUnavailable, match="pgbouncer=true"):
        store.get(b"x")
    with pytest.raises(ValueError, match="pgbouncer=true"):
        store.check()
    getattr(store, "stop", store.close)()
