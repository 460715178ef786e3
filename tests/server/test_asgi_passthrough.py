"""What the ASGI door does not cover goes through it as if it were not there (R1, R9, R52)."""

import asyncio
from typing import Any

import pytest

from tests.support.asgi_client import Client, Counted, http_scope, in_loop, keyed, post, read, respond
from tests.support.asgi_door import Door, SteeredStore
from twiceproof import Policy


class Recorder:
    """Remembers the three things that it was called with, and plays a given part."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.seen: tuple[Any, Any, Any] | None = None
        self.messages = messages
        self.received: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen = (scope, receive, send)
        self.received.append(await receive())
        for message in self.messages:
            await send(message)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "QUERY", "post"])
@in_loop
async def test_other_methods_reach_the_application_untouched_whatever_key_they_bear(method):
    """R1, R52, B59: the application gets the server's own scope, receive and send; nothing is stored."""
    app, store = Recorder(), SteeredStore()
    async with Door(app, store=store) as door:
        client = Client([b"x"])
        scope = http_scope(method, headers=keyed("k1"))
        before = dict(scope)
        await door(scope, client.receive, client.send)
    assert app.seen is not None
    assert app.seen[0] is scope
    assert scope == before
    assert app.seen[1:] == (client.receive, client.send)
    assert store.calls == ["close"]


@pytest.mark.parametrize("type", ["websocket", "quic", "lifespan.other"])
@in_loop
async def test_other_scopes_reach_the_application_untouched(type):
    """R52, B42: a scope without method and headers breaks nothing."""
    app = Recorder({"type": "websocket.accept"}, {"type": "anything", "x": 1})
    async with Door(app) as door:
        client = Client([b"x"])
        scope = {"type": type, "asgi": {"version": "3.0"}}
        await door(scope, client.receive, client.send)
    assert app.seen is not None
    assert app.seen[0] is scope
    assert scope == {"type": type, "asgi": {"version": "3.0"}}
    assert client.sent == list(app.messages)
    assert app.seen[1:] == (client.receive, client.send)


@in_loop
async def test_a_request_without_a_key_runs_each_time_and_leaves_nothing_behind():
    """R9, B30: no key, no deduplication, no marker, nothing in the store."""
    app, store = Counted(), SteeredStore()
    async with Door(app, store=store) as door:
        answers = [await post(door, None) for _ in range(3)]
    assert [answer.brief for answer in answers] == [(201, False, b'{"id":"o_%d"}' % n) for n in (1, 2, 3)]
    assert app.effects == 3
    assert store.calls == ["close"]


@in_loop
async def test_a_request_without_a_key_passes_message_by_message():
    """R52: chunks come and go one by one, none is gathered."""
    order: list[str] = []

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            order.append(f"in {message['body'].decode()}")
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})

    async def note(message: Any) -> None:
        order.append(f"out {message.get('body', b'-').decode()}")

    async with Door(echo) as door:
        client = Client([b"a", b"b", b"c"], on_send=note)
        await door(http_scope(headers=keyed(None)), client.receive, client.send)
    assert order == ["out -", "in a", "out a", "in b", "out b", "in c", "out c"]


@in_loop
async def test_a_request_without_a_key_hears_of_its_client_leaving():
    """R44 holds a disconnect back for covered, keyed requests only."""
    heard: list[str] = []

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        heard.append((await receive())["type"])

    async with Door(wait) as door:
        client = Client()
        client.leave()
        await door(http_scope(headers=keyed(None)), client.receive, client.send)
    assert heard == ["http.disconnect"]


@in_loop
async def test_an_operation_that_the_table_excludes_is_untouched():
    """None in the policy table is uncovered, although a key comes with the request."""
    app = Recorder()
    async with Door(app, policy={"POST /orders": None, "*": Policy(required=True)}) as door:
        client = Client([b"x"])
        scope = http_scope(headers=keyed("k1"))
        await door(scope, client.receive, client.send)
    assert app.seen is not None
    assert app.seen[1:] == (client.receive, client.send)
    assert "twiceproof" not in scope


@in_loop
async def test_a_failure_of_an_uncovered_application_reaches_the_server_as_it_is():
    """R52: the same exception object, no settling."""
    error = RuntimeError("boom")

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise error

    async with Door(fail) as door:
        with pytest.raises(RuntimeError) as caught:
            await post(door, None)
    assert caught.value is error
    assert door.events == []


@in_loop
async def test_the_handler_runs_in_the_task_and_context_of_the_request():
    """R44: no task of ours stands between the server and the handler."""
    tasks: list[Any] = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        tasks.append(asyncio.current_task())
        await respond(send)

    async with Door(note) as door:
        await post(door, "k1")
        own = asyncio.current_task()
    assert tasks == [own]


@in_loop
async def test_the_handler_can_see_its_attempt():
    """A covered request carries its attempt: the key and that it is protected, or that it is not."""
    app = Counted()
    async with Door(app) as door:
        await post(door, "k1")
        await post(door, None)
    seen = [
        (scope["twiceproof"].key, scope["twiceproof"].protected, scope["twiceproof"].attempt) for scope in app.scopes
    ]
    assert seen == [("k1", True, 1), (None, False, 1)]


@in_loop
async def test_header_fields_that_can_be_read_only_once_are_seen_by_us_and_by_the_application():
    """ASGI promises an iterable of header fields, not a list."""

    async def note(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, body=b";".join(value for _, value in scope["headers"]))

    async with Door(note) as door:
        client = Client()
        scope = http_scope()
        scope["headers"] = iter([(b"idempotency-key", b"k1"), (b"x-other", b"y")])
        await door(scope, client.receive, client.send)
        states = await door.states()
    assert client.answer.body == b"k1;y"
    assert states == ["completed"]
