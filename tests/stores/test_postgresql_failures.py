"""PostgreSQL that is slow, gone or restarted: every verb ends in time, and says what it knows."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.stores.postgresql_support import STORES
from tests.support.demo_processes import wait_until
from tests.support.fault_proxy import FaultProxy
from twiceproof.core._record import Done, Found, Granted
from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores.postgresql import PostgresqlStore
from twiceproof.testing import Driven
from twiceproof.testing.servers import PostgresqlServer
from twiceproof.testing.store_contract._ground import new_record

SHORT = 0.4


@pytest.fixture
def proxy(postgresql_server) -> Iterator[FaultProxy]:
    with FaultProxy(postgresql_server.port) as proxy:
        yield proxy


@pytest.fixture(params=STORES)
def store(request, table, proxy) -> Iterator:
    """A store behind a faulty network, warm."""
    made = STORES[request.param](
        proxy.url(table.url), schema=table.schema, timeout=SHORT, _clock=f"{table.schema}.now()"
    )
    store = Driven(made) if "async" in request.param else made
    wait_until(lambda: reached(store))
    yield store
    getattr(store, "stop", store.close)()
    table.clear()


def reached(store) -> bool:
    try:
        store.get(b"x")
    except StoreUnavailable:
        return False
    return True


def test_a_network_that_swallows_everything_is_answered_in_time(store, proxy):
    """R48: the outcome is unknown within the time-out; a new connection that gets no answer wrote nothing."""
    new = new_record()
    proxy.swallow()
    began = time.monotonic()
    with pytest.raises(StoreOutcomeUnknown, match="did not answer within"):
        store.claim(new, 30.0, b"n1")
    assert SHORT * 0.9 <= time.monotonic() - began < SHORT * 2
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="can't connect") as caught:
        store.claim(new, 30.0, b"n1")
    assert type(caught.value) is StoreUnavailable
    assert time.monotonic() - began < SHORT * 2
    proxy.restore()
    assert wait_until(lambda: reached(store))
    assert type(store.claim(new, 30.0, b"n1")) is Granted


def test_a_lost_reply_is_unknown_and_the_same_call_finds_its_own_grant(store, proxy):
    """R48: the server acted; the nonce tells, and completing again is done."""
    new = new_record()
    proxy.drop_reply()
    with pytest.raises(StoreOutcomeUnknown, match="may have acted"):
        store.claim(new, 30.0, b"n1")
    assert type(store.claim(new, 30.0, b"n1")) is Granted
    store.complete(b"absent", b"n1", b"", 30.0)  # a statement's first use is two requests
    proxy.drop_reply()
    with pytest.raises(StoreOutcomeUnknown):
        store.complete(new.id, b"n1", b"answer", 30.0)
    assert store.complete(new.id, b"n1", b"again", 30.0) == Done()
    assert type(store.claim(new, 30.0, b"n2")) is Found
    assert store.get(new.id).answer == b"answer"


def test_half_a_reply_is_no_reply(store, proxy):
    """R48: what can't be read whole is not believed."""
    proxy.halve_reply()
    with pytest.raises(StoreOutcomeUnknown):
        store.claim(new_record(), 30.0, b"n1")
    assert type(store.claim(new_record(), 30.0, b"n1")) is Granted


def test_connections_that_were_cut_while_idle_are_noticed(store, proxy):
    """A server that was restarted, or a firewall that forgot us: the next verb connects anew and says nothing."""
    proxy.cut()
    assert wait_until(lambda: not proxy.open_links)
    for _ in range(3):
        assert type(store.claim(new_record(), 30.0, b"n1")) is Granted


def test_a_refused_connection_wrote_nothing_and_rests_for_a_moment(store, proxy):
    """R48: definite, at once, and once more without asking."""
    proxy.refuse()
    assert wait_until(lambda: not proxy.open_links)
    assert not reached(store)  # this one may find its connection broken
    with pytest.raises(StoreUnavailable) as caught:
        store.claim(new_record(), 30.0, b"n1")
    assert type(caught.value) is StoreUnavailable
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.claim(new_record(), 30.0, b"n1")
    assert time.monotonic() - began < 0.1
    proxy.restore()
    assert wait_until(lambda: reached(store))


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresqlServer]:
    """A server that these tests may stop."""
    with PostgresqlServer({"fsync": "off"}) as server:
        PostgresqlStore(server.url).init()
        yield server


@pytest.fixture(params=STORES)
def on_own(request, own) -> Iterator:
    made = STORES[request.param](own.url, timeout=SHORT)
    store = Driven(made) if "async" in request.param else made
    assert wait_until(lambda: reached(store))
    yield store
    getattr(store, "stop", store.close)()


def test_a_paused_server_is_answered_for_in_time(own, on_own):
    """R48: SIGSTOP of the whole server: unknown, then unavailable, each within the time-out; then all is well."""
    own.pause()
    try:
        began = time.monotonic()
        with pytest.raises(StoreOutcomeUnknown):
            on_own.claim(new_record(), 30.0, b"n1")
        with pytest.raises(StoreUnavailable, match="can't connect"):
            on_own.claim(new_record(), 30.0, b"n1")
        assert time.monotonic() - began < 4 * SHORT
    finally:
        own.resume()
    assert wait_until(lambda: reached(on_own))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_server_that_comes_back_is_used_again(own, on_own, how):
    """R25, R48: in good order or after kill -9; what was answered before is replayed."""
    new = new_record(id=f"{how} {id(on_own)}".encode())
    on_own.claim(new, 30.0, b"n1")
    on_own.complete(new.id, b"n1", b"answer", 30.0)
    if how == "kill":
        own.kill()
        with pytest.raises(StoreUnavailable):
            on_own.claim(new, 30.0, b"n2")
        own.start()
    else:
        own.restart()
    assert wait_until(lambda: reached(on_own))
    assert on_own.claim(new, 30.0, b"n2").record.answer == b"answer"
