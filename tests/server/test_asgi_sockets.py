"""The ASGI door over real sockets, under uvicorn with each of its HTTP parsers (R2-R6, R11, R25, R43-R46, R50-R52)."""

import contextlib
import hashlib
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.asgi_server import Server, serving
from tests.support.raw_http import Connection, Reply, request

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["h11", "httptools"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving({"max_request_bytes": 200_000, "max_response_bytes": 10_000}, http=request.param) as running:
        yield running


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"key-{next(_numbers)}"


def settled(server: Server, key: str, **options: str) -> Reply:
    """Ask again until the key is in flight no more."""
    deadline = time.monotonic() + 10
    while True:
        reply = server.post(key, **options)
        if reply.code != "in-progress" or time.monotonic() > deadline:
            return reply
        time.sleep(0.02)


def test_a_first_answer_is_the_bare_applications_byte_for_byte(server, key):
    """R52, B27: the same head and body on the wire, but for the moment and the process."""
    with serving(bare=True, http=server.http) as bare:
        expected = bare.post(key, x_mode="empty")
    seen = server.post(key, x_mode="empty")
    assert [field for field in seen.headers if field[0] != b"date"] == [
        field for field in expected.headers if field[0] != b"date"
    ]
    assert (seen.status, seen.body) == (expected.status, expected.body)


def test_a_replay_has_a_fresh_date_a_right_length_and_no_cookie(server, key):
    """R25, R46: repeats in order and odd bytes as they were, framing and date made new, session fields gone."""
    first, again = server.post(key), server.post(key)
    assert again.brief == (201, True, first.body)
    assert first.all("idempotent-replayed") == []
    assert (first.all("set-cookie"), again.all("set-cookie")) == ([b"s=1"], [])
    assert (again.all("link"), again.all("x-name")) == ([b"</a>", b"</b>"], [b"caf\xe9"])
    assert again.all("content-length") == [b"%d" % len(first.body)]
    assert [len(reply.all("date")) for reply in (first, again)] == [1, 1]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 302, 303, 304, 406, 418, 599])
def test_every_status_is_replayed_over_one_connection_that_stays_usable(server, key, status):
    """R25: a replay is framed so well that the next request on the connection is answered."""
    mode = "empty" if status in (204, 304) else "plain"
    with server.connect() as connection:
        first = connection.post(key, x_status=str(status), x_mode=mode)
        again = connection.post(key, x_status=str(status), x_mode=mode)
        after = connection.post(None)
    assert (first.status, first.replayed) == (status, False)
    assert again.brief == (status, True, first.body)
    assert again.all("content-length") == ([] if status in (204, 304) else [b"%d" % len(first.body)])
    assert (after.status, after.replayed) == (201, False)


def test_two_requests_in_one_piece_get_two_well_formed_answers(server, key):
    """R25, B28: a chunked first answer, then its replay and an uncovered request, pipelined."""
    with server.connect() as connection:
        first = connection.post(key, x_mode="stream")
        connection.send(request(key, x_mode="stream") + request(None))
        again, after = connection.read(), connection.read()
    assert first.all("transfer-encoding") == [b"chunked"]
    assert again.brief == (201, True, first.body)
    assert (again.all("transfer-encoding"), again.all("content-length")) == ([], [b"%d" % len(first.body)])
    assert (after.status, after.whole) == (201, True)


# ---------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("name", ["idempotency-key", "IDEMPOTENCY-KEY", "Idempotency-Key"])
def test_the_field_is_found_in_any_case_and_spelling(server, key, name):
    """R2, R4, R5, B32, B33: one key, one effect."""
    before = server.effects
    with server.connect() as connection:
        replies = []
        for value in (key, f'"{key}"', f'"{key}";p=1', f"  {key}\t"):
            connection.send(request(None).replace(b"host: t", f"{name}: {value}\r\nhost: t".encode()))
            replies.append(connection.read())
    assert [reply.replayed for reply in replies] == [False, True, True, True]
    assert server.effects - before == 1


@pytest.mark.parametrize(
    "lines",
    [
        [""],
        ["   "],
        ["\t"],
        ['""'],
        ["x" * 300],
        ["sch\u00fcssel"],
        ["a,b"],
        ["same", "same"],
        ["one", "two"],
        ['"abc'],
        ["a b"],
    ],
)
def test_a_key_that_can_not_be_used_is_refused_and_the_connection_goes_on(server, lines):
    """R3, R6, B31: a body that nobody has read disturbs neither the answer nor the next request."""
    before = server.effects
    fields = "".join(f"idempotency-key: {line}\r\n" for line in lines)
    with server.connect() as connection:
        connection.send(request(None).replace(b"host: t\r\n", b"host: t\r\n" + fields.encode("latin-1")))
        refused = connection.read()
        after = connection.post(None)
    assert (refused.status, refused.code) == (400, "idempotency-key-invalid")
    assert (after.status, server.effects - before) == (201, 1)


# ---------------------------------------------------------------------------------------------- bodies


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_any_size_arrives_whole_and_is_compared_whole(server, key, chunked):
    """R52: however it is framed; another one under the same key is refused."""
    body = bytes(range(256)) * 700
    first = server.post(key, body=body, chunked=chunked, media="application/octet-stream")
    again = server.post(key, body=body, media="application/octet-stream")
    other = server.post(key, body=body[:-1], chunked=chunked, media="application/octet-stream")
    assert first.json["sha256"] == hashlib.sha256(body).hexdigest()
    assert (again.replayed, other.code) == (True, "idempotency-key-reuse")


def test_a_client_that_expects_to_be_told_to_go_on_is_told(server, key):
    """R52, B41: 100 Continue comes when the body is wanted, and does not where the request is refused by its head."""
    wanted = request(key, b"12345", expect="100-continue")
    refused = request("a,b", b"12345", expect="100-continue")
    with server.connect() as connection:
        connection.send(wanted[:-5])
        told = connection.until(b"\r\n\r\n")
        connection.send(b"12345")
        reply = connection.read()
    with server.connect() as connection:
        connection.send(refused[:-5])
        final = connection.until(b"\r\n")
    assert told.startswith(b"HTTP/1.1 100 ")
    assert (reply.status, reply.json["sha256"]) == (201, hashlib.sha256(b"12345").hexdigest())
    assert final.startswith(b"HTTP/1.1 400 ")


def test_a_body_that_the_server_loses_beside_an_upgrade_has_no_effect(server, key):
    """R52: where the parser drops it, 400 body-incomplete; where it does not, the body arrives; never an empty run."""
    before = server.effects
    body = b'{"n":1}'
    for chunked in (False, True):
        with server.connect() as connection:
            connection.send(
                request(f"{key}-{chunked}", body, chunked=chunked, connection="upgrade, HTTP2-Settings", upgrade="h2c")
            )
            reply = connection.read()
        if reply.status == 201:
            assert reply.json["sha256"] == hashlib.sha256(body).hexdigest()
        else:
            assert (reply.status, reply.code) == (400, "body-incomplete")
            assert server.effects == before
        before = server.effects


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_before_any_effect(server, key, chunked):
    """R11: as announced, or as counted."""
    before = server.effects
    with server.connect() as connection:
        with contextlib.suppress(ConnectionError):  # it may be closed before all is sent
            connection.send(request(key, b"x" * 300_000, chunked=chunked))
        reply = connection.read()
    assert (reply.status, reply.code, server.effects - before) == (413, "request-too-large", 0)


def test_a_client_that_leaves_before_its_body_is_whole_has_no_effect_and_burns_no_key(server, key):
    """R52: the complete request runs under the same key."""
    before = server.effects
    with server.connect() as connection:
        connection.send(request(key)[:-3])
    with server.connect() as connection:
        connection.send(request(key, chunked=True)[:-6])
    time.sleep(0.05)
    assert server.effects == before
    assert server.post(key).brief[:2] == (201, False)


# ---------------------------------------------------------------------------------------------- clients that leave


def test_a_client_that_leaves_in_mid_handler_finds_its_answer_later(server, key):
    """R44: the handler runs to its end, and the retry replays."""
    before = server.effects
    with server.connect() as connection:
        connection.send(request(key, x_sleep="0.2"))
        while server.effects == before:
            time.sleep(0.01)
    reply = settled(server, key, x_sleep="0.2")
    assert (reply.status, reply.replayed, server.effects - before) == (201, True, 1)


def test_a_duplicate_is_told_when_to_come_again_while_the_first_runs(server, key):
    """R23."""
    with server.connect() as connection:
        connection.send(request(key, x_sleep="0.3"))
        before = server.effects
        while server.effects == before and not server.post(key, x_sleep="0.3").code:
            time.sleep(0.01)
        duplicate = server.post(key, x_sleep="0.3")
        first = connection.read()
    assert (duplicate.status, duplicate.code, duplicate.all("retry-after")) == (409, "in-progress", [b"1"])
    assert (first.status, first.replayed) == (201, False)


def test_background_work_runs_once_and_after_the_answer_whatever_the_client_does(server, key):
    """R51, B44: its client leaves at once, a retry replays while the work is still to come."""
    before = server.counts()["works"]
    server.post(key, x_mode="background")
    again = server.post(key, x_mode="background")
    during = server.counts()["works"]
    deadline = time.monotonic() + 10
    while server.counts()["works"] == before and time.monotonic() < deadline:
        time.sleep(0.02)
    server.post(key, x_mode="background")
    time.sleep(0.35)
    assert (again.replayed, during - before) == (True, 0)
    assert server.counts()["works"] - before == 1


# ---------------------------------------------------------------------------------------------- streams


def test_a_stream_arrives_part_by_part_and_replays_whole(server, key):
    """R43, R52: the first part is there long before the last."""
    with server.connect() as connection:
        connection.send(request(key, x_mode="stream", x_gap="0.1"))
        connection.head()
        first = connection.chunk()
        meanwhile = server.post(key, x_mode="stream", x_gap="0.1")
        rest = [connection.chunk() for _ in range(4)]
    again = server.post(key, x_mode="stream", x_gap="0.1")
    assert (first, meanwhile.code, rest) == (b"part 0\n", "in-progress", [b"part 1\n", b"part 2\n", b"end\n", b""])
    assert again.brief == (201, True, b"part 0\npart 1\npart 2\nend\n")


def test_a_stream_that_breaks_is_seen_to_break_and_is_not_given_again(server, key):
    """R50: the connection ends without the stream's end."""
    broken = server.post(key, x_mode="cut")
    again = server.post(key, x_mode="cut")
    assert (broken.status, broken.body, broken.whole) == (201, b"part 0\n", False)
    assert (again.status, again.code, again.json["cause"]) == (500, "outcome-unknown", "cut-short")


def test_a_stream_of_events_is_not_kept(server, key):
    """R26, R43."""
    events = server.post(key, x_mode="events")
    again = server.post(key, x_mode="events")
    assert (events.whole, again.code, again.json["original_status"]) == (True, "replay-unavailable", 201)


@pytest.mark.parametrize(
    ("mode", "status", "code"), [("raise", 500, "outcome-unknown"), ("silent", 500, "outcome-unknown")]
)
def test_an_application_that_fails_is_answered_by_the_server_and_not_run_again(server, key, mode, status, code):
    """CONTRACT 5: the first client sees the server's own 500, the retry is told that nobody knows."""
    before = server.effects
    first, again = server.post(key, x_mode=mode), server.post(key, x_mode=mode)
    assert (first.status, first.body) == (status, b"Internal Server Error")
    assert (again.status, again.code, server.effects - before) == (500, code, 1)


# ---------------------------------------------------------------------------------------------- many at once


def test_of_fifty_duplicates_whose_last_bytes_go_out_together_one_runs(server, key):
    """R22, B01, B04: 50 connections, one effect; the others are told in-progress or given the answer."""
    before = server.effects
    data = request(key, x_sleep="0.1")
    connections = [server.connect() for _ in range(50)]
    try:
        for connection in connections:
            connection.send(data[:-1])
        for connection in connections:
            connection.send(data[-1:])
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(Connection.read, connections))
    finally:
        for connection in connections:
            connection.socket.close()
    fresh = [reply for reply in replies if reply.status == 201 and not reply.replayed]
    others = {(reply.status, reply.replayed or reply.code) for reply in replies if reply not in fresh}
    assert len(fresh) == 1
    assert others <= {(409, "in-progress"), (201, True)}
    assert server.effects - before == 1


def test_starting_and_stopping_reach_the_application_and_so_do_websockets(tmp_path):
    """R41, R52, B42: its hooks run once each, and a socket echoes."""
    from websockets.sync.client import connect

    with serving(folder=tmp_path) as server:
        with connect(f"ws://127.0.0.1:{server.port}/talk") as socket:
            socket.send("hello")
            echoed = socket.recv()
        server.stop()
    assert echoed == "HELLO"
    assert (tmp_path / "effects.startup").read_bytes() == b"*"
    assert (tmp_path / "effects.shutdown").read_bytes() == b"*"


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_a_wait_ends_when_its_client_leaves_and_answers_when_it_stays(http):
    """R23: over a real connection."""
    with serving({"wait": 20.0}, http=http) as server:
        with server.connect() as first, server.connect() as second:
            first.send(request("k1", x_sleep="0.4"))
            while not server.effects:
                time.sleep(0.01)
            with server.connect() as leaving:
                leaving.send(request("k1", x_sleep="0.4"))
            second.send(request("k1", x_sleep="0.4"))
            replies = [first.read(), second.read()]
        effects = server.effects
    assert [reply.replayed for reply in replies] == [False, True]
    assert effects == 1
