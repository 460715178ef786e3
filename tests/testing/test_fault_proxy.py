"""The fault proxy does to a real server's connections what it says, and nothing else."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import psycopg
import pytest
import redis

from tests.support.demo_processes import wait_until
from tests.support.fault_proxy import Fault, FaultProxy


@pytest.fixture
def proxy(valkey_server) -> Iterator[FaultProxy]:
    with FaultProxy(valkey_server.port) as proxy:
        yield proxy


@pytest.fixture
def direct(valkey_server) -> Iterator[redis.Redis]:
    """What the server itself knows, past the proxy."""
    with redis.Redis.from_url(valkey_server.url, socket_timeout=5) as client:
        client.flushdb()
        yield client


@contextlib.contextmanager
def connected(proxy: FaultProxy, timeout: float = 5.0) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout) as connection:
        yield connection


def increment(connection: socket.socket) -> bytes:
    connection.sendall(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n")
    return connection.recv(100)


def test_it_passes_everything_on_and_counts_it(proxy, direct):
    """Connections, requests and bytes of both directions."""
    with connected(proxy) as one, connected(proxy) as two:
        assert [increment(one), increment(two), increment(one)] == [b":1\r\n", b":2\r\n", b":3\r\n"]
        assert [link.requests for link in proxy.open_links] == [2, 1]
        assert (proxy.requests, proxy.counted) == (3, (3 * 21, 3 * 4))
    assert wait_until(lambda: not proxy.open_links)
    assert proxy.faults == []


def test_bodies_of_a_megabyte_pass_whole(proxy, direct):
    """Packets of one request count as one."""
    with redis.Redis(port=proxy.port, socket_timeout=5, protocol=2, driver_info=None) as client:
        client.ping()
        before = proxy.requests
        assert client.set("big", b"x" * 1_000_000) is True
        assert proxy.requests == before + 1
        assert client.get("big") == b"x" * 1_000_000
    assert direct.strlen("big") == 1_000_000


def test_refused_until_restored(proxy, direct):
    """New connections meet nobody, open ones are reset, the port stays ours."""
    with connected(proxy) as connection:
        assert increment(connection) == b":1\r\n"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            increment(connection)
    with pytest.raises(ConnectionRefusedError), connected(proxy):
        pass
    proxy.restore()
    with connected(proxy) as connection:
        assert increment(connection) == b":2\r\n"


def test_cut_ends_what_is_open_and_nothing_else(proxy, direct):
    """A client that comes back is served."""
    with connected(proxy) as one:
        assert increment(one) == b":1\r\n"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            one.recv(100)
        with connected(proxy) as two:
            assert increment(two) == b":2\r\n"


def test_a_lost_reply_was_acted_upon(proxy, direct):
    """R48: the second request from now reaches the server, and its client learns nothing."""
    with connected(proxy) as connection:
        proxy.drop_reply(2)
        assert increment(connection) == b":1\r\n"
        with pytest.raises(ConnectionResetError):
            increment(connection)
    assert direct.get("n") == b"2"
    assert proxy.faults == [Fault.REPLY_LOST]
    with connected(proxy) as connection:
        assert increment(connection) == b":3\r\n"


def test_a_lost_request_was_not(proxy, direct):
    """R48: to its client it looks the same."""
    with connected(proxy) as connection:
        proxy.drop_request()
        with pytest.raises(ConnectionResetError):
            increment(connection)
    assert direct.get("n") is None
    assert proxy.faults == [Fault.REQUEST_LOST]


def test_half_a_reply_then_nothing(proxy, direct):
    """The client has a part of it in its hands."""
    direct.set("text", "0123456789")
    with connected(proxy) as connection:
        proxy.halve_reply()
        connection.sendall(b"*2\r\n$3\r\nGET\r\n$4\r\ntext\r\n")
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(100):
                got += part
    assert got in {b"$10\r\n0123", b""}  # a reset may overtake what was not read
    assert proxy.faults == [Fault.REPLY_HALVED]


def test_a_black_hole_takes_everything_until_restored(proxy, direct):
    """It accepts, and never answers; what it took bytes of is cut at the end, the rest goes on."""
    with connected(proxy, 0.1) as old, connected(proxy) as silent:
        assert increment(old) == b":1\r\n"
        assert increment(silent) == b":2\r\n"
        proxy.swallow()
        with pytest.raises(TimeoutError):
            increment(old)
        with connected(proxy, 0.1) as new, pytest.raises(TimeoutError):
            increment(new)
        proxy.restore()
        with pytest.raises(ConnectionResetError):
            old.recv(100)
        assert increment(silent) == b":3\r\n"


def test_slow_replies_come_after_the_effect_and_slow_requests_before_it(proxy, direct):
    """B31: a client that gives up may have acted already, or may act later."""
    with connected(proxy, 0.05) as connection:
        proxy.delay(replies=60.0)
        with pytest.raises(TimeoutError):
            increment(connection)
        assert direct.get("n") == b"1"
    proxy.restore()
    with connected(proxy, 0.05) as connection:
        proxy.delay(requests=0.5)
        with pytest.raises(TimeoutError):
            increment(connection)
        assert direct.get("n") == b"1"
        assert wait_until(lambda: direct.get("n") == b"2")


def test_a_delay_is_what_it_says(proxy, direct):
    """Both directions add up."""
    with connected(proxy) as connection:
        proxy.delay(requests=0.1, replies=0.1)
        began = time.monotonic()
        assert increment(connection) == b":1\r\n"
        assert time.monotonic() - began >= 0.2


def test_a_server_that_is_not_there_looks_like_a_cut(proxy):
    """The proxy itself listens, so the client finds out a moment later."""
    proxy.upstream = 1
    with pytest.raises((ConnectionResetError, BrokenPipeError)), connected(proxy) as connection:
        increment(connection)


def test_a_commit_whose_reply_is_lost_is_there(postgresql_server):
    """R48: PostgreSQL commits before it replies, and the driver says that its connection is gone."""
    with psycopg.connect(postgresql_server.url, autocommit=True) as direct:
        direct.execute("CREATE TABLE lost_reply (n int)")
        with FaultProxy(postgresql_server.port) as proxy:
            connection = psycopg.connect(proxy.url(postgresql_server.url), autocommit=True)
            proxy.drop_reply()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("INSERT INTO lost_reply VALUES (1)")
            assert connection.closed
            assert proxy.faults == [Fault.REPLY_LOST]
        assert direct.execute("SELECT count(*) FROM lost_reply").fetchone() == (1,)
        direct.execute("DROP TABLE lost_reply")
