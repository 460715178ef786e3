"""The FastAPI door in a server's hands: its start and stop, and requests over real sockets (R25, R40, R41, R52)."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.support.asgi_client import Client, in_loop, post
from tests.support.asgi_door import SteeredStore
from tests.support.fastapi_program import program
from tests.support.fastapi_service import Service, run_lifespan
from twiceproof import ConfigurationError, StoreUnavailable


def with_orders(service: Service) -> Service:
    @service.app.post("/orders", status_code=201)
    @service.idempotency.operation()
    async def create() -> int:
        return service.effect()

    return service


@in_loop
async def test_the_engine_opens_before_the_application_and_closes_after_it():
    """R41: the application's own lifespan runs inside; requests between them find the store open."""
    order: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, int]]:
        order.append(list(service.store.calls))
        yield {"a": 1}
        order.append(list(service.store.calls))

    service = with_orders(Service(app=FastAPI(lifespan=lifespan)))
    answers = []

    async def while_up() -> None:
        answers.append(await post(service, "k"))

    said = await run_lifespan(service.app, while_up)
    assert [message["type"] for message in said] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert order == [["open"], ["open", "claim", "complete"]]
    assert service.store.calls == ["open", "claim", "complete", "close"]
    assert answers[0].brief == (201, False, b"1")


@in_loop
async def test_a_store_that_is_down_at_the_start_does_not_keep_the_application_down():
    """R48: the service comes up, covered requests are told 503 until the store is back."""
    service = with_orders(Service())
    service.store.down = {"open", "claim"}
    answers = []

    async def while_up() -> None:
        answers.append(await post(service, "k"))
        service.store.down.clear()
        answers.append(await post(service, "k"))

    await run_lifespan(service.app, while_up)
    assert [(answer.status, answer.code) for answer in answers] == [(503, "store-unavailable"), (201, "")]


@in_loop
async def test_a_set_up_that_can_not_work_stops_the_start_with_its_sentence():
    """R54: what will not be better at the first request is told to the server, which gives up."""

    class Newer(SteeredStore):
        async def open(self) -> None:
            raise ConfigurationError("written by a newer release")

    service = Service(store=Newer())
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        said.append(message)

    with pytest.raises(ConfigurationError):
        await service.app({"type": "lifespan", "asgi": {}, "state": {}}, receive, send)
    assert said == [{"type": "lifespan.startup.failed", "message": "written by a newer release"}]


@pytest.mark.parametrize("started", [True, False])
def test_it_works_under_the_test_client_with_and_without_a_lifespan(started):
    """R41: without a lifespan the engine opens at the first covered request, on each event loop anew."""
    service = with_orders(Service())
    client = TestClient(service.app)
    answers = []
    if started:
        with client:
            answers = [client.post("/orders", headers={"Idempotency-Key": "k"}) for _ in range(3)]
    else:
        answers = [client.post("/orders", headers={"Idempotency-Key": "k"}) for _ in range(3)]
        asyncio.run(service.idempotency.engine.close())
    assert [(answer.status_code, answer.text) for answer in answers] == [(201, "1")] * 3
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true", "true"]


@in_loop
async def test_a_mounted_application_with_its_own_door_needs_no_lifespan():
    """R41: mounted applications are never started; their engine opens at the first request that it covers."""
    service = with_orders(Service())
    outer = FastAPI()
    outer.mount("/v1", service.app)
    answers = []

    async def while_up() -> None:
        answers.extend([await post(outer, "k", path="/v1/orders") for _ in range(2)])

    await run_lifespan(outer, while_up)
    await service.idempotency.engine.close()
    assert [answer.brief for answer in answers] == [(201, False, b"1"), (201, True, b"1")]


@in_loop
async def test_two_doors_in_one_application_keep_their_operations_apart():
    """Each mark finds the layer of its own Idempotency: other stores, other principals, other records."""
    service = with_orders(Service())
    second = Service(app=service.app)

    @service.app.post("/refunds")
    @second.idempotency.operation(required=True)
    async def refund() -> int:
        return second.effect()

    try:
        answers = [await post(service, key, path=path) for path in ("/orders", "/refunds") for key in ("k", "k", None)]
        records = [len(await service.records()), len(await second.records())]
    finally:
        await service.idempotency.engine.close()
        await second.idempotency.engine.close()
    assert [answer.status for answer in answers] == [201, 201, 201, 200, 200, 400]
    assert records == [1, 1]


@in_loop
async def test_a_stream_of_the_inner_door_is_not_held_by_the_outer_one():
    """R52: a layer heeds its own marks only, so the head of another one's stream goes on at its claim."""
    service = Service()
    second = Service(app=service.app)
    service.app.post("/orders")(service.idempotency.operation()(with_nothing))
    gate = asyncio.Event()

    @service.app.post("/lines")
    @second.idempotency.operation()
    async def lines() -> AsyncIterator[int]:
        await gate.wait()
        yield second.effect()

    try:
        client = Client([b"{}"])
        running = asyncio.create_task(post(service, "k", path="/lines", body=b"{}", client=client))
        await asyncio.wait_for(client.until(1), 5)
        gate.set()
        answer = await running
    finally:
        await service.idempotency.engine.close()
        await second.idempotency.engine.close()
    assert answer.brief == (200, False, b"1\n")


async def with_nothing() -> None: ...


@in_loop
async def test_the_store_down_at_complete_still_delivers_and_is_completed_later():
    """R47: the client has its answer, the record follows in the background, then the retry replays."""
    async with with_orders(Service()) as service:
        failures = [True]
        complete = service.store.complete

        async def failing(*args: Any) -> Any:
            if failures:
                failures.clear()
                raise StoreUnavailable
            return await complete(*args)

        service.store.complete = failing  # type: ignore[method-assign]
        first = await post(service, "k")
        again = await post(service, "k")
        while not again.replayed:
            await asyncio.sleep(0.01)
            again = await post(service, "k")
    assert first.brief == (201, False, b"1")
    assert again.brief == (201, True, b"1")


# ---------------------------------------------------------------------- over real sockets


def test_answers_and_replays_are_framed_for_the_next_request_on_the_connection(tmp_path: Path):
    """R25, R52: first answer, replay, chunked stream, its replay and a refusal follow each other on one connection."""
    with program(tmp_path) as service:
        wire = service.connect()
        seen = [
            wire.ask("k"),
            wire.ask("k"),
            wire.ask("s", {"n": 3}, "/lines"),
            wire.ask("s", {"n": 3}, "/lines"),
            wire.ask("k", {"n": 2})[:2],
            wire.ask("a,b")[:2],
            wire.ask("v", {})[:2],
        ]
        wire.send("k")
        wire.send("k")
        pipelined = [wire.answer()[2], wire.answer()[2]]
        wire.close()
    body = b'{"effect":1,"n":1}'
    assert seen == [
        (201, False, body),
        (201, True, body),
        (200, False, b"1\n2\n3\n"),
        (200, True, b"1\n2\n3\n"),
        (422, False),
        (400, False),
        (422, False),
    ]
    assert pipelined == [body, body]


def test_a_replay_is_compressed_for_its_own_client(tmp_path: Path):
    """R49: compression stands outside, so the record holds the plain bytes and each client gets what it accepts."""
    with program(tmp_path) as service:
        wire = service.connect()
        codings = []
        for extra in ("Accept-Encoding: gzip\r\n", "", "Accept-Encoding: gzip\r\n"):
            wire.send("k", path="/long", extra=extra)
            status, fields, _ = wire.answer()
            codings.append((status, fields.get("content-encoding"), fields.get("idempotent-replayed")))
        wire.close()
        effects = service.count("long")
    assert codings == [(200, "gzip", None), (200, None, "true"), (200, "gzip", "true")]
    assert effects == 1


def test_fifty_duplicates_over_fifty_connections_have_one_effect(tmp_path: Path):
    """R22: whose last bytes arrive together; nobody sees a 5xx, and all 2xx bodies are equal."""
    with program(tmp_path) as service:
        wires = [service.connect() for _ in range(50)]
        ready = threading.Barrier(50)
        seen: list[tuple[int, bool, bytes]] = []

        def ask(wire: Any) -> None:
            ready.wait(20)
            seen.append(wire.ask("k"))

        threads = [threading.Thread(target=ask, args=[wire]) for wire in wires]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        for wire in wires:
            wire.close()
        effects = service.count("order")
    assert len(seen) == 50
    assert effects == 1
    assert {status for status, _, _ in seen} <= {201, 409}
    assert {body for status, _, body in seen if status == 201} == {b'{"effect":1,"n":1}'}
    assert [replayed for status, replayed, _ in seen if status == 201].count(False) == 1


def test_a_client_that_hangs_up_leaves_no_key_in_progress(tmp_path: Path):
    """R44: the handler goes on after its client left; once it is done, the retry replays its answer."""
    with program(tmp_path) as service:
        wire = service.connect()
        wire.send("k", path="/slow")
        service.until("slow")
        wire.close()
        other = service.connect()
        meanwhile = other.ask("k", path="/slow")[:2]
        (tmp_path / "go").touch()
        answer = other.ask("k", path="/slow")
        while answer[0] == 409:
            answer = other.ask("k", path="/slow")
        other.close()
        effects = service.count("slow")
    assert meanwhile == (409, False)
    assert answer == (201, True, b'{"effect":1}')
    assert effects == 1


@pytest.mark.slow
def test_a_server_that_stops_waits_for_its_threads_and_records_what_they_came_to(tmp_path: Path):
    """R40, R41: SIGTERM in mid-handler, cut off after a second: the next process replays, with one effect."""
    store = f"sqlite:///{tmp_path}/keys.db"
    with program(tmp_path, store) as service:
        wire = service.connect()
        wire.send("k", path="/slow")
        service.until("slow")
        threading.Timer(2, (tmp_path / "go").touch).start()
        service.stop(signal.SIGTERM)
        answer = wire.answer()
        wire.close()
    with program(tmp_path, store) as service:
        wire = service.connect()
        again = wire.ask("k", path="/slow")
        wire.close()
        effects = service.count("slow")
    assert (answer[0], answer[2]) == (201, b'{"effect":1}')
    assert again == (201, True, b'{"effect":1}')
    assert effects == 1
