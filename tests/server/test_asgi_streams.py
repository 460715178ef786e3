"""Streaming answers through the ASGI door: on time, copied, bounded, honest (R43, R45, R50, R52)."""

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from tests.support.asgi_client import Client, Counted, http_scope, in_loop, keyed, post, read
from tests.support.asgi_door import Door, SteeredStore
from twiceproof import Policy

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def serve(door: Any, client: Client, key: str = "k1") -> asyncio.Task[None]:
    return asyncio.create_task(door(http_scope(headers=keyed(key)), client.receive, client.send))


@in_loop
async def test_each_part_of_a_stream_goes_out_when_it_is_made():
    """R43, R52: head and first byte on time; the key is in flight meanwhile; whole and small, it replays."""
    go = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(part(b"one,"))
        await go.wait()
        await send(part(b"two,"))
        await send(part(b"three", more=False))

    app = Counted(stream)
    async with Door(app) as door:
        client = Client()
        task = serve(door, client)
        await client.until(2)
        meanwhile = await post(door, "k1", body=b"")
        go.set()
        await task
        again = await post(door, "k1", body=b"")
    assert client.sent == [START, part(b"one,"), part(b"two,"), part(b"three", more=False)]
    assert (meanwhile.status, meanwhile.code, meanwhile.all("retry-after")) == (409, "in-progress", [b"1"])
    assert again.brief == (200, True, b"one,two,three")
    assert again.all("content-length") == [b"13"]
    assert app.effects == 1


@in_loop
async def test_an_answer_is_recorded_before_its_last_byte_is_sent():
    """R45: whoever has seen the whole answer finds it again."""
    states: list[list[str]] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(part(b"one"))
        await send(part(b"two", more=False))

    async def note(message: Any) -> None:
        states.append(await door.states())

    async with Door(stream) as door:
        await post(door, "k1", client=Client([b'{"n":1}'], on_send=note))
    assert states == [["in_flight"], ["in_flight"], ["completed"]]


@pytest.mark.parametrize("media", [b"text/event-stream", b"application/octet-stream"])
@in_loop
async def test_an_endless_stream_needs_bounded_memory(media):
    """R43: not more than the largest body that is stored, however much goes through."""
    policy = Policy(max_response_bytes=256 * 1024)
    level: list[int] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "headers": [(b"content-type", media)]})
        for _ in range(200):
            await send(part(b"x" * 64 * 1024))
        gc.collect()
        level.append(tracemalloc.get_traced_memory()[1])
        await send(part(b"", more=False))

    async def swallow(message: Any) -> None:
        message["body"] = b""

    async with Door(stream, policy=policy) as door:
        client = Client([b'{"n":1}'])

        async def send(message: Any) -> None:
            client.sent = [message]

        tracemalloc.start()
        try:
            await door(http_scope(headers=keyed("k1")), client.receive, send)
        finally:
            tracemalloc.stop()
        again = await post(door, "k1")
    assert level[0] < 2 * 256 * 1024
    assert again.code == "replay-unavailable"


@in_loop
async def test_the_copy_of_an_answer_is_let_go_once_it_is_recorded():
    """R43: background work that takes long holds no memory of ours."""
    level: list[int] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(part(bytes(bytearray(900_000)), more=False))
        gc.collect()
        level.append(tracemalloc.get_traced_memory()[0])

    async with Door(answer, policy=Policy(store_body=False)) as door:
        client = Client([b'{"n":1}'])

        async def send(message: Any) -> None:
            """Forget it at once."""

        tracemalloc.start()
        try:
            await door(http_scope(headers=keyed("k1")), client.receive, send)
        finally:
            tracemalloc.stop()
    assert level[0] < 100_000


@pytest.mark.parametrize(("guarantee", "code"), [("at_most_once", "outcome-unknown"), ("at_least_once", "")])
@pytest.mark.parametrize("how", ["raise", "return"])
@in_loop
async def test_a_stream_that_its_handler_cuts_short_is_never_stored_as_finished(guarantee, code, how):
    """R50: the client sees what it would see without us; at most once is then unsettled, at least once runs again."""
    cut = True

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(part(b"one"))
        if not cut:
            await send(part(b"two", more=False))
        elif how == "raise":
            raise LookupError("in mid-stream")

    app = Counted(stream)
    async with Door(app, policy=Policy(guarantee=guarantee)) as door:
        client = Client()
        task = serve(door, client)
        await asyncio.wait({task})
        error = task.exception()
        cut = False
        again = await post(door, "k1", body=b"")
    assert isinstance(error, LookupError) == (how == "raise")
    assert client.sent == [START, part(b"one")]
    assert again.code == code
    if code:
        assert (again.status, again.problem["may_have_taken_effect"], again.problem["cause"]) == (
            500,
            True,
            "cut-short",
        )
    else:
        assert again.brief == (200, False, b"onetwo")
    assert app.effects == (1 if code else 2)


@in_loop
async def test_a_stream_whose_client_leaves_is_told_and_not_stored_as_finished():
    """R44, R50: the disconnect is held back until the stream begins, and delivered then."""
    heard: list[str] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        leaving = asyncio.create_task(receive())
        await asyncio.sleep(0.02)
        heard.append("before the stream" if leaving.done() else "nothing before the stream")
        await send(START)
        await send(part(b"one"))
        heard.append((await leaving)["type"])

    app = Counted(stream)
    async with Door(app) as door:
        client = Client()
        client.leave()
        await serve(door, client)
        again = await post(door, "k1", body=b"")
    assert heard == ["nothing before the stream", "http.disconnect"]
    assert (again.code, app.effects) == ("outcome-unknown", 1)


@in_loop
async def test_a_stream_may_begin_to_listen_for_its_client_when_it_already_flows():
    """R44: the first look comes after the first byte, and must not wait for the end."""
    heard: list[str] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        await send(START)
        await send(part(b"one"))
        heard.append((await receive())["type"])

    async with Door(stream) as door:
        client = Client()
        client.leave()
        await serve(door, client)
    assert heard == ["http.disconnect"]


@in_loop
async def test_a_stream_to_a_client_that_left_is_completed_where_its_handler_does_not_mind():
    """R43, R50: servers that swallow what is sent to nobody; the answer was made whole, so it replays."""

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(part(b"one,"))
        await send(part(b"two", more=False))

    async with Door(stream) as door:
        client = Client()
        client.leave()
        await serve(door, client)
        again = await post(door, "k1", body=b"")
    assert again.brief == (200, True, b"one,two")


@in_loop
async def test_a_send_that_fails_in_mid_stream_reaches_the_handler():
    """R50: as the server raised it; the stream that then ends early is not stored as finished."""

    async def fail(message: Any) -> None:
        if message.get("body"):
            raise OSError("client left")

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(part(b"one"))

    async with Door(stream) as door:
        with pytest.raises(OSError, match="client left"):
            await post(door, "k1", body=b"", client=Client(on_send=fail))
        again = await post(door, "k1", body=b"")
    assert again.code == "outcome-unknown"


@in_loop
async def test_a_head_that_could_not_be_sent_is_told_when_the_stream_goes_on():
    """R50: a stream for nobody ends at its first part."""
    parts = 0

    async def fail(message: Any) -> None:
        raise OSError("client left")

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        nonlocal parts
        await send(START)
        while True:
            parts += 1
            await send(part(b"x"))

    async with Door(stream) as door:
        with pytest.raises(OSError, match="client left"):
            await post(door, "k1", client=Client([b'{"n":1}'], on_send=fail))
        states = await door.states()
    assert (parts, states) == (1, ["parked"])


@in_loop
async def test_trailers_follow_an_answer_that_is_already_recorded():
    """R52: they pass in their place and are not part of the replay."""
    trailers = {"type": "http.response.trailers", "headers": [(b"x-sum", b"1")], "more_trailers": False}
    start = {**START, "trailers": True}

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        for message in (start, part(b"one", more=False), trailers):
            await send(message)

    async with Door(stream) as door:
        first, again = await post(door, "k1"), await post(door, "k1")
    assert first.messages == [start, part(b"one", more=False), trailers]
    assert again.brief == (200, True, b"one")


@in_loop
async def test_messages_around_an_answer_keep_their_places():
    """R52: early hints, pushes and debug messages go through at once, before the start and between the parts."""
    hint = {"type": "http.response.early_hint", "links": [b"</a>"]}
    push = {"type": "http.response.push", "path": "/a", "headers": []}
    debug = {"type": "http.response.debug", "info": {}}
    messages = [hint, debug, START, push, part(b"one"), hint, part(b"two", more=False)]

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async with Door(stream) as door:
        first, again = await post(door, "k1"), await post(door, "k1")
    assert first.messages == messages
    assert again.brief == (200, True, b"onetwo")


@in_loop
async def test_a_file_that_the_server_sends_by_itself_is_completed_without_its_body():
    """R26, R52: pathsend ends an answer, and we never see its bytes."""
    path = {"type": "http.response.pathsend", "path": "/srv/report.pdf"}
    states: list[list[str]] = []

    async def file(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(path)

    async def note(message: Any) -> None:
        states.append(await door.states())

    async with Door(file) as door:
        first = await post(door, "k1", client=Client([b'{"n":1}'], on_send=note))
        again = await post(door, "k1")
    assert first.messages == [START, path]
    assert states == [["in_flight"], ["completed"]]
    assert (again.code, again.problem["original_status"]) == ("replay-unavailable", 200)


@in_loop
async def test_a_file_that_is_sent_in_pieces_ends_with_its_last_piece():
    """R26, R52: zerocopysend may be one part of several."""
    pieces = [
        {"type": "http.response.zerocopysend", "file": 3, "count": 5, "more_body": True},
        {"type": "http.response.zerocopysend", "file": 3, "count": 5},
    ]
    states: list[list[str]] = []

    async def file(scope: Any, receive: Any, send: Any) -> None:
        for message in (START, *pieces):
            await send(message)

    async def note(message: Any) -> None:
        states.append(await door.states())

    async with Door(file) as door:
        first = await post(door, "k1", client=Client([b'{"n":1}'], on_send=note))
        again = await post(door, "k1")
    assert first.messages == [START, *pieces]
    assert states == [["in_flight"], ["in_flight"], ["completed"]]
    assert again.code == "replay-unavailable"


@in_loop
async def test_a_store_that_is_down_at_the_end_does_not_hold_the_answer_back():
    """R47: the answer goes out, the record is written later, and the retry replays."""

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(part(b"one", more=False))

    store = SteeredStore()
    app = Counted(stream)
    async with Door(app, store=store) as door:
        store.down = {"complete"}
        first = await post(door, "k1")
        store.down = set()
        await door.until(lambda states: states == ["completed"])
        again = await post(door, "k1")
    assert (first.brief, again.brief) == ((200, False, b"one"), (200, True, b"one"))
    assert app.effects == 1
