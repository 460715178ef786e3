"""How a run behind the ASGI door may end, and what becomes of its key (CONTRACT 5, R38-R40, R45, R50, R51)."""

import asyncio
from typing import Any

import pytest

from tests.support.asgi_client import Answer, Client, Counted, in_loop, post, read, respond
from tests.support.asgi_door import Door, SteeredStore
from twiceproof import NotExecuted, Policy

BOTH = ["at_most_once", "at_least_once"]


async def attempt(door: Door, key: str = "k1") -> tuple[Answer, BaseException | None]:
    """Send one request and return what reached the client, and what reached the server."""
    client = Client([b'{"n":1}'])
    try:
        await post(door, key, client=client, body=b'{"n":1}')
    except Exception as error:
        return client.answer, error
    return client.answer, None


def once(first: Any) -> Counted:
    """An application that ends in a given way the first time, and well after that."""

    async def play(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        if app.effects == 1:
            await first(scope, receive, send)
        else:
            await respond(send, 201, b"well")

    app = Counted(play)
    return app


def raising(error: Exception) -> Any:
    async def end(scope: Any, receive: Any, send: Any) -> None:
        raise error

    return end


def answering(status: int, *, then: Exception | None = None) -> Any:
    async def end(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, status, b"first")
        if then is not None:
            raise then

    return end


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """Return without an answer."""


def releasing(status: int) -> Any:
    async def end(scope: Any, receive: Any, send: Any) -> None:
        scope["twiceproof"].release()
        await respond(send, status, b"first")

    return end


BOOM = LookupError("boom")
RUNS_AGAIN = (201, False, b"well")


NOTHING_DONE = NotExecuted("no stock")


@pytest.mark.parametrize(
    ("end", "error", "most", "least"),
    [
        (raising(BOOM), BOOM, "unknown: exception", RUNS_AGAIN),
        (silent, None, "unknown: exception", RUNS_AGAIN),
        (raising(NOTHING_DONE), NOTHING_DONE, RUNS_AGAIN, RUNS_AGAIN),
        (answering(200), None, (200, True, b"first"), (200, True, b"first")),
        (answering(303), None, (303, True, b"first"), (303, True, b"first")),
        (answering(404), None, (404, True, b"first"), (404, True, b"first")),
        (answering(429), None, RUNS_AGAIN, RUNS_AGAIN),
        (answering(408), None, (408, True, b"first"), RUNS_AGAIN),
        (answering(499), None, (499, True, b"first"), RUNS_AGAIN),
        (answering(503), None, (503, True, b"first"), RUNS_AGAIN),
        (answering(500), None, (500, True, b"first"), RUNS_AGAIN),
        (answering(500, then=BOOM), BOOM, "unknown: exception", RUNS_AGAIN),
        (answering(503, then=BOOM), BOOM, "unknown: exception", RUNS_AGAIN),
        (answering(500, then=NOTHING_DONE), NOTHING_DONE, RUNS_AGAIN, RUNS_AGAIN),
        (answering(201, then=BOOM), BOOM, (201, True, b"first"), (201, True, b"first")),
        (releasing(409), None, RUNS_AGAIN, RUNS_AGAIN),
        (releasing(500), None, RUNS_AGAIN, RUNS_AGAIN),
        (releasing(200), None, (200, True, b"first"), (200, True, b"first")),
    ],
)
@pytest.mark.parametrize("guarantee", BOTH)
@in_loop
async def test_the_retry_finds_what_the_first_run_came_to(guarantee, end, error, most, least):
    """CONTRACT 5: the table, as a client sees it; the application's error reaches the server as it was raised."""
    app = once(end)
    async with Door(app, policy=Policy(guarantee=guarantee)) as door:
        _, raised = await attempt(door)
        again, _ = await attempt(door)
    expected = most if guarantee == "at_most_once" else least
    assert raised is error
    if isinstance(expected, str):
        assert (again.status, again.code) == (500, "outcome-unknown")
        assert f"unknown: {again.problem['cause']}" == expected
        assert again.problem["may_have_taken_effect"] is True
    else:
        assert again.brief == expected
    assert app.effects == (2 if expected == RUNS_AGAIN else 1)


@pytest.mark.parametrize("then", [None, BOOM])
@in_loop
async def test_a_server_error_reaches_its_client_whole_once_the_application_has_returned(then):
    """CONTRACT 5: the last message waits for how the application ends, and goes out either way."""
    seen: list[list[Any]] = []
    client = Client([b'{"n":1}'])

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 500, b"sorry")
        await send({"type": "http.response.trailers", "headers": [], "more_trailers": False})
        seen.append(list(client.sent))
        if then is not None:
            raise then

    async with Door(fail) as door:
        caught = None
        try:
            await post(door, "k1", client=client)
        except LookupError as error:
            caught = error
    kinds = [message["type"].rpartition(".")[2] for message in client.sent]
    assert [message["type"] for message in seen[0]] == ["http.response.start"]
    assert kinds == ["start", "body", "trailers"]
    assert (client.answer.body, client.answer.whole) == (b"sorry", True)
    assert caught is then


@in_loop
async def test_a_streamed_server_error_keeps_only_its_last_message_back():
    """CONTRACT 5, R52: the parts before it go out on time."""
    client = Client([b'{"n":1}'])
    seen: list[int] = []

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 502, "headers": []})
        await send({"type": "http.response.body", "body": b"so", "more_body": True})
        await send({"type": "http.response.body", "body": b"rry"})
        seen.append(len(client.sent))

    async with Door(fail) as door:
        await post(door, "k1", client=client)
        again = await post(door, "k1")
    assert seen == [2]
    assert again.brief == (502, True, b"sorry")


@pytest.mark.parametrize("listens", ["before", "after"])
@in_loop
async def test_an_application_that_waits_for_the_end_after_a_server_error_is_not_kept_waiting(listens):
    """CONTRACT 5: it has sent its whole answer, so it hears what it would hear without us, and the answer goes out."""
    heard: list[str] = []

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        listener = asyncio.create_task(receive()) if listens == "before" else None
        await asyncio.sleep(0)
        await respond(send, 500, b"sorry")
        heard.append((await (listener or receive()))["type"])

    async with Door(fail) as door:
        first, again = await post(door, "k1"), await post(door, "k1")
    assert heard == ["http.disconnect"]
    assert [first.brief, again.brief] == [(500, False, b"sorry"), (500, True, b"sorry")]


@in_loop
async def test_an_error_wins_over_a_client_that_is_gone_when_the_held_answer_goes_out():
    """CONTRACT 5: the framework's error is the one that the server logs."""

    async def broken(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise OSError("client left")

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 500, b"sorry")
        raise BOOM

    async with Door(fail) as door:
        with pytest.raises(LookupError):
            await post(door, "k1", client=Client([b'{"n":1}'], on_send=broken))
        assert await door.states() == ["parked"]


@pytest.mark.parametrize("at", ["http.response.start", "http.response.body"])
@pytest.mark.parametrize("status", [201, 500])
@in_loop
async def test_an_answer_that_can_not_be_delivered_is_recorded_all_the_same(at, status):
    """R45, R50: the record is there before the send that fails; the error reaches the application or the server."""

    async def broken(message: Any) -> None:
        if message["type"] == at:
            raise OSError("client left")

    app = Counted(answering(status))
    async with Door(app) as door:
        with pytest.raises(OSError, match="client left"):
            await post(door, "k1", client=Client([b'{"n":1}'], on_send=broken))
        again = await post(door, "k1")
    assert (again.brief, app.effects) == ((status, True, b"first"), 1)


@in_loop
async def test_a_head_that_the_server_refuses_is_the_applications_error():
    """R50: a malformed start is no departure of the client; it is raised where it was sent."""

    async def strict(message: Any) -> None:
        if message["type"] == "http.response.start":
            raise RuntimeError("invalid header")

    async with Door(answering(201)) as door:
        with pytest.raises(RuntimeError, match="invalid header"):
            await post(door, "k1", client=Client([b'{"n":1}'], on_send=strict))
        assert await door.states() == ["parked"]


@in_loop
async def test_work_after_the_last_message_runs_once_and_holds_no_retry_up():
    """R51: background work belongs to the first run; a retry replays while it is still at it."""
    go, done = asyncio.Event(), 0

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        nonlocal done
        await respond(send, 202, b"accepted")
        await go.wait()
        done += 1

    async with Door(answer) as door:
        client = Client([b'{"n":1}'])
        task = asyncio.create_task(post(door, "k1", client=client))
        await client.until(2)
        during = await post(door, "k1")
        go.set()
        await task
        after = await post(door, "k1")
    assert [during.brief, after.brief] == [(202, True, b"accepted")] * 2
    assert done == 1


@in_loop
async def test_an_error_after_the_last_message_changes_nothing_and_is_told():
    """R51: the record stays, an event says so, and the server hears of it."""
    async with Door(answering(201, then=BOOM)) as door:
        with pytest.raises(LookupError):
            await post(door, "k1")
        again = await post(door, "k1")
    assert again.brief == (201, True, b"first")
    assert ("completed", "late-error") in door.events


@pytest.mark.parametrize("fails", [False, True])
@in_loop
async def test_a_run_without_protection_says_so_and_leaves_nothing_behind(fails):
    """R48: where the policy lets it run although the store is down; then each retry runs, and errors pass."""

    async def work(scope: Any, receive: Any, send: Any) -> None:
        assert await read(receive) == b'{"n":1}'
        await send({"type": "http.response.start", "status": 201})
        if fails:
            raise BOOM
        await send({"type": "http.response.body", "body": b"x"})

    store = SteeredStore()
    store.down = {"claim"}
    app = Counted(work)
    async with Door(app, store=store, policy=Policy(fail_open=True)) as door:
        (answer, error), _ = await attempt(door), await attempt(door)
        store.down = set()
        states = await door.states()
    assert (answer.all("idempotency-unprotected"), answer.replayed) == ([b"true"], False)
    assert error is (BOOM if fails else None)
    assert (app.effects, states) == (2, [])
    assert [scope["twiceproof"].protected for scope in app.scopes] == [False, False]
    assert door.events == [("failed_open", "")] * 2


# ---------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize(("guarantee", "states"), [("at_most_once", ["parked"]), ("at_least_once", [])])
@in_loop
async def test_a_handler_that_is_cancelled_leaves_the_key_as_its_guarantee_says(guarantee, states):
    """R40: at once, not when the lease lapses."""
    running = asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        running.set()
        await asyncio.sleep(60)

    async with Door(work, policy=Policy(guarantee=guarantee)) as door:
        task = asyncio.create_task(post(door, "k1"))
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await door.states() == states


@pytest.mark.parametrize("moment", ["claim", "claimed"])
@in_loop
async def test_a_request_that_is_cancelled_at_its_claim_leaves_no_key_behind(moment):
    """R40, R48: before the handler nothing has happened, so the key is free again, whether it was taken or not."""
    store = SteeredStore()
    app = Counted()
    async with Door(app, store=store) as door:
        store.held = {moment: asyncio.Event()}
        task = asyncio.create_task(post(door, "k1"))
        await store.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.held = {}
        await door.until(lambda states: not states)
        again = await post(door, "k1")
    assert (again.brief, app.effects) == ((201, False, b'{"id":"o_1"}'), 1)


@in_loop
async def test_a_request_that_is_cancelled_while_its_answer_is_stored_is_stored_in_the_background():
    """R40, R45: the outcome is known, and the retry replays it."""
    store = SteeredStore()
    app = Counted()
    async with Door(app, store=store) as door:
        await post(door, "warm")
        store.held = {"complete": asyncio.Event()}
        store.reached.clear()
        task = asyncio.create_task(post(door, "k1"))
        await store.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.held = {}
        await door.until(lambda states: "in_flight" not in states)
        again = await post(door, "k1")
    assert (again.brief, app.effects) == ((201, True, b'{"id":"o_2"}'), 2)


@in_loop
async def test_an_outer_time_out_that_ends_the_handler_counts_as_a_cancellation():
    """R40: the application's caller gets its own error, the record says why nobody knows."""

    async def work(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(60)

    async with Door(work) as door:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await post(door, "k1")
        again = await post(door, "k1")
    assert (again.code, again.problem["cause"]) == ("outcome-unknown", "cancelled")
