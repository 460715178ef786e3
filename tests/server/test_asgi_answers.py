"""First answers and replays through the ASGI door: the same, but for what must differ (R25, R26, R36, R43, R46)."""

from typing import Any

import pytest

from tests.support.asgi_client import Client, Counted, http_scope, in_loop, keyed, post, respond
from tests.support.asgi_door import Door
from twiceproof import Policy
from twiceproof.server.asgi import IdempotencyMiddleware, anonymous

STATUSES = [200, 201, 202, 204, 205, 206, 226, 301, 302, 303, 304, 307, 308, 400, 404, 406, 409, 410, 418, 422, 451]


def answering(status: int, body: bytes = b"x", headers: Any = ()) -> Counted:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, status, body, headers)

    return Counted(answer)


@pytest.mark.parametrize("status", [*STATUSES, 500, 502, 504, 599])
@in_loop
async def test_every_stored_status_is_replayed_as_it_was(status):
    """R25, R35, R36, R39: at most once, with and without a body; 204 and 304 never get one or its length."""
    body = b"" if status in (204, 205, 304) else b'{"a": 1}'
    app = answering(status, body)
    async with Door(app) as door:
        first, again = await post(door, "k1"), await post(door, "k1")
    assert (first.brief, again.brief) == ((status, False, body), (status, True, body))
    assert again.all("content-length") == ([] if status in (204, 304) else [b"%d" % len(body)])
    assert app.effects == 1


@pytest.mark.parametrize("status", [401, 403, 407, 421, 425, 426, 428, 429, 431])
@in_loop
async def test_a_gate_leaves_the_key_free(status):
    """R37: nothing was done, so the retry runs."""
    app = answering(status)
    async with Door(app) as door:
        answers = [await post(door, "k1"), await post(door, "k1")]
        states = await door.states()
    assert [answer.brief for answer in answers] == [(status, False, b"x")] * 2
    assert (app.effects, states) == (2, [])


RICH = [
    (b"content-type", b"text/plain; charset=latin-1"),
    (b"location", b"/orders/1"),
    (b"etag", b'"v1"'),
    (b"Link", b"</a>; rel=next"),
    (b"link", b"</b>; rel=prev"),
    (b"x-name", "caf\u00e9".encode("latin-1")),
    (b"content-language", b"de"),
    (b"vary", b"accept"),
    (b"x-empty", b""),
]
PERSONAL = [
    (b"set-cookie", b"a=1"),
    (b"set-cookie", b"b=2"),
    (b"www-authenticate", b"Basic"),
    (b"www-authenticate", b"Bearer"),
    (b"date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
    (b"server", b"me"),
    (b"via", b"1.1 here"),
    (b"age", b"3"),
    (b"x-request-id", b"r1"),
    (b"x-correlation-id", b"c1"),
    (b"x-ratelimit-remaining", b"7"),
    (b"ratelimit", b"limit=10"),
    (b"access-control-allow-origin", b"*"),
    (b"traceparent", b"00-1"),
    (b"signature", b"sig1=:x:"),
    (b"connection", b"close, x-hop"),
    (b"x-hop", b"1"),
    (b"keep-alive", b"timeout=5"),
    (b"content-length", b"1"),
    (b"idempotency-key", b"k1"),
]


@in_loop
async def test_the_first_answer_is_message_by_message_the_bare_applications():
    """R52: no field added, dropped, merged or moved, no marker."""

    async def rich(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 201, b"x", [*RICH, *PERSONAL])

    async with Door(rich) as door:
        seen, bare = await post(door, "k1"), await post(rich, None)
    assert seen.messages == bare.messages


@in_loop
async def test_a_replay_bears_what_is_about_the_answer_and_not_what_was_about_that_message():
    """R25, R46: stored fields in order with their repeats; session, routing and framing fields are not stored."""
    async with Door(answering(201, b"x", [*PERSONAL, *RICH])) as door:
        await post(door, "k1")
        again = await post(door, "k1")
    assert again.headers == [*RICH, (b"idempotent-replayed", b"true"), (b"content-length", b"1")]


@in_loop
async def test_more_fields_are_kept_or_dropped_where_the_policy_says_so():
    """R46: the option."""
    policy = Policy(keep_headers=frozenset({"X-Request-Id"}), drop_headers=frozenset({"ETag"}))
    fields = [(b"x-request-id", b"r1"), (b"etag", b"v"), (b"x-a", b"1")]
    async with Door(answering(200, b"x", fields), policy=policy) as door:
        await post(door, "k1")
        again = await post(door, "k1")
    assert again.headers[:2] == [(b"x-request-id", b"r1"), (b"x-a", b"1")]
    assert again.all("etag") == []


@in_loop
async def test_header_fields_that_can_be_read_only_once_reach_the_client_and_the_record():
    """ASGI promises an iterable of header fields, not a list."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": iter([(b"x-a", b"1"), (b"x-a", b"2")])})
        await send({"type": "http.response.body", "body": b"x"})

    async with Door(answer) as door:
        first, again = await post(door, "k1"), await post(door, "k1")
    assert first.all("x-a") == again.all("x-a") == [b"1", b"2"]


@in_loop
async def test_what_may_be_left_out_of_an_answers_messages_is_left_out_of_its_replay():
    """ASGI: headers, body and more_body are optional."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 202})
        await send({"type": "http.response.body"})

    async with Door(answer) as door:
        first, again = await post(door, "k1"), await post(door, "k1")
    assert (first.brief, again.brief) == ((202, False, b""), (202, True, b""))


@pytest.mark.parametrize("kind", [bytearray, memoryview])
@in_loop
async def test_a_buffer_that_the_application_uses_again_is_copied(kind):
    """R43: the record holds what was sent, not what the buffer holds later."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        buffer = bytearray(b"one")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": kind(buffer), "more_body": True})
        buffer[:] = b"two"
        await send({"type": "http.response.body", "body": kind(buffer)})

    async with Door(answer) as door:
        await post(door, "k1")
        again = await post(door, "k1")
    assert again.body == b"onetwo"


@pytest.mark.parametrize(
    ("policy", "fields", "body"),
    [
        (Policy(store_body=False), [], b"x"),
        (Policy(max_response_bytes=3), [], b"four"),
        (Policy(), [(b"content-type", b"text/event-stream")], b"data: 1\n\n"),
        (Policy(), [(b"Content-Type", b" Text/Event-Stream; charset=utf-8")], b"data: 1\n\n"),
        (Policy(), [(b"content-length", b"9")], b"shorter"),
    ],
)
@in_loop
async def test_an_answer_whose_body_is_not_kept_is_not_given_again_and_not_run_again(policy, fields, body):
    """R26, R43: 409 with the original status and its Location; the first answer is whole."""
    app = answering(201, body, [*fields, (b"location", b"/orders/1"), (b"x-other", b"1")])
    async with Door(app, policy=policy) as door:
        first, again = await post(door, "k1"), await post(door, "k1")
    assert first.brief == (201, False, body)
    assert (again.status, again.code, again.problem["original_status"]) == (409, "replay-unavailable", 201)
    assert (again.problem["retryable"], again.all("location"), again.all("x-other")) == (False, [b"/orders/1"], [])
    assert (again.all("idempotent-replayed"), app.effects) == ([], 1)


@in_loop
async def test_an_answer_of_exactly_the_limit_is_kept():
    """R43: the limit is the largest body that is stored."""
    async with Door(answering(200, b"four"), policy=Policy(max_response_bytes=4)) as door:
        await post(door, "k1")
        assert (await post(door, "k1")).brief == (200, True, b"four")


@pytest.mark.parametrize(("record", "kept"), [("2xx", False), ("all", True), (lambda response: False, False)])
@in_loop
async def test_the_record_option_decides_on_refusals_by_the_handler(record, kept):
    """R36: the default stores a 4xx; the option may not."""
    app = answering(422)
    async with Door(app, policy=Policy(record=record)) as door:
        await post(door, "k1")
        again = await post(door, "k1")
    assert (again.replayed, app.effects) == (kept, 1 if kept else 2)


@in_loop
async def test_an_inner_twiceproof_keeps_its_own_records():
    """R36: its refusal goes through and is not stored by the outer one; its replay goes through with its marker."""
    app = Counted()
    inner = IdempotencyMiddleware(
        app,
        store="memory://",
        principal=anonymous,
        accept_volatile=True,
        policy=Policy(aliases=("x-key",), required=True),
    )
    async with Door(inner, namespace="outer") as outer:
        direct = Client()
        await inner(http_scope(headers=keyed("k1", size=0)), direct.receive, direct.send)
        replay = await post(outer, "k1", body=b"")
        reuse = await post(outer, "k1", body=b'{"other":1}')
        states = await outer.states()
        await inner.engine.close()
    assert direct.answer.brief == (201, False, b'{"id":"o_1"}')
    assert replay.brief == (201, True, b'{"id":"o_1"}')
    assert reuse.code == "idempotency-key-reuse"
    assert (states, app.effects) == (["completed"], 1)  # of the replay, whose effect is real


@in_loop
async def test_a_changed_payload_is_refused_and_the_first_one_still_replays():
    """R24, R32: the refusal tells nothing of the first request."""
    app = Counted()
    async with Door(app) as door:
        await post(door, "k1", body=b'{"secret":"MARKER"}')
        reuse = [await post(door, "k1", body=b'{"n":2}') for _ in range(2)]
        again = await post(door, "k1", body=b'{ "secret" : "MARKER" }')
    assert [answer.code for answer in reuse] == ["idempotency-key-reuse"] * 2
    assert b"MARKER" not in b"".join(repr(answer.messages).encode() for answer in reuse)
    assert (again.brief, app.effects) == ((201, True, b'{"id":"o_1"}'), 1)


@in_loop
async def test_an_answer_without_a_body_may_announce_the_length_of_one():
    """R25: RFC 9110 lets a 304 say how long the representation is that it does not send."""
    app = answering(304, b"", [(b"content-length", b"100"), (b"etag", b'"v1"')])
    async with Door(app) as door:
        first, again = await post(door, "k1"), await post(door, "k1")
    assert (first.brief, again.brief) == ((304, False, b""), (304, True, b""))
    assert (again.all("etag"), again.all("content-length"), app.effects) == ([b'"v1"'], [], 1)
