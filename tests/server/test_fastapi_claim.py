"""The FastAPI door claims after authentication and validation, and before the handler (R8, R11, R12, R15, R38, R49)."""

import asyncio
import json

import pytest
from fastapi import Depends, FastAPI, HTTPException

from tests.support.asgi_client import Client, http_scope, in_loop, keyed, post
from tests.support.fastapi_service import ANN, ANN_REFRESHED, BOB, Order, Service, Tokens, until, with_orders


@in_loop
async def test_a_revoked_token_reads_no_replay():
    """R49: the stored answer is there, but its owner's token no longer counts: 401, and not a byte of the answer."""
    tokens = Tokens()
    async with with_orders(Service(tokens)) as service:
        first = await post(service, "k", ANN)
        tokens.accounts.clear()
        refused = await post(service, "k", ANN)
        calls = list(service.store.calls)
    assert first.brief == (201, False, b'{"effect":1,"n":1}')
    assert (refused.status, refused.replayed, refused.all("www-authenticate")) == (401, False, [b"Bearer"])
    assert b"effect" not in refused.body
    assert calls.count("claim") == 1


@in_loop
async def test_a_refreshed_token_of_the_same_account_reads_the_replay_and_another_account_does_not():
    """R12, R15: the account is what the dependency returns; another one's same key is an independent run."""
    async with with_orders(Service(Tokens())) as service:
        answers = [await post(service, "k", who) for who in (ANN, ANN_REFRESHED, BOB, BOB)]
    assert [answer.brief[1:] for answer in answers] == [
        (False, b'{"effect":1,"n":1}'),
        (True, b'{"effect":1,"n":1}'),
        (False, b'{"effect":2,"n":1}'),
        (True, b'{"effect":2,"n":1}'),
    ]


@in_loop
async def test_a_validation_error_touches_no_record_and_the_corrected_request_runs_under_the_same_key():
    """R38: validation is before the handler: nothing is claimed, so the key is not burnt."""
    async with with_orders(Service()) as service:
        wrong = [await post(service, "k", body=body) for body in (b'{"n":"x"}', b"{}", b"{", b'{"n":"x"}')]
        calls = list(service.store.calls)
        right = await post(service, "k", body=b'{"n":2}')
    assert [(answer.status, answer.code) for answer in wrong] == [(422, "")] * 4
    assert calls == []
    assert right.brief == (201, False, b'{"effect":1,"n":2}')


@in_loop
async def test_a_dependency_that_refuses_touches_no_record():
    """R38: 401, 403 and 429 of dependencies come before the claim; the same key succeeds later, unmarked."""
    allowed = [401, 403, 429, None]

    async def limiter() -> None:
        status = allowed.pop(0)
        if status is not None:
            raise HTTPException(status)

    async with Service() as service:

        @service.app.post("/orders", dependencies=[Depends(limiter)])
        @service.idempotency.operation(required=True)
        async def create() -> int:
            return service.effect()

        refused = [(await post(service, "k")).status for _ in range(3)]
        calls = list(service.store.calls)
        served = await post(service, "k")
    assert refused == [401, 403, 429]
    assert calls == []
    assert served.brief == (200, False, b"1")


@pytest.mark.parametrize(
    ("key", "body", "who", "expected"),
    [
        (None, b'{"n":1}', (), (401, "")),
        ("", b'{"n":1}', (), (401, "")),
        (None, b'{"n":1}', (ANN,), (400, "idempotency-key-missing")),
        ("", b'{"n":1}', (ANN,), (400, "idempotency-key-invalid")),
        ("a,b", b'{"n":1}', (ANN,), (400, "idempotency-key-invalid")),
        (None, b"{}", (ANN,), (422, "")),
        (None, b"{}", (), (401, "")),
        ("k", b'{"n":%d}' % 10**70, (ANN,), (413, "request-too-large")),
        ("", b'{"n":%d}' % 10**70, (ANN,), (400, "idempotency-key-invalid")),
        ("k", b'{"n":%d}' % 10**70, (), (401, "")),
    ],
)
@in_loop
async def test_401_wins_over_422_and_that_over_400_and_413(key, body, who, expected):
    """R49: who asks comes first, then what the framework validates, then the key, then the size; nothing is stored."""
    async with with_orders(Service(Tokens()), required=True, max_request_bytes=50) as service:
        answer = await post(service, key, *who, body=body)
        calls = list(service.store.calls)
    assert (answer.status, answer.code) == expected
    assert calls == []
    assert service.effects == 0


@in_loop
async def test_without_a_key_an_optional_operation_runs_unprotected_and_nothing_is_stored():
    """R9: no key, no deduplication, no marker, no record, no need of an account."""

    async def nobody() -> None:
        return None

    async with with_orders(Service(nobody)) as service:
        answers = [await post(service, None) for _ in range(3)]
        calls = list(service.store.calls)
    assert [answer.brief for answer in answers] == [(201, False, b'{"effect":%d,"n":1}' % n) for n in (1, 2, 3)]
    assert calls == []


# ---------------------------------------------------------------------- scope and identity


@in_loop
async def test_the_same_key_on_another_route_is_another_operation():
    """R16: method and concrete path are part of the scope, mounts and path values included; one effect each."""
    async with Service() as service:

        async def create(order_id: int = 0) -> int:
            return service.effect()

        marked = service.idempotency.operation()(create)
        service.app.api_route("/orders", methods=["POST", "PATCH", "PUT"])(marked)
        service.app.post("/orders/{order_id}/cancel")(marked)
        mounted = FastAPI()
        mounted.post("/orders")(marked)
        service.app.mount("/v2", mounted)
        targets = [
            ("POST", "/orders"),
            ("PATCH", "/orders"),
            ("POST", "/orders/1/cancel"),
            ("POST", "/orders/2/cancel"),
        ]
        targets.append(("POST", "/v2/orders"))
        bodies = [(await post(service, "k", path=path, method=method)).body for method, path in targets * 2]
        uncovered = [(await post(service, "k", method="PUT")).brief for _ in range(2)]
    assert bodies == [b"1", b"2", b"3", b"4", b"5"] * 2
    assert uncovered == [(200, False, b"6"), (200, False, b"7")]


@in_loop
async def test_a_key_used_for_another_request_is_refused_and_tells_nothing_of_the_first():
    """R24, R32: another body or query is 422 without a byte of the first request; the original still replays."""
    async with with_orders(Service()) as service:
        await post(service, "k", body=b'{"n": 1, "secret": "MARKER"}')
        other = [
            await post(service, "k", body=b'{"n": 2, "secret": "x"}'),
            await post(service, "k", body=b'{"n": 1, "secret": "MARKER"}', query=b"dry=1"),
        ]
        original = await post(service, "k", body=b'{"secret":"MARKER","n":1}')
    assert [(answer.status, answer.code) for answer in other] == [(422, "idempotency-key-reuse")] * 2
    assert not any(b"MARKER" in answer.body for answer in other)
    assert original.brief == (201, True, b'{"effect":1,"n":1}')


@in_loop
async def test_of_fifty_duplicates_at_once_one_runs():
    """R22, R23: 1 effect, 49 told 409 in-progress with Retry-After; afterwards all read the same bytes."""
    async with Service(Tokens()) as service:
        gate = asyncio.Event()

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(order: Order) -> int:
            await gate.wait()
            return service.effect()

        tasks = [asyncio.create_task(post(service, "k", ANN)) for _ in range(50)]
        _, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        while len(running) > 1:
            _, running = await asyncio.wait(tasks, timeout=0.01)
        gate.set()
        answers = await asyncio.gather(*tasks)
        later = await post(service, "k", ANN)
    assert sorted(answer.code for answer in answers) == [""] + ["in-progress"] * 49
    assert {answer.all("retry-after")[0] for answer in answers if answer.status == 409} == {b"1"}
    assert service.effects == 1
    assert later.brief == (200, True, b"1")


@in_loop
async def test_a_waiting_duplicate_gets_the_first_answer_or_leaves_with_its_client():
    """R23: wait= keeps the duplicate; it replays when the first is done, and ends when its client leaves."""
    async with Service() as service:
        gate = asyncio.Event()

        @service.app.post("/orders")
        @service.idempotency.operation(wait=20)
        async def create(order: Order) -> int:
            await gate.wait()
            return service.effect()

        first = asyncio.create_task(post(service, "k"))
        await until(lambda: "claim" in service.store.calls)
        second = asyncio.create_task(post(service, "k"))
        leaver = Client([b'{"n":1}'])
        scope = http_scope(headers=keyed("k", size=7))
        third = asyncio.create_task(service.app(scope, leaver.receive, leaver.send))
        await until(lambda: service.store.calls.count("claim") >= 3)
        leaver.leave()
        await asyncio.wait_for(third, 5)
        gate.set()
        answers = [await first, await second]
    assert [answer.brief for answer in answers] == [(200, False, b"1"), (200, True, b"1")]
    assert leaver.answer.code == "in-progress"


@in_loop
async def test_quoted_bare_and_differently_cased_spellings_are_one_key():
    """R2, R4, R5: one effect; two different lines are refused, and nothing of them is echoed."""
    async with with_orders(Service(), aliases=("X-Idempotency-Key",)) as service:
        answers = [
            await post(service, '"abc"'),
            await post(service, "abc"),
            await post(service, None, (b"Idempotency-Key", b"abc")),
            await post(service, None, (b"x-idempotency-key", b"abc")),
            await post(service, "abc", (b"idempotency-key", b"abc")),
            await post(service, "abc", (b"x-idempotency-key", b"SECRET-KEY")),
        ]
    assert [answer.status for answer in answers] == [201, 201, 201, 201, 400, 400]
    assert service.effects == 1
    assert not any(b"SECRET-KEY" in answer.body for answer in answers)


@in_loop
async def test_a_store_that_is_down_runs_nothing_unless_the_operation_fails_open():
    """R48: 503 with Retry-After and no effect; with fail_open the handler runs once and its answer says so."""
    async with with_orders(Service()) as service:

        @service.app.post("/open")
        @service.idempotency.operation(fail_open=True)
        async def open_create() -> int:
            return service.effect()

        service.store.down = {"claim", "release"}
        closed = await post(service, "k")
        opened = await post(service, "k", path="/open")
    assert (closed.status, closed.code, closed.all("retry-after")) == (503, "store-unavailable", [b"5"])
    assert json.loads(closed.body)["retryable"] is True
    assert (opened.brief, opened.all("idempotency-unprotected")) == ((200, False, b"1"), [b"true"])
    assert service.effects == 1
