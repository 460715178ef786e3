"""The request's body on its way through the ASGI door (R11, R52)."""

import gc
import hashlib
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.asgi_client import Client, Counted, http_scope, in_loop, keyed, post, read, respond
from tests.support.asgi_door import Door, SteeredStore
from twiceproof import Policy

MIB = 1024 * 1024
PAYLOAD = bytes(range(256)) * 300


def split(payload: bytes, count: int) -> list[bytes]:
    size = -(-len(payload) // count)
    return [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]


async def once(receive: Any) -> bytes:
    return await read(receive)


async def twice(receive: Any) -> bytes:
    """What frameworks do that cache the body: the second look needs no message."""
    cached = await read(receive)
    return cached and cached


async def streamed(receive: Any) -> bytes:
    digest, more = [], True
    while more:
        message = await receive()
        digest.append(message["body"])
        more = message["more_body"]
    return b"".join(digest)


async def never(receive: Any) -> bytes:
    return PAYLOAD


@pytest.mark.parametrize("reader", [once, twice, streamed, never])
@pytest.mark.parametrize("count", [1, 3, 100])
@in_loop
async def test_the_handler_sees_the_identical_bytes_however_they_came_and_are_read(count, reader):
    """R52, B41: in 1, 3 or 100 chunks; read once, twice, as a stream or not at all; nothing hangs."""

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, body=hashlib.sha256(await reader(receive)).digest())

    app = Counted(echo)
    async with Door(app) as door:
        first = await post(door, "k1", body=split(PAYLOAD, count))
        again = await post(door, "k1", body=split(PAYLOAD, 7))
    assert first.brief == (201, False, hashlib.sha256(PAYLOAD).digest())
    assert again.brief == (201, True, hashlib.sha256(PAYLOAD).digest())
    assert app.effects == 1


@pytest.mark.parametrize("chunks", [[b""], [b"", b"", b""], [b"", b'{"n":1}', b""]])
@in_loop
async def test_empty_chunks_and_empty_bodies_are_bodies_too(chunks):
    """R52: an empty message is no end, and an empty body is compared like any other."""
    app = Counted()
    async with Door(app) as door:
        first = await post(door, "k1", body=chunks)
        same = await post(door, "k1", body=b"".join(chunks))
        other = await post(door, "k1", body=b'{"n":2}')
    assert (first.status, same.replayed, other.code) == (201, True, "idempotency-key-reuse")
    assert app.bodies == [b"".join(chunks)]


@in_loop
async def test_messages_may_leave_out_what_has_a_default():
    """ASGI: body and more_body of a request message are optional."""
    app = Counted()
    async with Door(app) as door:
        client = Client()

        async def bare() -> Any:
            return {"type": "http.request"}

        await door(http_scope(headers=keyed("k1")), bare, client.send)
    assert (client.answer.status, app.bodies) == (201, [b""])


async def raw(door: Door, chunks: Sequence[bytes], *fields: tuple[bytes, bytes], whole: bool = True) -> Client:
    client = Client(chunks, stays_for_body=whole)
    await door(http_scope(headers=[*keyed("k1"), *fields]), client.receive, client.send)
    return client


@pytest.mark.parametrize(
    ("fields", "chunks"),
    [
        ([(b"content-length", b"8")], [b"1234567"]),
        ([(b"content-length", b"6")], [b"1234567"]),
        ([(b"content-length", b"7")], [b""]),
        ([(b"content-length", b"7"), (b"upgrade", b"h2c")], [b""]),
        ([(b"transfer-encoding", b"chunked"), (b"upgrade", b"h2c")], [b""]),
    ],
)
@in_loop
async def test_a_body_that_is_not_the_one_announced_is_refused(fields, chunks):
    """R52: never fingerprinted, never run; a server that loses the body beside an Upgrade is found out."""
    app, store = Counted(), SteeredStore()
    async with Door(app, store=store) as door:
        client = await raw(door, chunks, *fields)
    answer = client.answer
    assert (answer.status, answer.code, answer.problem["retryable"]) == (400, "body-incomplete", True)
    assert (app.effects, store.calls) == (0, ["close"])


@pytest.mark.parametrize(
    ("fields", "chunks"),
    [
        ([(b"content-length", b"7")], [b"1234567"]),
        ([(b"content-length", b"7"), (b"upgrade", b"h2c")], [b"123", b"4567"]),
        ([(b"transfer-encoding", b"chunked")], [b"1234567"]),
        ([(b"transfer-encoding", b"chunked")], [b""]),
        ([(b"transfer-encoding", b"chunked"), (b"upgrade", b"h2c")], [b"1234567"]),
        ([], [b"1234567"]),
        ([], [b""]),
    ],
)
@in_loop
async def test_a_body_that_may_be_the_one_announced_runs(fields, chunks):
    """R52: no false alarm, whatever the framing."""
    app = Counted()
    async with Door(app) as door:
        client = await raw(door, chunks, *fields)
    assert (client.answer.status, app.bodies) == (201, [b"".join(chunks)])


@pytest.mark.parametrize("length", [b"11", b"9" * 5000])
@in_loop
async def test_a_body_that_is_announced_too_large_is_refused_unread(length):
    """R11: before its first byte is asked for, and before the store."""
    app, store = Counted(), SteeredStore()
    async with Door(app, store=store, policy=Policy(max_request_bytes=10)) as door:
        client = Client()

        async def unread() -> Any:
            raise AssertionError("the body was read")

        await door(http_scope(headers=[*keyed("k1"), (b"content-length", length)]), unread, client.send)
    assert (client.answer.status, client.answer.code) == (413, "request-too-large")
    assert (app.effects, store.calls) == (0, ["close"])


@in_loop
async def test_a_body_that_turns_out_too_large_is_refused_without_reading_on():
    """R11: the limit holds for the bytes that arrive; one more than the limit is too many, the limit is not."""
    app, store = Counted(), SteeredStore()
    async with Door(app, store=store, policy=Policy(max_request_bytes=10)) as door:
        client = await raw(door, [b"12345", b"67890", b"1", b"never asked for"], (b"transfer-encoding", b"chunked"))
        left = await client.receive()
        exact = await raw(door, [b"12345", b"67890"], (b"transfer-encoding", b"chunked"))
    assert (client.answer.status, client.answer.code) == (413, "request-too-large")
    assert left["body"] == b"never asked for"
    assert exact.answer.status == 201
    assert store.calls == ["open", "claim", "complete", "close"]


@in_loop
async def test_the_limit_is_for_keyed_requests_only():
    """R11: without a key nothing is read for anybody."""
    app = Counted()
    async with Door(app, policy=Policy(max_request_bytes=10)) as door:
        answer = await post(door, None, body=b"x" * 100)
    assert (answer.status, app.bodies) == (201, [b"x" * 100])


@in_loop
async def test_a_client_that_leaves_before_its_body_is_whole_has_no_effect():
    """R52: nothing runs, nothing is stored, nothing is sent."""
    app, store = Counted(), SteeredStore()
    async with Door(app, store=store) as door:
        client = await raw(door, [b"1234"], (b"content-length", b"7"), whole=False)
    assert (client.sent, app.effects, store.calls) == ([], 0, ["close"])


@pytest.mark.parametrize(("media", "most"), [("application/octet-stream", 1.5), ("application/json", 2.5)])
@in_loop
async def test_one_copy_of_a_large_body_is_held_and_dropped_before_the_handler_ends(media, most):
    """R11: while the handler works, nothing of ours keeps a body that it has let go of."""
    size, chunk = 10 * MIB, 64 * 1024
    held: list[int] = []
    peaks: list[int] = []
    lengths: list[int] = []

    async def drop(scope: Any, receive: Any, send: Any) -> None:
        peaks.append(tracemalloc.get_traced_memory()[1])
        message = await receive()
        lengths.append(len(message["body"]))
        del message
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
        await respond(send)

    async with Door(drop, policy=Policy(max_request_bytes=size)) as door:
        await post(door, "warm")
        piece = b"x" * chunk
        left = size // chunk

        async def receive() -> Any:
            nonlocal left
            left -= 1
            return {"type": "http.request", "body": bytes(bytearray(piece)), "more_body": left > 0}

        client = Client()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            await door(http_scope(headers=keyed("k1", media=media)), receive, client.send)
        finally:
            tracemalloc.stop()
    assert (client.answer.status, lengths[-1]) == (201, size)
    assert held[-1] - before < MIB
    assert peaks[-1] - before < most * size
