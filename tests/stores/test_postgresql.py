"""What is special about PostgreSQL: round trips, what a text may hold, later formats, processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tests.stores.postgresql_support import Place, opened
from tests.support.demo_processes import wait_until
from tests.support.fault_proxy import FaultProxy
from twiceproof.core._record import FORMAT, Absent, ClaimRef, Done, Fenced, Found, Granted, Held
from twiceproof.errors import UnknownFormat
from twiceproof.stores import Filter, Purged
from twiceproof.stores._postgresql_verbs import escaped, unescaped
from twiceproof.stores.postgresql import AsyncpgStore, AsyncPostgresqlStore
from twiceproof.testing.store_contract._ground import AGAIN, new_record


@pytest.fixture
def store(place, kind) -> Iterator:
    with opened(place, kind) as store:
        yield store


def test_every_verb_is_one_round_trip(postgresql_server, place, kind):
    """R22, R25, R27, R28: whatever the answer, a verb is one request and one reply on a connection that is warm."""
    with FaultProxy(postgresql_server.port) as proxy:
        through = Place.__new__(Place)
        through.url, through.schema = proxy.url(place.url), place.schema
        with opened(through, kind, connections=1) as store:
            for warm in (False, True):
                new, lapsed = new_record(), new_record(AGAIN)
                ref = ClaimRef(new.id, b"n1")
                steps = [
                    (partial(store.claim, new, 5.0, b"n1"), Granted),
                    (partial(store.claim, new, 5.0, b"n1"), Granted),
                    (partial(store.claim, new, 5.0, b"n2"), Held),
                    (partial(store.renew, [ref, ClaimRef(new.id, b"n2")], 5.0), list),
                    (partial(store.park, new.id, b"n1", "exception"), Done),
                    (partial(store.claim_unsettled, new.id, 5.0, b"h1", 0.0), Granted),
                    (partial(store.claim_unsettled, new.id, 5.0, b"h2", 0.0), Held),
                    (partial(store.claim, new, 5.0, b"n3", b"h1"), Granted),
                    (partial(store.complete, new.id, b"n3", b"answer", 5.0), Done),
                    (partial(store.complete, new.id, b"n3", b"answer", 5.0), Done),
                    (partial(store.complete, new.id, b"n1", b"answer", 5.0), Fenced),
                    (partial(store.claim, new, 5.0, b"n4"), Found),
                    (partial(store.claim_unsettled, b"absent", 5.0, b"h1", 0.0), Absent),
                    (partial(store.claim, lapsed, -1.0, b"n1"), Granted),
                    (partial(store.claim, lapsed, 5.0, b"n2"), Granted),
                    (partial(store.release, lapsed.id, b"n2"), Done),
                    (partial(store.get, new.id), object),
                    (partial(store.scan, Filter()), object),
                    (partial(store.purge, 10), Purged),
                    (partial(store.forget, new.id, b"n3"), Done),
                ]
                for step, answer in steps:
                    before = proxy.requests
                    assert isinstance(step(), answer)
                    assert not warm or proxy.requests == before + 1, step


def test_a_replay_writes_nothing(place, store):
    """R25: no row version, no lock, no transaction id; the server's own counters say so."""
    done, flying = new_record(), new_record()
    for new in (done, flying):
        store.claim(new, 30.0, b"n1")
    store.complete(done.id, b"n1", b"answer", 30.0)
    look = f"SELECT id, ctid, xmin, xmax FROM {place.table} ORDER BY id"
    before = place.connection.execute(look).fetchall()
    newest = "SELECT pg_snapshot_xmax(pg_current_snapshot())"
    first = place.connection.execute(newest).fetchone()
    for number in range(5):
        assert type(store.claim(done, 30.0, b"other%d" % number)) is Found
        assert type(store.claim(flying, 30.0, b"other%d" % number)) is Held
    after = place.connection.execute(newest).fetchone()
    assert place.connection.execute(look).fetchall() == before
    assert after == first  # nobody drew a transaction id


# ---- values ----------------------------------------------------------------------------------------------------------


ODD = "a\\b\0c\ud800é€\U0001f600\\x00"


@pytest.mark.parametrize("text", ["", "plain /a%2Fb", ODD, "\\", "\0", "\x7f\x80", "\\u20ac"])
def test_no_text_is_lost_in_a_database_of_any_encoding(text):
    """R54: what PostgreSQL can't hold, or another encoding would change, is written in ASCII and read as it was."""
    assert unescaped(escaped(text)) == text
    assert escaped(text).isascii()
    assert "\0" not in escaped(text)


def test_odd_text_comes_back_and_is_found(store):
    """R16, R54: NUL and lone surrogates raise nothing, and a filter by them finds their record alone."""
    odd, plain = new_record(operation=ODD, path=ODD, namespace=ODD), new_record(operation="a\\b", path="a\\b")
    for new in (odd, plain):
        store.claim(new, 30.0, b"n1")
    store.park(odd.id, b"n1", ODD)
    record = store.get(odd.id)
    assert (record.operation, record.path, record.namespace, record.cause) == (ODD, ODD, ODD, ODD)
    assert [record.id for record in store.scan(Filter(operation=ODD)).records] == [odd.id]
    assert [record.id for record in store.scan(Filter(path="a\\b")).records] == [plain.id]


def test_a_record_of_a_later_format_is_left_alone(place, store):
    """R17, R53: found, never granted, renewed or purged by us, not even when its time is over."""
    new = new_record(AGAIN)
    store.claim(new, 1.0, b"n1")
    place.connection.execute(f"UPDATE {place.table} SET format = {FORMAT + 1}, expires_at = 1")
    assert type(store.claim(new, 30.0, b"n1")) is Found
    assert type(store.claim(new, 30.0, b"n2")) is Found
    assert type(store.claim_unsettled(new.id, 30.0, b"h1", 0.0, force=True)) is Found
    assert store.purge(10) == Purged(0, 0)
    assert store.complete(new.id, b"n1", b"answer", 30.0) == Done()


def test_a_word_of_a_later_release_is_an_unknown_format(place, store):
    """R17: 503, never a guess."""
    new = new_record()
    store.claim(new, 30.0, b"n1")
    place.connection.execute(f"UPDATE {place.table} SET state = 'dreaming'")
    with pytest.raises(UnknownFormat):
        store.claim(new, 30.0, b"n2")
    place.connection.execute(f"UPDATE {place.table} SET state = 'in_flight'")
    assert type(store.claim(new, 30.0, b"n2")) is Held


# ---- processes -------------------------------------------------------------------------------------------------------


FORKED = """
import os, sys
from tests.stores.postgresql_support import STORES
from twiceproof.testing.store_contract._ground import new_record
store = STORES["postgresql"](sys.argv[1])
store.claim(new_record(id=b"parent"), 30.0, b"n1")
mine = [slot.lane._connection.info.backend_pid for slot in store._lanes.mine._free if slot.lane]
child = os.fork()
if child == 0:
    assert type(store.claim(new_record(id=b"parent"), 30.0, b"n2")).__name__ == "Held"
    theirs = [slot.lane._connection.info.backend_pid for slot in store._lanes.mine._free if slot.lane]
    assert not set(mine) & set(theirs), (mine, theirs)
    store.close()
    sys.exit(0)  # with everything that runs at exit
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert type(store.claim(new_record(id=b"parent"), 30.0, b"n3")).__name__ == "Held"
assert mine == [slot.lane._connection.info.backend_pid for slot in store._lanes.mine._free if slot.lane]
store.close()
"""


def test_a_forked_child_has_connections_of_its_own(place):
    """R41: and it leaves the parent's alone when it ends."""
    url = f"{place.url}?schema={place.schema}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", FORKED, url], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_connections_go_when_the_store_is_closed(place, kind):
    """R41: the server has none left of ours, and a later verb connects again."""
    name = f"t{place.schema}"
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    through = Place.__new__(Place)
    through.url, through.schema = f"{place.url}?application_name={name}", place.schema
    with opened(through, kind) as store:
        for _ in range(2):
            store.get(b"x")
            assert place.connection.execute(count, (name,)).fetchone() == (1,)
            store.close()
            assert wait_until(lambda: place.connection.execute(count, (name,)).fetchone() == (0,))


def test_a_store_is_used_on_several_loops(place):
    """R41: each loop has its own connections; a loop that ended leaves nothing in the way."""
    for kind in (AsyncPostgresqlStore, AsyncpgStore):
        store = place.store(kind)

        async def claim(store, new):
            answer = await store.claim(new, 30.0, b"n1")
            await store.close()
            return type(answer)

        new = new_record()
        assert [asyncio.run(claim(store, new)) for _ in range(2)] == [Granted, Granted]
