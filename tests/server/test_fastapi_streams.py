"""Answers of several messages: passed on as they come, stored if they end whole and small (R26, R43-R45, R50)."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fastapi import Request, Response
from fastapi.responses import FileResponse, RedirectResponse, StreamingResponse
from fastapi.sse import EventSourceResponse

from tests.support.asgi_client import Answer, Client, http_scope, in_loop, keyed, post
from tests.support.fastapi_service import Service

AT_LEAST: Any = {"guarantee": "at_least_once"}


def outcome(answer: Answer) -> tuple[int, bool, str]:
    return answer.status, answer.replayed, answer.code


@in_loop
async def test_streamed_and_file_answers_replay_if_they_are_small(tmp_path):
    """R43, B05: StreamingResponse, FileResponse and a redirect are passed on as they come, and stored like others."""
    file = tmp_path / "file.txt"
    file.write_bytes(b"file")
    async with Service() as service:

        async def chunks() -> AsyncIterator[bytes]:
            yield b"a"
            yield b"b"

        async def made(make: Any) -> Response:
            service.effect()
            return make()

        makers = {
            "/stream": lambda: StreamingResponse(chunks(), 202),
            "/file": lambda: FileResponse(file),
            "/see": lambda: RedirectResponse("/o/1", 303),
        }
        for path, make in makers.items():
            service.app.post(path)(service.idempotency.operation()(functools.partial(made, make)))
        answers = [await post(service, "k", path=path) for path in makers for _ in range(2)]
    expected = [(202, b"ab"), (200, b"file"), (303, b"")]
    assert [answer.brief for answer in answers] == [
        (status, replayed, body) for status, body in expected for replayed in (False, True)
    ]
    assert answers[5].all("location") == [b"/o/1"]
    assert service.effects == 3


@in_loop
async def test_a_file_that_the_server_sends_by_itself_is_given_once(tmp_path):
    """R26, R52, B05: with pathsend nobody here sees its bytes; the message passes as it is, and the retry is told."""
    file = tmp_path / "file.txt"
    file.write_bytes(b"file")
    extensions: dict[str, Any] = {"http.response.pathsend": {}}
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create() -> FileResponse:
            service.effect()
            return FileResponse(file, 201)

        first, again = [await post(service, "k", extensions=extensions) for _ in range(2)]
    assert first.messages[-1] == {"type": "http.response.pathsend", "path": str(file)}
    assert [outcome(first), outcome(again)] == [(201, False, ""), (409, False, "replay-unavailable")]
    assert service.effects == 1


@in_loop
async def test_the_head_of_a_plain_generator_goes_when_it_has_claimed():
    """R52: its first step, in a thread, is begun after the head is on its way."""
    async with Service() as service:
        go = threading.Event()

        @service.app.post("/orders")
        @service.idempotency.operation()
        def create() -> Iterator[int]:
            assert go.wait(20)
            yield service.effect()

        client = Client([b"{}"])
        running = asyncio.create_task(post(service, "k", body=b"{}", client=client))
        await asyncio.wait_for(client.until(1), 5)
        go.set()
        answer = await running
    assert answer.brief == (200, False, b"1\n")


@in_loop
async def test_a_stream_starts_when_it_has_claimed_and_its_parts_are_on_time():
    """R52: the head goes with the claim, each part as it is yielded, none waits for the end."""
    async with Service() as service:
        steps = [asyncio.Event(), asyncio.Event()]

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create() -> AsyncIterator[int]:
            await steps[0].wait()
            yield service.effect()
            await steps[1].wait()
            yield 2

        service.store.held["claim"] = asyncio.Event()
        client = Client([b"{}"])
        running = asyncio.create_task(post(service, "k", body=b"{}", client=client))
        await service.store.reached.wait()
        before = len(client.sent)
        service.store.held.pop("claim").set()
        await client.until(1)
        refused = await post(service, "k", body=b"{}")
        steps[0].set()
        await client.until(2)
        part = client.sent[1]["body"]
        steps[1].set()
        first = await running
        again = await post(service, "k", body=b"{}")
    assert (before, part) == (0, b"1\n")
    assert outcome(refused) == (409, False, "in-progress")
    assert [first.brief, again.brief] == [(200, False, b"1\n2\n"), (200, True, b"1\n2\n")]


@pytest.mark.parametrize("version", ["2.0", "2.4"])
@in_loop
async def test_an_event_stream_runs_once_and_its_retry_is_told_so(version):
    """R26, R43: server-sent events are completed without body: 409 replay-unavailable, original_status 200."""
    async with Service() as service:

        @service.app.post("/orders", response_class=EventSourceResponse)
        @service.idempotency.operation()
        async def create() -> AsyncIterator[dict[str, int]]:
            yield {"effect": service.effect()}

        asgi = {"version": "3.0", "spec_version": version}
        first, again = [await post(service, "k", asgi=asgi) for _ in range(2)]
        bad = await post(service, "a,b", asgi=asgi)
    assert first.brief == (200, False, b'data: {"effect":1}\n\n')
    assert outcome(again) == (409, False, "replay-unavailable")
    assert again.problem["original_status"] == 200
    assert outcome(bad) == (400, False, "idempotency-key-invalid")


@in_loop
async def test_signs_of_life_do_not_start_an_event_stream_before_it_has_claimed(monkeypatch):
    """R23, R48: while the store is slow, comments that keep the connection alive wait with the head of the stream."""
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.01)
    async with Service() as service:

        @service.app.post("/orders", response_class=EventSourceResponse)
        @service.idempotency.operation()
        async def create() -> AsyncIterator[dict[str, int]]:
            yield {"effect": service.effect()}

        starts, answers = [], []
        for _ in range(2):
            service.store.held["claim"] = asyncio.Event()
            client = Client([b"{}"])
            running = asyncio.create_task(post(service, "k", body=b"{}", client=client))
            await asyncio.sleep(0.1)
            starts.append(len(client.sent))
            service.store.held.pop("claim").set()
            answers.append(await running)
    assert starts == [0, 0]
    assert [outcome(answer) for answer in answers] == [(200, False, ""), (409, False, "replay-unavailable")]
    assert service.effects == 1


@pytest.mark.parametrize("plain", [True, False])
@in_loop
async def test_a_generator_is_refused_and_validated_like_any_endpoint(plain):
    """The held head of a stream keeps neither 422 nor a refusal from its client, and no step of it runs."""
    async with Service() as service:

        async def stream(n: int) -> AsyncIterator[int]:
            yield service.effect()

        def plain_stream(n: int) -> Iterator[int]:
            yield service.effect()

        service.app.post("/orders")(service.idempotency.operation(required=True)(plain_stream if plain else stream))
        answers = [
            await post(service, key, query=query) for key, query in (("k", b"n=x"), (None, b"n=1"), ("", b"n=1"))
        ]
    assert [outcome(answer) for answer in answers] == [
        (422, False, ""),
        (400, False, "idempotency-key-missing"),
        (400, False, "idempotency-key-invalid"),
    ]
    assert service.effects == 0


@in_loop
async def test_a_refusal_that_is_itself_streamed_passes_a_generator_endpoint():
    """An exception handler may stream its answer to an invalid request; the held head goes with its first part."""
    from fastapi.exceptions import RequestValidationError

    async with Service() as service:

        @service.app.exception_handler(RequestValidationError)
        async def handle(request: Request, error: Exception) -> StreamingResponse:
            return StreamingResponse(iter([b"a", b"b"]), 422)

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(n: int) -> AsyncIterator[int]:
            yield service.effect()

        answer = await post(service, "k")
    assert answer.brief == (422, False, b"ab")


@pytest.mark.parametrize(("options", "states"), [({}, ["parked"]), (AT_LEAST, [])])
@in_loop
async def test_a_stream_that_breaks_is_never_a_finished_answer(options, states):
    """R50: at-most-once the outcome is unknown, at-least-once the key is free; its client sees a broken stream."""
    async with Service() as service:

        @service.app.post("/orders")
        @service.idempotency.operation(**options)
        async def create() -> AsyncIterator[int]:
            yield service.effect()
            raise ZeroDivisionError

        client = Client([b"{}"])
        with pytest.raises(ZeroDivisionError):
            await post(service, "k", body=b"{}", client=client)
        seen = await service.states()
    assert seen == states
    assert not client.answer.whole


@pytest.mark.parametrize("version", ["2.0", "2.4"])
@in_loop
async def test_a_client_that_leaves_a_buffered_answer_changes_nothing(version):
    """R44, R50: the handler ends without seeing the disconnect, its answer is recorded, and the retry replays it."""
    async with Service() as service:
        client = Client([b"{}"])
        seen: list[bool] = []

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(request: Request) -> int:
            client.leave()
            seen.append(await request.is_disconnected())
            await asyncio.sleep(0)
            return service.effect()

        async def gone(message: Any) -> None:
            raise OSError("connection lost")

        client.on_send = gone
        scope = http_scope(headers=keyed("k", size=2), asgi={"version": "3.0", "spec_version": version})
        with contextlib.suppress(OSError):
            await service.app(scope, client.receive, client.send)
        again = await post(service, "k", body=b"{}")
    assert seen == [False]
    assert again.brief == (200, True, b"1")
