"""The request's body on its way to a marked endpoint: seen by all, copied at most once (R11, R52)."""

import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from tests.support.asgi_client import Client, http_scope, in_loop, keyed, post
from tests.support.fastapi_service import Service
from twiceproof import ConfigurationError, Policy

KIB = 1024
MIB = 1024 * KIB


class Order(BaseModel):
    n: int


async def cached(request: Request) -> bytes:
    return await request.body()


async def streamed(request: Request) -> bytes:
    """As a form parser reads: to the end, and without keeping it."""
    return b"".join([chunk async for chunk in request.stream()])


async def begun(request: Request) -> bytes:
    """A dependency that looks at the beginning only."""
    message = await request.receive()
    return message["body"]


async def untouched(request: Request) -> bytes:
    return b""


READERS = {"cached": cached, "streamed": streamed, "begun": begun, "untouched": untouched}


@pytest.mark.parametrize("before", READERS)
@pytest.mark.parametrize("count", [1, 2, 50])
@in_loop
async def test_what_is_read_before_the_claim_is_part_of_the_fingerprint(before, count):
    """R17: however a dependency reads, another body under the same key is 422 and the same one replays."""
    payload = bytes(range(256)) * 10
    size = -(-len(payload) // count)
    chunks = [payload[at : at + size] for at in range(0, len(payload), size)]
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(read: Annotated[bytes, Depends(READERS[before])]) -> int:
            return service.effect()

        answers = [
            await post(service, "k", body=chunks),
            await post(service, "k", body=payload),
            await post(service, "k", body=[payload[:-1], b"x"]),
            await post(service, "k", body=payload[:-1]),
            await post(service, "k", body=b""),
        ]
    assert [(answer.status, answer.replayed) for answer in answers] == [(200, False), (200, True)] + [(422, False)] * 3
    assert service.effects == 1


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("count", [1, 2, 50])
@pytest.mark.parametrize("after", ["cached", "streamed"])
@in_loop
async def test_the_handler_can_still_read_what_nobody_read_before(after, count, key):
    """R52: an endpoint that reads its request itself gets the identical bytes, in order, once."""
    payload = bytes(range(256)) * 10
    size = -(-len(payload) // count)
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(request: Request) -> bool:
            return await READERS[after](request) == payload

        @service.app.post("/rest")
        @service.idempotency.operation()
        async def rest(request: Request, first: Annotated[bytes, Depends(begun)]) -> bool:
            more, parts = True, [first]
            while more and count > 1:
                message = await request.receive()
                parts.append(message["body"])
                more = message["more_body"]
            return b"".join(parts) == payload

        chunks = [payload[at : at + size] for at in range(0, len(payload), size)]
        bodies = [(await post(service, key, path=path, body=chunks)).body for path in ("/orders", "/rest")]
    assert bodies == [b"true", b"true"]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("reader", ["cached", "untouched", "begun"])
@in_loop
async def test_a_body_over_the_limit_is_refused_before_the_claim(reader, declared):
    """R11: 413 whether the length is declared or met on the way; a body of exactly the limit runs."""
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation(max_request_bytes=100)
        async def create(read: Annotated[bytes, Depends(READERS[reader])]) -> int:
            return service.effect()

        answers = []
        for size in (100, 101):
            client = Client([b"x" * 60, b"y" * (size - 60)])
            scope = http_scope(headers=keyed(f"k{size}", size=size if declared else None))
            await service.app(scope, client.receive, client.send)
            answers.append(client.answer)
        claims = service.store.calls.count("claim")
    assert [(answer.status, answer.code) for answer in answers] == [(200, ""), (413, "request-too-large")]
    assert (claims, service.effects) == (1, 1)


@pytest.mark.parametrize("limit", [10, 10 * MIB])
@pytest.mark.parametrize("before", [True, False])
@in_loop
async def test_without_a_key_there_is_no_limit_and_no_copy(before, limit):
    """R52: the limit is for what we fingerprint; a key-less body is neither refused nor kept."""
    async with Service(policy=Policy(max_request_bytes=limit)) as service:
        peaks: list[int] = []

        async def sized(request: Request) -> int:
            size = 0
            async for chunk in request.stream():
                size += len(chunk)
                peaks.append(tracemalloc.get_traced_memory()[0])
            return size

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(request: Request, size: Annotated[int, Depends(sized if before else no_size)]) -> int:
            return size or await sized(request)

        gc.collect()
        tracemalloc.start()
        try:
            answer = await upload(service, None)
        finally:
            tracemalloc.stop()
    assert (answer.status, answer.body) == (200, b"%d" % (8 * MIB))
    assert max(peaks) < 2 * MIB


async def no_size() -> int:
    return 0


class Upload(Client):
    """A client whose chunks exist only while somebody keeps them."""

    count, size = 32, 256 * KIB

    async def receive(self) -> Any:
        self.count -= 1
        return {"type": "http.request", "body": bytes(self.size), "more_body": self.count > 0}


async def upload(service: Service, key: str | None) -> Any:
    client = Upload()
    await service.app(http_scope(headers=keyed(key, size=8 * MIB)), client.receive, client.send)
    return client.answer


@in_loop
async def test_one_copy_is_added_and_dropped_at_the_claim():
    """R11: of a body that a dependency streams away we keep one copy until the fingerprint is made, then none."""
    async with Service() as service:
        levels: list[int] = []

        async def away(request: Request) -> None:
            async for _ in request.stream():
                pass
            levels.append(tracemalloc.get_traced_memory()[0])

        @service.app.post("/orders", dependencies=[Depends(away)])
        @service.idempotency.operation()
        async def create() -> None:
            gc.collect()
            levels.append(tracemalloc.get_traced_memory()[0])

        await post(service, "warm")
        levels.clear()
        gc.collect()
        tracemalloc.start()
        try:
            answer = await upload(service, "k")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert answer.status == 200
    assert 8 * MIB <= levels[0] < 11 * MIB
    assert levels[1] < MIB
    assert peak < 20 * MIB


@pytest.mark.parametrize("reader", ["cached", "untouched"])
@pytest.mark.parametrize(("announced", "sent"), [(10, 9), (9, 10)])
@in_loop
async def test_a_body_of_another_length_than_announced_is_never_fingerprinted(announced, sent, reader):
    """R52: 400 body-incomplete, no record, no effect."""
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(read: Annotated[bytes, Depends(READERS[reader])]) -> int:
            return service.effect()

        client = Client([b"x" * sent])
        await service.app(http_scope(headers=keyed("k", size=announced)), client.receive, client.send)
        calls = list(service.store.calls)
    assert (client.answer.status, client.answer.code) == (400, "body-incomplete")
    assert (calls, service.effects) == ([], 0)


@pytest.mark.parametrize("declared", [8, None])
@pytest.mark.parametrize("reader", ["streamed", "untouched"])
@in_loop
async def test_a_client_that_leaves_within_its_body_has_no_effect(reader, declared):
    """R52: half a body is claimed by nobody, whoever was reading it."""
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(read: Annotated[bytes, Depends(READERS[reader])]) -> int:
            return service.effect()

        client = Client([b"half"], stays_for_body=False)
        with contextlib.suppress(ClientDisconnect):
            await service.app(http_scope(headers=keyed("k", size=declared)), client.receive, client.send)
        calls = list(service.store.calls)
    assert (calls, service.effects) == ([], 0)


@in_loop
async def test_json_is_compared_by_value_and_form_pairs_in_order():
    """R18, R19: spelling and chunking do not matter, every change of value does."""
    async with Service() as service:

        @service.app.post("/json")
        @service.idempotency.operation()
        async def json_order(order: dict[str, Any]) -> int:
            return service.effect()

        @service.app.post("/form")
        @service.idempotency.operation()
        async def form_order(read: Annotated[bytes, Depends(streamed)]) -> int:
            return service.effect()

        form = (b"content-type", b"application/x-www-form-urlencoded")
        cases = [
            ("/json", (), b'{"a":1,"b":{"c":2,"d":[1,2]}}'),
            ("/json", (), b'{ "b": {"d": [1, 2], "c": 2.0}, "a": 1 }'),
            ("/json", (), b'{"a":1,"b":{"c":2,"d":[2,1]}}'),
            ("/form", (form,), b"a=1&b=%7e"),
            ("/form", (form,), b"a=1&b=~"),
            ("/form", (form,), b"b=~&a=1"),
        ]
        answers = []
        for path, fields, body in cases:
            headers = [field for field in keyed("k", size=len(body)) if not fields or field[0] != b"content-type"]
            client = Client([body])
            await service.app(http_scope(path=path, headers=[*headers, *fields]), client.receive, client.send)
            answers.append((client.answer.status, client.answer.replayed))
    assert answers == [(200, False), (200, True), (422, False)] * 2


@in_loop
async def test_an_endpoint_hidden_behind_a_copied_scope_refuses_rather_than_guesses():
    """A mounted application that copies its scope hides which endpoint reads: install there, or nothing runs."""
    async with Service() as service:
        inner = FastAPI()

        @inner.post("/orders")
        @service.idempotency.operation()
        async def create(order: Order) -> int:
            return service.effect()

        async def copying(scope: Any, receive: Any, send: Any) -> None:
            await inner(dict(scope), receive, send)

        service.app.mount("/inner", copying)
        with pytest.raises(ConfigurationError, match="call install on that application too"):
            await post(service, "k", path="/inner/orders")
        without = await post(service, None, path="/inner/orders")
        inner.middleware_stack = None
        service.idempotency.install(inner)
        answers = [await post(service, "k", path="/inner/orders") for _ in range(2)]
    assert without.brief == (200, False, b"1")
    assert [answer.brief for answer in answers] == [(200, False, b"2"), (200, True, b"2")]


@in_loop
async def test_header_fields_given_as_an_iterator_are_seen_by_all():
    """ASGI promises an iterable of fields; ours is not the only look at it."""
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation(required=True)
        async def create(request: Request, order: Order) -> list[Any]:
            return [service.effect(), request.headers["host"]]

        answers = []
        for _ in range(2):
            client = Client([b'{"n":1}'])
            scope = http_scope(headers=[])
            scope["headers"] = iter(keyed("k", size=7))
            await service.app(scope, client.receive, client.send)
            answers.append(client.answer.brief)
    assert answers == [(200, False, b'[1,"test"]'), (200, True, b'[1,"test"]')]


@in_loop
async def test_a_body_that_middleware_outside_consumed_and_gave_again_is_whole():
    """R49: our layer is innermost, so what the application's other middleware did to the body has been done."""
    async with Service() as service:

        @service.app.middleware("http")
        async def logging(request: Request, call_next: Any) -> Any:
            await request.body()
            return await call_next(request)

        router = APIRouter()

        @router.post("/orders")
        @service.idempotency.operation()
        async def create(order: Order) -> AsyncIterator[int]:
            yield service.effect()

        service.app.include_router(router)
        answers = [await post(service, "k", body=[b'{"n"', b":1}"]) for _ in range(2)]
    assert [answer.brief for answer in answers] == [(200, False, b"1\n"), (200, True, b"1\n")]
