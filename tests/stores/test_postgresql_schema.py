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


@pytest.fixture
def own(postgresql_server) -> Iterator[Place]:
    """A table that a test may spoil."""
    place = Place(postgresql_server.url)
    yield place
    place.remove()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ALTER TABLE {} SET UNLOGGED", "a crash of PostgreSQL empties the table"),
        ("ALTER TABLE {} DROP CONSTRAINT twiceproof_record_pkey", "nothing keeps ids"),
        ("ALTER TABLE {} DROP COLUMN nonce", "lacks the column nonce; if it is somebody else's, choose another name"),
        ("COMMENT ON TABLE {} IS 'our keys'", "remove its comment first"),
    ],
    ids=["unlogged", "no primary key", "a column gone", "another comment"],
)
def test_a_table_that_can_t_keep_the_promise_is_refused_at_start_up(own, kind, statement, said):
    """R21, R22, R41: what would run a handler twice, or fail each claim, is told before the first request."""
    own.connection.execute(statement.format(own.table))
    with opened(own, kind) as store, pytest.raises(ConfigurationError, match=said):
        store.check()


def user_of(place: Place, name: str, *grants: str) -> PostgresqlStore:
    """Return a store of a new user, who has these rights."""
    place.connection.execute(f"DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN")
    for grant in grants:
        place.connection.execute(grant)
    url = place.url.replace("//postgres@", f"//{name}@")
    return PostgresqlStore(url, schema=place.schema, timeout=5.0)


def dropped(place: Place, name: str) -> None:
    place.connection.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def test_records_hidden_by_row_security_are_told(own):
    """R41: a claim would not see the records of others."""
    everything = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {own.table} TO hidden"
    store = user_of(own, "hidden", f"GRANT USAGE ON SCHEMA {own.schema} TO hidden", everything)
    assert store.check() == []
    own.connection.execute(f"ALTER TABLE {own.table} ENABLE ROW LEVEL SECURITY")
    with pytest.raises(ConfigurationError, match="row level security"):
        store.check()
    dropped(own, "hidden")


def test_init_waits_for_nobody_where_all_is_there(own):
    """A deploy may run it while the application writes: it takes no lock, so no claim queues behind it."""
    with psycopg.connect(own.url) as writer:
        writer.execute(f"LOCK TABLE {own.table} IN ACCESS EXCLUSIVE MODE")
        own.store(timeout=0.5).init()
        writer.rollback()


def test_init_that_must_wait_gives_up_in_time_and_says_so(own):
    """Within the time-out it was given; nothing was made."""
    own.connection.execute(f"DROP INDEX {own.schema}.twiceproof_record_age")
    with psycopg.connect(own.url) as writer:
        writer.execute(f"LOCK TABLE {own.table} IN ROW EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match=r"for longer than 0.3 s, so nothing was made"):
            own.store(timeout=0.3).init()
        writer.rollback()
    own.store().init()
    found = own.connection.execute("SELECT to_regclass(%s)", (f"{own.schema}.twiceproof_record_age",)).fetchone()
    assert found != (None,)


def test_init_needs_rights_on_its_schema_only_and_none_where_all_is_there(own):
    """An owner of the schema makes the table; who may only read finds it made."""
    own.connection.execute(f"DROP TABLE {own.table}")
    maker = user_of(own, "maker", f"GRANT USAGE, CREATE ON SCHEMA {own.schema} TO maker")
    maker.init()
    assert maker.check() == []
    reader = user_of(own, "reader", f"GRANT USAGE ON SCHEMA {own.schema} TO reader")
    reader.init()
    own.connection.execute(f"DROP TABLE {own.table}")
    with pytest.raises(ConfigurationError, match=f"grant it CREATE on the schema {own.schema}, or let an owner"):
        reader.init()
    for name in ("maker", "reader"):
        dropped(own, name)


def test_init_does_not_touch_a_table_of_somebody_else(own):
    """It has the columns of our indexes, and is not ours all the same."""
    own.connection.execute(
        f"DROP TABLE {own.table}; CREATE TABLE {own.table} (expires_at float8, created_at float8, mine int)"
    )
    with pytest.raises(ConfigurationError, match=r"lacks the column id; .* choose another name"):
        own.store().init()
    told = "SELECT count(*), obj_description(%s::regclass, 'pg_class') FROM pg_indexes WHERE schemaname = %s"
    assert own.connection.execute(told, (own.table, own.schema)).fetchone() == (0, None)
