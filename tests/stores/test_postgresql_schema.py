"""The table of the PostgreSQL store: made, missing, and of another release."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.stores.postgresql_support import STORES, Place, opened
from tests.support.demo_processes import wait_until
from twiceproof.core._record import Granted
from twiceproof.errors import ConfigurationError, StoreUnavailable, UnknownFormat
from twiceproof.stores.postgresql import PostgresqlStore
from twiceproof.testing.store_contract._ground import new_record


@pytest.fixture(scope="module")
def table(postgresql_server) -> Iterator[Place]:
    place = Place(postgresql_server.url)
    yield place
    place.remove()


@pytest.fixture
def place(table) -> Iterator[Place]:
    yield table
    table.clear()


@pytest.fixture(params=STORES)
def kind(request):
    return request.param


@pytest.fixture
def store(place, kind) -> Iterator:
    with opened(place, kind) as store:
        yield store


def test_init_may_be_run_at_once_and_again(postgresql_server):
    """R54: several processes start together; each finds or makes the whole."""
    url = f"{postgresql_server.url}?schema=at_once"
    gate = threading.Barrier(6)

    def init(_: int) -> None:
        gate.wait()
        PostgresqlStore(url, timeout=10.0).init()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(init, range(6)))
    store = PostgresqlStore(url)
    store.init()
    assert store.check() == []
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA at_once CASCADE")


def test_the_schema_is_the_sql_that_init_runs(postgresql_server):
    """`twiceproof store schema | psql` does as well, in any colour, under names that need quoting."""
    for kind in STORES.values():
        store = kind(postgresql_server.url, schema="By_Hand", table="Select")
        with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
            connection.execute(store.schema().encode())
            assert store.check() == []
            connection.execute('DROP SCHEMA "By_Hand" CASCADE')


def test_a_missing_table_is_one_sentence_that_says_what_to_do(postgresql_server, kind):
    """R41: at start-up an error; in a verb 503, also where the table went away under an open connection."""
    place = Place(postgresql_server.url)
    with opened(place, kind) as store:
        store.get(b"x")
        place.connection.execute(f"DROP TABLE {place.table}")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="twiceproof store init"):
                store.claim(new_record(), 30.0, b"n1")
            store.close()
        with pytest.raises(ConfigurationError, match="twiceproof store init"):
            store.check()
        place.store().init()
        assert wait_until(lambda: granted(store))
    place.remove()


def granted(store) -> bool:
    """Whether a claim is granted by now: a store that could not connect rests for a moment."""
    try:
        return type(store.claim(new_record(), 30.0, b"n1")) is Granted
    except StoreUnavailable:
        return False


def test_a_table_of_a_later_release_is_not_touched(postgresql_server, kind):
    """R54: a sentence at start-up, `UnknownFormat` in verbs, and no `init` makes it older again."""
    place = Place(postgresql_server.url)
    place.connection.execute(f"COMMENT ON TABLE {place.table} IS 'twiceproof schema 2: later'")
    with opened(place, kind) as store:
        for _ in range(2):
            with pytest.raises(UnknownFormat, match="later release"):
                store.claim(new_record(), 30.0, b"n1")
        for refused in (store.open, store.check, place.store().init):
            with pytest.raises(ConfigurationError, match="later release"):
                refused()
    place.remove()


def test_a_comment_that_got_lost_is_mended_by_init(postgresql_server):
    """R54: a dump without comments is restored; the table is not taken on trust, and init marks it again."""
    place = Place(postgresql_server.url)
    place.connection.execute(f"COMMENT ON TABLE {place.table} IS NULL")
    store = place.store()
    with pytest.raises(ConfigurationError, match="does not say of which schema"):
        store.check()
    store.init()
    assert store.check() == []
    place.remove()
