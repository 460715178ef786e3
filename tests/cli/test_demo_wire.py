"""The demo's own HTTP client does to a connection what it says, and reads what came."""

import select
import socket
from collections.abc import Iterator

import pytest

from twiceproof.cli._demo.wire import Lost, Reply, Sent, Wire, compose

ANSWER = (
    b"HTTP/1.1 422 Unprocessable Entity\r\nContent-Type: application/problem+json\r\nX-Two: a\r\nX-Two: b\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
    b'10\r\n{"code": "idempo\r\n0f\r\ntency-key-reuse\r\n2\r\n"}\r\n0\r\n\r\n'
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        yield server


@pytest.fixture
def wire(listener: socket.socket) -> Wire:
    return Wire(f"http://127.0.0.1:{listener.getsockname()[1]}", patience=20)


def accepted(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.settimeout(20)
    return connection


def received(connection: socket.socket, size: int) -> bytes:
    seen = b""
    while len(seen) < size:
        seen += connection.recv(size - len(seen))
    return seen


def test_a_request_goes_out_as_given_with_repeated_and_empty_fields():
    """Fields keep their order, repeats and emptiness: a scene sends what no library lets through (R3, R6)."""
    seen = compose("POST", "/t", [("Host", "h"), ("K", "a"), ("K", ""), ("k", "a")], b"{}")
    expected = b"POST /t HTTP/1.1\r\nHost: h\r\nK: a\r\nK: \r\nk: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    assert seen == expected


def test_the_held_byte_leaves_only_when_it_is_released(listener: socket.socket, wire: Wire):
    """All but the last byte are on their way at once, and the last one not before its release (R22)."""
    with wire.send("POST", "/t", body=b"abc", hold=1) as sent, accepted(listener) as peer:
        before = received(peer, len(compose("POST", "/t", [("Host", "{}:{}".format(*wire.address))], b"ab")))
        peer.settimeout(0.1)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        sent.release()
        peer.settimeout(20)
        assert (before[-2:], peer.recv(10)) == (b"ab", b"c")


def test_an_answer_is_read_whole(listener: socket.socket, wire: Wire):
    """Status, repeated fields and a chunked body arrive as they were sent, and are told in a few words."""
    sent = wire.send("GET", "/")
    with accepted(listener) as peer:
        before = sent.answered
        peer.sendall(ANSWER)
        reply = sent.reply()
    assert before is False
    assert reply.fields[1:3] == (("X-Two", "a"), ("X-Two", "b"))
    assert (reply.status, reply.body, str(reply)) == (
        422,
        b'{"code": "idempotency-key-reuse"}',
        "422 idempotency-key-reuse",
    )


def test_an_answer_that_has_begun_to_arrive_shows(listener: socket.socket, wire: Wire):
    """Whether an answer is there is seen without reading it."""
    with wire.send("GET", "/") as sent, accepted(listener) as peer:
        peer.sendall(ANSWER)
        sent._connection.recv(1, socket.MSG_PEEK)
        assert sent.answered is True


def test_a_cut_connection_is_a_reset(listener: socket.socket, wire: Wire):
    """Cutting is what a broken network does: the other side sees a reset and no orderly end."""
    sent = wire.send("GET", "/")
    with accepted(listener) as peer:
        peer.recv(1, socket.MSG_PEEK)
        sent.cut()
        received(peer, len(compose("GET", "/", [("Host", "{}:{}".format(*wire.address))], b"")))
        with pytest.raises(ConnectionResetError):
            peer.recv(1)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nshort", b"nonsense\r\n\r\n"])
def test_no_whole_answer_is_a_lost_one(listener: socket.socket, wire: Wire, said: bytes):
    """A connection that ends early is told as lost, never as an answer."""
    sent = wire.send("GET", "/")
    with accepted(listener) as peer:
        received(peer, 10)
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        with pytest.raises(Lost):
            sent.reply()


def test_patience_ends(listener: socket.socket):
    """An answer that never comes is lost, and no test or demo hangs for it."""
    with pytest.raises(Lost, match="timed out"):
        Wire(f"http://127.0.0.1:{listener.getsockname()[1]}", patience=0.05).ask("GET", "/")


def test_what_was_held_back_goes_at_the_latest_when_its_answer_is_wanted(listener: socket.socket, wire: Wire):
    """A request that is never completed has no answer."""
    sent = wire.send("POST", "/t", body=b"abc", hold=1)
    with accepted(listener) as peer:
        peer.sendall(ANSWER)
        status = sent.reply().status
        request = received(peer, len(compose("POST", "/t", [("Host", "{}:{}".format(*wire.address))], b"abc")))
    assert (status, request[-3:]) == (422, b"abc")


def test_a_connection_that_breaks_before_the_last_byte_is_lost(listener: socket.socket, wire: Wire):
    """The other side is gone when what was held back should go."""
    with wire.send("POST", "/t", body=b"abc", hold=1) as sent:
        Sent(accepted(listener), b"").cut()
        select.select([sent._connection], [], [], 20)
        with pytest.raises(Lost, match="the connection broke before the request was sent"):
            sent.release()


def test_a_request_that_nobody_reads_is_lost(listener: socket.socket):
    """It is larger than what the systems between hold."""
    wire = Wire(f"http://127.0.0.1:{listener.getsockname()[1]}", patience=0.2)
    with pytest.raises(Lost, match="the connection broke before the request was sent"):
        wire.send("POST", "/t", body=bytes(50_000_000))


def test_nobody_there_is_lost():
    """A service that is down is told in a sentence that names the address."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(Lost, match=f"no connection to 127.0.0.1:{port}"):
        Wire(f"http://127.0.0.1:{port}").ask("GET", "/")


@pytest.mark.parametrize(
    ("status", "content_type", "marker", "body", "expected"),
    [
        (201, "application/json", None, b'{"code": "x"}', "201"),
        (201, "application/json", "true", b"{}", "201 replayed"),
        (409, "application/problem+json", None, b'{"code": "in-progress"}', "409"),
        (409, "application/problem+json", None, b'{"code": "replay-unavailable"}', "409 replay-unavailable"),
        (500, "application/problem+json", None, b'{"code": "outcome-unknown"}', "500 outcome-unknown"),
        (500, "text/plain", None, b"\xff", "500"),
        (500, "application/problem+json", None, b"{", "500"),
        (500, "application/problem+json", None, b"[1]", "500"),
    ],
)
def test_an_answer_is_told_in_the_words_of_the_table(status, content_type, marker, body, expected):
    """Status, problem code and marker make the words that scenes expect."""
    fields = [("content-type", content_type)] + ([("idempotent-replayed", marker)] if marker else [])
    assert str(Reply(status, tuple(fields), body)) == expected
