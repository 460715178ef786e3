"""What is told of a PostgreSQL before the first request: its URL, its driver, the server, who we are there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.stores.postgresql_support import STORES, Place
from tests.support.demo_processes import wait_until
from twiceproof.errors import ConfigurationError
from twiceproof.stores import open_async_store, open_store
from twiceproof.stores.postgresql import PostgresqlStore
from twiceproof.testing.servers import PostgresqlServer

SHORT = 0.4


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresqlServer]:
    """A server that these tests may stop."""
    with PostgresqlServer({"fsync": "off"}) as server:
        PostgresqlStore(server.url).init()
        yield server


def test_a_server_that_is_not_there_is_a_warning(own):
    """R48: a worker may start while the database restarts; its requests are answered 503 meanwhile."""
    (note,) = PostgresqlStore("postgresql://postgres@127.0.0.1:1/postgres", timeout=SHORT).check()
    assert "Connection refused" in note
    assert note.endswith(".")
    own.pause()
    try:
        (note,) = PostgresqlStore(own.url, timeout=SHORT).check()
    finally:
        own.resume()
    assert "no answer within" in note


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("/postgres", "/nowhere"), 'database "nowhere" does not exist'),
        (("//postgres@", "//nobody@"), 'role "nobody" does not exist'),
    ],
)
def test_a_server_that_does_not_let_us_in_is_an_error(postgresql_server, kind_url, change, sentence):
    """R41: at start-up, in one sentence, without a password."""
    before, after = change
    head, at, tail = kind_url(postgresql_server.url).rpartition("@")
    url = (
        f"{head}{at}{tail}".replace(before, after)
        if before.startswith("//")
        else f"{head}{at}{tail.replace(before, after)}"
    )
    with pytest.raises(ConfigurationError, match=sentence):
        open_async_store(url).check()


@pytest.fixture(params=["postgresql", "postgresql+asyncpg"])
def kind_url(request):
    return lambda url: url.replace("postgresql:", f"{request.param}:")


def test_a_wrong_password_is_an_error_that_does_not_repeat_it(tmp_path):
    """R41: the right one works, the wrong one is told, neither is shown."""
    with PostgresqlServer({"fsync": "off"}) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE app LOGIN PASSWORD 'right-horse'")
            (file,) = connection.execute("SHOW hba_file").fetchone() or ()
            with open(file, "w") as hba:  # noqa: PTH123  # the server's own
                hba.write("host all postgres 127.0.0.1/32 trust\nhost all app 127.0.0.1/32 scram-sha-256\n")
            connection.execute("SELECT pg_reload_conf()")
        PostgresqlStore(server.url).init()
        for scheme in ("postgresql", "postgresql+asyncpg"):
            url = f"{scheme}://app:{{}}@127.0.0.1:{server.port}/postgres"
            with pytest.raises(ConfigurationError, match="password authentication failed") as caught:
                open_async_store(url.format("wrong-horse")).check()
            assert "horse" not in str(caught.value)
            store = open_async_store(url.format("right-horse"))
            with pytest.raises(ConfigurationError, match="needs SELECT, INSERT, UPDATE and DELETE"):
                store.check()
            assert "horse" not in f"{store} {store!r} {vars(store)}"


def test_what_costs_durability_is_told():
    """R21: an operator hears that a crash may lose records, and that a standby writes none."""
    with PostgresqlServer({"fsync": "off", "synchronous_commit": "off"}) as server:
        store = PostgresqlStore(server.url)
        store.init()
        assert [note.partition(": ")[0].rpartition(" with ")[2] for note in store.check()] == [
            "fsync = off",
            "synchronous_commit = off",
        ]


def test_check_leaves_nothing_open(postgresql_server, table):
    """R41: it runs at import time, before a fork."""
    store = PostgresqlStore(f"{table.url}?application_name=checked", schema=table.schema)
    assert store.check() == []
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'checked'"
    assert wait_until(lambda: table.connection.execute(count).fetchone() == (0,))
    assert store._lanes._made == {}


def test_a_table_that_lacks_a_column_is_an_error(postgresql_server):
    """R54: somebody else's table of that name is not taken for ours."""
    place = Place(postgresql_server.url)
    place.connection.execute(f"ALTER TABLE {place.table} DROP COLUMN answer")
    with pytest.raises(ConfigurationError, match="lacks the column answer"):
        place.store().check()
    place.remove()


def test_the_renewer_is_a_blocking_store_on_one_connection(table):
    """R31: for the engine's own thread, whatever the colour."""
    for kind in STORES.values():
        renewer = table.store(kind, pgbouncer=True).renewer()
        assert type(renewer) is PostgresqlStore
        assert (renewer._address.connections, renewer._address.schema, renewer._address.pgbouncer) == (
            1,
            table.schema,
            True,
        )


@pytest.mark.parametrize(
    ("missing", "sentence"), [("psycopg", "twiceproof[postgresql]"), ("asyncpg", "twiceproof[asyncpg]")]
)
def test_a_missing_driver_says_what_to_install(missing, sentence):
    """An extra that isn't there is one line that can be copied."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from twiceproof.stores import open_async_store\n"
        "open_async_store('postgresql+asyncpg://localhost/app')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"pip install '{sentence}'" in done.stderr.splitlines()[-1]


def test_stores_are_imported_without_a_driver():
    """Nobody who keeps records elsewhere needs one."""
    code = "import sys, twiceproof; assert not {'psycopg', 'asyncpg', 'redis'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---- URLs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://app:secret@db:6432/keys?sslmode=require", "db:6432/keys"),
        ("postgresql+asyncpg://app:secret@db/keys?schema=s&table=t&connections=3&pgbouncer=true", "db:5432/keys"),
        ("postgres://a:1,b/keys", "a:1,b:5432/keys"),
        ("postgresql://[::1]:5433/keys", "[::1]:5433/keys"),
        ("postgresql:///keys?host=/run/postgresql", "/run/postgresql:5432/keys"),
    ],
)
def test_where_the_records_are_is_told_without_a_password(url, where):
    """A URL's options are ours or the driver's, and messages name host, port and database only."""
    stores: tuple[Any, ...] = (open_store(url), open_async_store(url))
    for store in stores:
        assert str(store) == f"postgresql, {where}"
        assert "secret" not in repr(store._address)


def test_our_options_reach_the_store_and_the_drivers_stay():
    """By URL or by argument; the URL wins."""
    store = PostgresqlStore(
        "postgresql://h/d?schema=s&connections=3&sslmode=disable&pgbouncer=yes", table="t", schema="x"
    )
    made = store._address
    assert (made.name, made.connections, made.pgbouncer) == ('"s"."t"', 3, True)
    assert made.url == "postgresql://h/d?sslmode=disable"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://h/d?scheme=s", "did you mean 'schema'?"),
        ("postgresql://h/d?connections=0", "at least 1"),
        ("postgresql://h/d?connections=65", "from 1 to 64"),
        ("postgresql://h/d?pgbouncer=maybe", "must be true or false"),
        ("postgresql://h/d?table=a;b", "must be a name"),
        ('postgresql://h/d?table="', "must be a name"),
        (f"postgresql://h/d?schema={'a' * 49}", "at most 48"),
        ("postgresql+asyncpg://h/d?keepalives=1", "no option 'keepalives'"),
        ("postgresql://u:secret#x@h/d", "write %23 for a # in a password"),
        ("postgresql://u:sec/ret@h/d", "can't be read"),
        ("postgresql://u:pa@secret@h/d", "can't be read"),
        ("postgresql://u:secret@h:99999/d", "can't be read"),
        ("postgresql://u:secret%zz@h/d", "can't be read"),
        ("postgresql://u:12/secret@h/d", "can't be read"),
        ("postgresql+psycopg://h/d", "did you mean"),
    ],
)
def test_a_url_that_makes_no_sense_is_a_sentence(url, sentence):
    """R41: it says what to write instead, and repeats no password."""
    with pytest.raises(ConfigurationError) as caught:
        open_async_store(url)
    assert sentence in str(caught.value)
    assert "sec" not in str(caught.value)
