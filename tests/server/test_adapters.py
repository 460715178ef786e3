"""One set of promises, held to by every door on every server, over real sockets.

Each adapter serves from a process of its own, started once. Where a server itself refuses odd input, the promise is
that nothing takes effect and nothing is replayed wrongly.
"""

import hashlib
import uuid

import pytest

from tests.support.adapters import ADAPTERS, LARGE, having, lacking, params, serving
from tests.support.asgi_app import count
from tests.support.raw_http import request

pytestmark = pytest.mark.slow

OTHER = b'{"n":2}'


@pytest.fixture(scope="module", params=params(ADAPTERS))
def served(request, tmp_path_factory):
    with serving(request.param, tmp_path_factory.mktemp(request.param.id)) as served:
        yield served
        log = (served.folder / "log").read_text()
    assert log.count("Traceback") == log.count("LookupError: as the test wants it")  # nothing else failed on the way


@pytest.fixture
def key():
    return uuid.uuid4().hex


def only(capability):
    """Run a test on the adapters that can do something."""
    return pytest.mark.parametrize("served", having(capability), indirect=True, scope="module")


def without(capability):
    """Run a test on the adapters that by their nature can't."""
    return pytest.mark.parametrize("served", lacking(capability), indirect=True, scope="module")


# ---------------------------------------------------------------------------------------------- first answer, replay


def test_a_retry_gets_the_first_answer_again_and_nothing_runs(served, key):
    """R21, R25, R46, B05, B26, B29: status, bytes and fields are kept, Set-Cookie is not; only the replay is marked."""
    before = served.effects
    first, again = served.post(key), served.post(key)
    assert (first.brief[:2], again.brief, served.effects - before) == ((201, False), (201, True, first.body), 1)
    assert [reply.all("idempotent-replayed") for reply in (first, again)] == [[], [b"true"]]
    for name in ("location", "etag", "content-type"):
        assert (name, again.all(name)) == (name, first.all(name))
        assert len(first.all(name)) == 1
    assert [reply.all("set-cookie") for reply in (first, again)] == [[b"session=1"], []]
    assert [len(reply.all("date")) for reply in (first, again)] == [1, 1]
    assert again.all("content-length") == [b"%d" % len(first.body)]
    assert (first.whole, again.whole) == (True, True)


def test_of_twenty_duplicates_released_together_one_takes_effect(served, key):
    """R22, R23, B01, B04: their last bytes go out at once, the handler is held; others replay or are told to wait."""
    before = served.effects
    replies = served.together(request(key, path="/slow", x_gate=key), 20)
    served.until("effects", before + 1)
    served.open(key)
    seen = [reply.result() for reply in replies]
    fresh = [reply for reply in seen if reply.status == 201 and not reply.replayed]
    others = {(reply.status, reply.replayed or reply.code) for reply in seen if reply not in fresh}
    assert (len(fresh), served.effects - before) == (1, 1)
    assert others <= {(201, True), (409, "in-progress")}
    assert served.post(key, path="/slow", x_gate=key).brief == (201, True, fresh[0].body)


@only("keep-alive")
def test_a_connection_goes_on_after_a_replay_and_a_refusal(served, key):
    """R52, B28: each answer ends where its framing says, so that the next one on the connection is its own."""
    before = served.effects
    with served.connect() as connection:
        replies = [
            connection.post(key),
            connection.post(key),
            connection.post(key, body=OTHER),
            connection.post("a,b"),
            connection.post(key + "-next"),
        ]
    assert [(reply.status, reply.replayed, reply.code) for reply in replies] == [
        (201, False, ""),
        (201, True, ""),
        (422, False, "idempotency-key-reuse"),
        (400, False, "idempotency-key-invalid"),
        (201, False, ""),
    ]
    assert (replies[1].body, served.effects - before) == (replies[0].body, 2)


@only("keep-alive")
def test_requests_that_follow_without_waiting_are_answered_in_turn(served, key):
    """R25, R52, B28: a duplicate and a refused one, sent with the first in one piece."""
    before = served.effects
    with served.connect() as connection:
        connection.send(request(key) + request(key) + request(key, body=OTHER) + request(key + "-next"))
        replies = [connection.read() for _ in range(4)]
    assert [(reply.status, reply.replayed) for reply in replies] == [
        (201, False),
        (201, True),
        (422, False),
        (201, False),
    ]
    assert (replies[1].body, served.effects - before) == (replies[0].body, 2)


@only("concurrent")
def test_while_the_first_runs_others_are_told_what_to_do(served, key):
    """R23, R24, B01: a duplicate to come again, another payload that the key is taken."""
    before = served.effects
    options = {"path": "/slow", "x_gate": key}
    with served.connect() as connection:
        connection.send(request(key, **options))
        served.until("effects", before + 1)
        same, other = served.post(key, **options), served.post(key, body=OTHER, **options)
        served.open(key)
        first = connection.read()
    assert (same.status, same.code, len(same.all("retry-after"))) == (409, "in-progress", 1)
    assert 1 <= int(same.all("retry-after")[0]) <= 30
    assert (other.status, other.code, other.all("retry-after")) == (422, "idempotency-key-reuse", [])
    assert (first.brief[:2], served.effects - before) == ((201, False), 1)


def test_a_request_of_http_1_0_is_protected_too(served, key):
    """R21, R25: with its length, as that version has it."""
    before = served.effects
    data = request(key).replace(b"HTTP/1.1", b"HTTP/1.0")
    seen = []
    for _ in range(2):
        with served.connect() as connection:
            connection.send(data)
            seen.append(connection.read())
    assert [reply.brief for reply in seen] == [(201, False, seen[0].body), (201, True, seen[0].body)]
    assert (seen[0].body[:1], served.effects - before) == (b"{", 1)


# ---------------------------------------------------------------------------------------------- refusals


def test_another_payload_is_refused_and_the_original_still_replays(served, key):
    """R24, R32: nothing of the other request takes effect."""
    before = served.effects
    first, other, again = served.post(key), served.post(key, body=OTHER), served.post(key)
    assert (other.status, other.code, other.replayed) == (422, "idempotency-key-reuse", False)
    assert (again.brief, served.effects - before) == ((201, True, first.body), 1)


@pytest.mark.parametrize(
    ("field", "code"),
    [
        (None, "idempotency-key-missing"),
        ("", "idempotency-key-invalid"),
        ('"open', "idempotency-key-invalid"),
        ("a, a", "idempotency-key-invalid"),
        ("x" * 256, "idempotency-key-invalid"),
    ],
)
def test_a_key_that_is_missing_or_bad_is_refused_with_no_effect(served, field, code):
    """R6, R8, B31, B33."""
    before = served.effects
    reply = served.post(field)
    assert (reply.status, reply.code, reply.whole, served.effects - before) == (400, code, True, 0)


@pytest.mark.parametrize("equal", [True, False])
def test_a_key_on_two_lines_is_refused(served, key, equal):
    """R3, B31: whether the server shows the lines apart or joins them."""
    before = served.effects
    line = f"idempotency-key: {key}\r\n".encode()
    second = line if equal else line.replace(key.encode(), b"another")
    with served.connect() as connection:
        connection.send(request(key).replace(line, line + second))
        reply = connection.read()
    assert (reply.status, reply.code, served.effects - before) == (400, "idempotency-key-invalid", 0)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_safe_method_is_untouched(served, key, method):
    """R1: its key is ignored, each request reaches the application, and no answer is marked."""
    reads = count(served.folder / "reads")
    data = f"{method} /report HTTP/1.1\r\nhost: t\r\nconnection: close\r\nidempotency-key: {key}\r\n\r\n".encode()
    seen = [served.raw(data) for _ in range(2)]
    assert [answer.split(b"\r\n", 1)[0].split()[1] for answer in seen] == [b"200", b"200"]
    assert all(b"idempotent-replayed" not in answer.lower() for answer in seen)
    bodies = [b"%d" % (reads + 1), b"%d" % (reads + 2)] if method == "GET" else [b"", b""]
    assert [answer.split(b"\r\n\r\n", 1)[1] for answer in seen] == bodies
    assert count(served.folder / "reads") - reads == 2


# ---------------------------------------------------------------------------------------------- request bodies


@only("chunked")
def test_a_chunked_body_is_compared_like_any_other(served, key):
    """R19, B43: how it is framed never matters, what it says always does."""
    before = served.effects
    first = served.post(key, chunked=True)
    assert first.json["sha256"] == hashlib.sha256(b'{"n":1}').hexdigest()
    assert served.post(key, body=OTHER, chunked=True).code == "idempotency-key-reuse"
    assert [served.post(key, chunked=chunked).brief for chunked in (True, False)] == [(201, True, first.body)] * 2
    assert served.effects - before == 1


@without("chunked")
def test_a_chunked_body_that_never_reaches_the_door_is_refused(served, key):
    """R52, B43: a request whose body can't be seen is never taken for one without a body."""
    before = served.effects
    first = served.post(key)
    chunked = [served.post(key + suffix, body=OTHER, chunked=True) for suffix in ("", "-new")]
    assert [(reply.status, reply.code) for reply in chunked] == [(400, "body-incomplete")] * 2
    assert (served.post(key).brief, served.effects - before) == ((201, True, first.body), 1)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_cut_short_has_no_effect_and_burns_no_key(served, key, chunked):
    """R52: the client ends before its body does; the whole request then runs under the same key."""
    before = served.effects
    answer = served.raw(request(key, chunked=chunked)[:-3], cut=True)
    assert answer[:12] in {b"", b"HTTP/1.1 400", b"HTTP/1.0 400"}
    assert served.effects == before
    assert (served.post(key).brief[:2], served.effects - before) == ((201, False), 1)


def test_a_body_of_a_mebibyte_arrives_whole_and_is_compared_to_its_last_byte(served, key):
    """R17, R52."""
    before = served.effects
    body = bytes(range(256)) * 4096
    options = {"media": "application/octet-stream"}
    first, again = (served.post(key, body=body, **options) for _ in range(2))
    other = served.post(key, body=body[:-1] + b"\0", **options)
    assert first.json["sha256"] == hashlib.sha256(body).hexdigest()
    assert (again.brief, other.code) == ((201, True, first.body), "idempotency-key-reuse")
    assert served.effects - before == 1


@pytest.mark.parametrize("chunked", [False, True])
@only("loses")
def test_a_body_that_the_server_drops_beside_an_upgrade_is_refused(served, key, chunked):
    """R52: it is never taken for an empty one, and the plain request then runs."""
    before = served.effects
    reply = served.post(key, chunked=chunked, connection="upgrade, HTTP2-Settings", upgrade="h2c")
    assert (reply.status, reply.code, served.effects - before) == (400, "body-incomplete", 0)
    assert served.post(key).brief[:2] == (201, False)


@without("loses")
def test_a_body_beside_an_upgrade_is_delivered(served, key):
    """R52: another one under the same key is refused."""
    before = served.effects
    upgrade = {"connection": "upgrade, HTTP2-Settings", "upgrade": "h2c"}
    first, other = served.post(key, **upgrade), served.post(key, body=OTHER, **upgrade)
    assert (first.status, first.json["sha256"]) == (201, hashlib.sha256(b'{"n":1}').hexdigest())
    assert (other.code, served.effects - before) == ("idempotency-key-reuse", 1)


# ---------------------------------------------------------------------------------------------- answers


def test_a_stream_arrives_as_it_is_made_and_replays_whole(served, key):
    """R43, R52, B05: its end is made only after the client has its beginning."""
    before = served.effects
    with served.connect() as connection:
        connection.send(request(key, path="/stream", x_gate=key))
        head = connection.head()
        chunked = head.all("transfer-encoding") == [b"chunked"]
        first = connection.chunk() if chunked else connection.exactly(6)
        served.open(key)
        rest = [connection.chunk(), connection.chunk()] if chunked else [connection.exactly(5), connection.exactly(4)]
    again = served.settled(key, path="/stream", x_gate=key)
    assert (head.status, head.replayed, first, rest) == (201, False, b"first\n", [b"rest\n", b"end\n"])
    assert (again.brief, served.effects - before) == ((201, True, b"first\nrest\nend\n"), 1)
    assert again.all("content-length") == [b"15"]


def test_a_stream_that_breaks_is_seen_to_break_and_is_never_replayed(served, key):
    """R50: where answers have a framing, the client can tell."""
    before = served.effects
    served.open(key)
    first = served.post(key, path="/cut", x_gate=key)
    again = served.settled(key, path="/cut", x_gate=key)
    assert (first.status, first.body, first.whole) == (201, b"first\n", not first.all("transfer-encoding"))
    assert (again.status, again.code, again.json["cause"]) == (500, "outcome-unknown", "cut-short")
    assert served.effects - before == 1


def test_a_stream_whose_client_leaves_is_replayed_whole_or_not_at_all(served, key):
    """R50: whether its end was still made is the server's business; a part is never given for the whole."""
    before = served.effects
    with served.connect() as connection:
        connection.send(request(key, path="/stream", x_gate=key))
        assert connection.until(b"first\n").endswith(b"first\n")
        served.leave(connection)
    served.open(key)
    again = served.settled(key, path="/stream", x_gate=key)
    assert again.body == b"first\nrest\nend\n" if again.replayed else again.code == "outcome-unknown"
    assert served.effects - before == 1


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_replays_without_one(served, key, status):
    """R25, R35, B05, B25: nothing follows its head, which tells of no other length than the first one did."""
    before = served.effects
    data = request(key, path=f"/status/{status}", connection="close")
    seen = [served.raw(data).split(b"\r\n\r\n", 1) for _ in range(2)]
    assert [(head.split()[1], body) for head, body in seen] == [(b"%d" % status, b"")] * 2
    assert [b"idempotent-replayed: true" in head.lower() for head, _ in seen] == [False, True]
    assert [b"content-length: " in head.lower() for head, _ in seen] in ([False, False], [True, True])
    assert served.effects - before == 1


def test_a_refusal_by_the_handler_is_an_answer_and_a_gate_is_not(served, key):
    """R36, R37: 404 replays, 403 runs again."""
    before = served.effects
    kept = [served.post(key, path="/status/404").replayed for _ in range(2)]
    gate = [served.post(key, path="/status/403").replayed for _ in range(2)]
    assert (kept, gate, served.effects - before) == ([False, True], [False, False], 3)


def test_an_answer_that_is_too_large_to_keep_is_given_once(served, key):
    """R26: the retry is told what became of it."""
    before = served.effects
    first, again = served.post(key, path="/large"), served.settled(key, path="/large")
    assert (first.status, len(first.body), first.whole) == (201, LARGE, True)
    assert (again.status, again.code, again.json["original_status"]) == (409, "replay-unavailable", 201)
    assert (again.all("location"), served.effects - before) == (first.all("location"), 1)


def test_a_handler_that_fails_is_not_run_again(served, key):
    """CONTRACT 5, at most once: the first client sees the failure, the next is told that nobody knows."""
    before = served.effects
    first, again = served.post(key, path="/raise"), served.post(key, path="/raise")
    assert (first.status, first.code) == (500, "")
    assert (again.status, again.code, again.json["cause"]) == (500, "outcome-unknown", "exception")
    assert served.effects - before == 1


# ---------------------------------------------------------------------------------------------- clients, later work


def test_a_client_that_leaves_in_mid_handler_finds_its_answer_later(served, key):
    """R44, R45, B06: the handler runs to its end, once."""
    before = served.effects
    with served.connect() as connection:
        connection.send(request(key, path="/slow", x_gate=key))
        served.until("effects", before + 1)
    served.open(key)
    again = served.settled(key, path="/slow", x_gate=key)
    assert (again.brief[:2], again.json["effect"], served.effects - before) == ((201, True), before + 1, 1)


@only("background")
def test_a_retry_does_not_wait_for_the_work_behind_an_answer(served, key):
    """R51, B20, B44: it replays while that work is held, and the work is done once."""
    works = served.folder / "works"
    before = count(works)
    first, again = (served.post(key, path="/background", x_gate=key) for _ in range(2))
    assert (again.brief, count(works) - before) == ((201, True, first.body), 0)
    served.open(key)
    served.until("works", before + 1)
    third = served.post(key, path="/background", x_gate=key)
    assert (third.replayed, count(works) - before) == (True, 1)


@without("background")
def test_what_closes_an_answer_happens_once(served, key):
    """R51, B44, B45: with the first execution, and not with a replay."""
    works = served.folder / "works"
    before = count(works)
    served.open(key)
    first, again = (served.post(key, path="/background", x_gate=key) for _ in range(2))
    served.until("works", before + 1)
    third = served.post(key, path="/background", x_gate=key)
    assert ([again.brief, third.brief], count(works) - before) == ([(201, True, first.body)] * 2, 1)


# ---------------------------------------------------------------------------------------------- odd input


@pytest.mark.parametrize("value", [b"caf\xe9", b"\xff\xfe", b"k" * 8192, b"\x7f", b"a\tb"])
def test_an_odd_key_is_refused_by_the_server_or_by_us(served, key, value):
    """R6: never an effect."""
    before = served.effects
    with served.connect() as connection:
        connection.send(request(key, connection="close").replace(key.encode(), value))
        reply = connection.head()
    assert (reply.status in {400, 431}, served.effects - before) == (True, 0)


def test_odd_bytes_in_another_field_change_nothing(served, key):
    """R17, R25: the retry replays, with or without them."""
    before = served.effects
    first, again = (served.post(key, x_note="caf\xe9\xff") for _ in range(2))
    assert (first.status, again.brief, served.post(key).brief) == (
        201,
        (201, True, first.body),
        (201, True, first.body),
    )
    assert served.effects - before == 1


def test_a_target_in_absolute_form_never_leads_to_a_wrong_replay(served, key):
    """R16, R24: it may be refused or not be found; another payload gets no stored answer of it."""
    before = served.effects
    first, again = (served.post(key, path="http://t/orders") for _ in range(2))
    other = [served.post(key, body=OTHER, path=path) for path in ("http://t/orders", "/orders")]
    assert (again.status, again.body or b"") == (first.status, first.body or b"")
    assert [reply.replayed for reply in other] == [False, False]
    assert served.effects - before == len({reply.body for reply in [first, *other] if reply.status == 201})


@pytest.mark.parametrize("path", ["/items/a%2Fb", "/items/caf%C3%A9", "/items/%FF", "/items/a%20b%3Fc"])
def test_a_path_with_escapes_is_an_operation_like_any_other(served, key, path):
    """R16: its retry replays, and hexadecimal digits in lower case are the same path."""
    before = served.effects
    first, again, lower = served.post(key, path=path), served.post(key, path=path), served.post(key, path=path.lower())
    assert [reply.brief for reply in (first, again, lower)] == [
        (201, False, first.body),
        (201, True, first.body),
        (201, True, first.body),
    ]
    assert served.effects - before == 1


@only("raw-path")
def test_an_escaped_slash_is_another_operation(served, key):
    """R16: the path counts as it was sent."""
    before = served.effects
    seen = [served.post(key, path=path).brief[:2] for path in ("/items/a%2Fb", "/items/a/b")]
    assert (seen, served.effects - before) == ([(201, False)] * 2, 2)


@without("raw-path")
def test_an_escaped_slash_that_nobody_can_see_is_a_slash(served, key):
    """R16: one operation, and the log says so."""
    seen = [served.post(key, path=path).replayed for path in ("/items/a%2Fb", "/items/a/b")]
    assert seen == [False, True]
    assert b"/a%2Fb" in (served.folder / "log").read_bytes()
