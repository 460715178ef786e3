"""A client that leaves, and a duplicate that waits (R22, R23, R44)."""

import asyncio
import gc
from typing import Any

import pytest

from tests.support.asgi_client import Answer, Client, Counted, http_scope, in_loop, keyed, post, read, respond
from tests.support.asgi_door import Door, SteeredStore
from twiceproof import Policy


@in_loop
async def test_a_client_that_leaves_in_mid_handler_does_not_stop_the_handler():
    """R44: it hears of no disconnect, its answer is recorded, and the retry replays it."""
    heard: list[Any] = []
    go = asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        watching = asyncio.create_task(receive())
        await go.wait()
        heard.append(watching.done())
        await respond(send)
        heard.append((await watching)["type"])

    app = Counted(work)
    async with Door(app) as door:
        client = Client([b'{"n":1}'])
        task = asyncio.create_task(post(door, "k1", client=client))
        client.leave()
        for _ in range(5):
            await asyncio.sleep(0)
        go.set()
        await task
        again = await post(door, "k1")
    assert heard == [False, "http.disconnect"]
    assert (again.status, again.replayed, app.effects) == (201, True, 1)


@in_loop
async def test_no_disconnect_is_heard_while_the_client_is_there():
    """R52: after the body, a look for the disconnect waits as it does without us."""
    outcome: list[str] = []

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        try:
            async with asyncio.timeout(0.05):
                outcome.append((await receive())["type"])
        except TimeoutError:
            outcome.append("nothing")
        await respond(send)

    async with Door(work) as door:
        await post(door, "k1")
    assert outcome == ["nothing"]


@pytest.mark.parametrize("reads", [True, False])
@in_loop
async def test_a_disconnect_after_the_answer_is_delivered(reads):
    """R44: once the answer is out, nothing is withheld, whether or not anybody listened before."""
    heard: list[str] = []

    async def work(scope: Any, receive: Any, send: Any) -> None:
        if reads:
            await read(receive)
        await respond(send)
        message = await receive()
        while message["type"] == "http.request":
            message = await receive()
        heard.append(message["type"])

    async with Door(work) as door:
        client = Client([b'{"n":1}'])
        await post(door, "k1", client=client)
    assert heard == ["http.disconnect"]


@pytest.mark.parametrize("ends", ["raise", "return"])
@in_loop
async def test_nobody_waits_for_ever_for_a_disconnect_that_is_withheld(ends):
    """R44: a listener that the handler leaves behind is let go when the run is over."""
    listeners: list[asyncio.Task[Any]] = []

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        listeners.append(asyncio.create_task(receive()))
        await asyncio.sleep(0)
        if ends == "raise":
            raise LookupError

    async with Door(work) as door:
        client = Client([b'{"n":1}'])
        client.leave()
        try:
            await post(door, "k1", client=client)
        except LookupError:
            assert ends == "raise"
        assert (await listeners[0])["type"] == "http.disconnect"


# ---------------------------------------------------------------------------------------------- duplicates


@in_loop
async def test_of_fifty_duplicates_at_once_exactly_one_runs():
    """R22: the others are told when to come again, and get the answer then."""
    go = asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await respond(send)

    app = Counted(work)
    async with Door(app) as door:
        tasks = [asyncio.create_task(post(door, "k1")) for _ in range(50)]
        running: set[asyncio.Task[Answer]] = set(tasks)
        while len(running) > 1:
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        refused = [task.result() for task in tasks if task.done()]
        go.set()
        answers = [await task for task in tasks]
        later = [await post(door, "k1") for _ in range(3)]
    assert {(answer.status, answer.code) for answer in refused} == {(409, "in-progress")}
    assert {tuple(answer.all("retry-after")) for answer in refused} == {(b"1",)}
    assert sorted(answer.status for answer in answers) == [201] + [409] * 49
    assert {answer.brief for answer in later} == {(201, True, b'{"id":"o_1"}')}
    assert app.effects == 1


@in_loop
async def test_a_duplicate_with_another_body_is_refused_also_while_the_first_runs():
    """R24 before R23."""
    go = asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await respond(send)

    async with Door(work, policy=Policy(wait=10)) as door:
        first = asyncio.create_task(post(door, "k1"))
        await asyncio.sleep(0)
        other = await post(door, "k1", body=b'{"n":2}')
        go.set()
        await first
    assert other.code == "idempotency-key-reuse"


@in_loop
async def test_a_duplicate_that_may_wait_gets_the_answer_of_the_first():
    """R23: without a second attempt of its client, and without a task that is left behind."""
    go = asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await respond(send)

    app = Counted(work)
    async with Door(app, policy=Policy(wait=20)) as door:
        first = asyncio.create_task(post(door, "k1"))
        await asyncio.sleep(0)
        second = asyncio.create_task(post(door, "k1"))
        await asyncio.sleep(0.02)
        waited = not second.done()
        go.set()
        answers = [await first, await second]
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
    assert (waited, left) == (True, set())
    assert [answer.replayed for answer in answers] == [False, True]
    assert app.effects == 1


@in_loop
async def test_a_wait_ends_with_a_refusal_when_its_time_is_up():
    """R23: 409 in-progress, as without waiting."""
    go = asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await respond(send)

    async with Door(work, policy=Policy(wait=0.05)) as door:
        first = asyncio.create_task(post(door, "k1"))
        await asyncio.sleep(0)
        second = await post(door, "k1")
        go.set()
        await first
    assert second.code == "in-progress"


@in_loop
async def test_a_wait_ends_when_its_client_leaves():
    """R23: nobody polls the store for a client that is gone, and the handler does not run for it."""
    go = asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await respond(send)

    app = Counted(work)
    store = SteeredStore()
    async with Door(app, policy=Policy(wait=3600), store=store) as door:
        first = asyncio.create_task(post(door, "k1"))
        await asyncio.sleep(0)
        client = Client([b'{"n":1}'])
        second = asyncio.create_task(post(door, "k1", client=client))
        await asyncio.sleep(0.01)
        client.leave()
        await second
        claims = store.calls.count("claim")
        await asyncio.sleep(0.12)
        assert store.calls.count("claim") == claims
        go.set()
        await first
    assert app.effects == 1


@pytest.mark.parametrize("fault", ["raises", "says more"])
@in_loop
async def test_a_server_that_tells_something_else_than_a_disconnect_ends_no_wait(fault, caplog):
    """R23: only the client's leaving does; and nothing is left behind to be complained of."""
    go = asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await respond(send)

    calls = 0

    async def receive() -> Any:
        nonlocal calls
        calls += 1
        if calls > 1 and fault == "raises":
            raise RuntimeError("receive called too often")
        return {"type": "http.request", "body": b'{"n":1}' if calls == 1 else b"", "more_body": False}

    async with Door(work, policy=Policy(wait=20)) as door:
        first = asyncio.create_task(post(door, "k1"))
        await asyncio.sleep(0)
        client = Client()
        second = asyncio.create_task(door(http_scope(headers=keyed("k1")), receive, client.send))
        await asyncio.sleep(0.02)
        waited = not second.done()
        go.set()
        await first
        await second
        del second
        gc.collect()
        await asyncio.sleep(0)
    assert waited
    assert client.answer.replayed
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@in_loop
async def test_a_handler_that_runs_after_a_wait_hears_of_the_client_that_left_meanwhile():
    """R23, R44: what the wait has learned is not lost, also where the server tells it only once."""
    go = asyncio.Event()
    heard: list[str] = []
    told: list[str] = []

    async def receive() -> Any:
        message = await client.receive()
        told.append(message["type"])
        assert told.count("http.disconnect") <= 1
        return message

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        if app.effects == 1:
            await go.wait()
            await respond(send, 429)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        heard.append((await receive())["type"])

    app = Counted(work)
    store = SteeredStore()
    async with Door(app, policy=Policy(wait=20), store=store) as door:
        first = asyncio.create_task(post(door, "k1"))
        await asyncio.sleep(0)
        client = Client([b'{"n":1}'])
        second = asyncio.create_task(door(http_scope(headers=keyed("k1")), receive, client.send))
        await asyncio.sleep(0.01)
        go.set()
        await first
        store.held = {"claimed": asyncio.Event()}
        store.reached.clear()
        await store.reached.wait()
        client.leave()
        await asyncio.sleep(0)
        store.held.pop("claimed").set()
        await second
    assert heard == ["http.disconnect"]


@in_loop
async def test_a_request_that_is_cancelled_as_its_wait_ends_leaves_no_key_behind():
    """R40: whatever moment the cancellation picks, the key is released or the handler has begun."""
    for turns in range(12):
        app = Counted()
        async with Door(app, policy=Policy(wait=5)) as door:
            task = asyncio.create_task(post(door, "k1"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            states = await door.until(lambda states: "in_flight" not in states)
        assert states in ([], ["parked"], ["completed"])
        assert (states == []) == (app.effects == 0)
