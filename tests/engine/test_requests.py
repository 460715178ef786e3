"""One key, one effect: first requests, replays, and duplicates at the same time (R14-R16, R21-R26, R32)."""

import asyncio
import threading
import time

import pytest

from tests.support.engines import Gate, brief, code_of, until
from tests.support.faulty_store import Fault
from twiceproof import AsyncEngine, NothingHappened, Policy, Request, Response
from twiceproof.core._lifecycle import Bypass, Keyed
from twiceproof.engine import Run


def test_a_retry_gets_the_first_answer_and_the_handler_runs_once(make, world):
    """R21, R25: status, fields and body again, with the marker, and one effect."""
    bench = make(world)
    first, again = bench.handle(), bench.handle()
    assert first == Response(201, first.headers, b'{"order":1}')
    assert brief(again) == (201, "", True)
    assert again.body == first.body
    assert [pair for pair in again.headers if pair[0] == b"location"] == [(b"location", b"/orders/1")]
    assert again.header(b"content-length") == b"11"
    assert bench.effects == 1
    assert bench.names == ["granted", "completed", "replayed"]


def test_a_retry_is_answered_after_a_restart(make, world):
    """B16: what was stored is read back by another process."""
    make(world).handle()
    after = make(world)
    assert brief(after.handle()) == (201, "", True)
    assert after.effects == 0


def test_a_first_request_costs_two_calls_of_the_store_and_any_other_one(bench):
    """One claim and one complete; a replay, a refusal in flight and a mismatch are one claim."""
    gate = Gate()
    with gate.running(bench):
        assert brief(bench.handle())[:2] == (409, "in-progress")
        assert brief(bench.handle(body=b"{}"))[:2] == (422, "idempotency-key-reuse")
    until(lambda: "completed" in bench.names)
    bench.handle()
    assert bench.faults.foreground() == ["claim", "claim", "claim", "complete", "claim"]


def test_fifty_first_requests_at_once_have_one_effect(make, world):
    """R22, B01, B02, B04: one runs, the others are told 409 or replay; nobody sees a failure of the store."""
    benches = [make(world), make(world)]
    lined_up = threading.Barrier(50)

    def late(bench):
        lined_up.wait()
        return bench.handle()

    answers = []
    threads = [
        threading.Thread(target=lambda bench=benches[n % 2]: answers.append(late(bench)), daemon=True)
        for n in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    kinds = {brief(answer) for answer in answers}
    assert kinds <= {(201, "", False), (201, "", True), (409, "in-progress", False)}
    assert [brief(answer) for answer in answers].count((201, "", False)) == 1
    assert sum(bench.effects for bench in benches) == 1
    assert world.states() == ["completed"]


def test_the_loser_is_told_how_long_the_winner_takes_already(bench):
    """R23: Retry-After is the time the run has taken so far, at least one second."""
    gate = Gate()
    with gate.running(bench):
        at_once = bench.handle()
        bench.world.clock.pass_(12)
        later = bench.handle()
        bench.world.clock.pass_(13)
        near_the_end = bench.handle()
    assert brief(at_once)[:2] == (409, "in-progress")
    assert [answer.header(b"retry-after") for answer in (at_once, later, near_the_end)] == [b"1", b"12", b"5"]


def test_a_winner_that_has_just_completed_is_replayed_to_the_loser(bench):
    """B03: what the loser is told is the record's state at its own claim."""
    gate = Gate()
    with gate.running(bench) as first:

        def let_it_end():
            gate.opened.set()
            first.result(10)

        bench.faults.next["claim"] = [Fault(before=let_it_end)]
        answer = bench.handle()
    assert brief(answer) == (201, "", True)
    assert answer.body == b"done"


@pytest.mark.parametrize("when", ["in flight", "waited for", "completed", "unsettled", "lapsed"])
def test_another_payload_is_refused_in_every_state_and_the_first_still_replays(bench, when):
    """R24, R32, B14, B20: 422 before anything else, nothing of the first request in it, and no harm done."""
    wait = Policy(wait=5.0)
    gate = Gate(error=RuntimeError("boom") if when == "unsettled" else None)
    refused = None
    if when == "lapsed":
        bench.run(body=b'{"secret":"MARKER"}')
        bench.world.clock.pass_(31)
        refused = bench.handle(body=b'{"amount":999}')
    else:
        with gate.running(bench, body=b'{"secret":"MARKER"}') as first:
            if when in ("in flight", "waited for"):
                refused = bench.handle(wait if when == "waited for" else None, body=b'{"amount":999}')
        assert first.exception(10) is gate.error
        if when in ("completed", "unsettled"):
            refused = bench.handle(body=b'{"amount":999}')
    assert refused is not None
    assert brief(refused) == (422, "idempotency-key-reuse", False)
    assert b"MARKER" not in (refused.body or b"")
    assert bench.effects == 0
    expected = (500, "outcome-unknown", False) if when in ("unsettled", "lapsed") else (201, "", True)
    assert brief(bench.handle(body=b'{"secret":"MARKER"}')) == expected


@pytest.mark.parametrize(
    ("first", "again", "other"),
    [
        pytest.param(
            (b"", b'{"a":1,"b":{"c":2,"d":3}}'),
            (b"", b'{ "b": {"d":3,"c":2}, "a":1 }\n'),
            (b"", b'{"a":1,"b":{"c":3,"d":2}}'),
            id="members",
        ),
        pytest.param((b"", b"[1,2]"), (b"", b"[1, 2]"), (b"", b"[2,1]"), id="elements"),
        pytest.param((b"a=1&b=2", b"{}"), (b"b=2&a=1", b"{}"), (b"a=2&b=1", b"{}"), id="query order"),
        pytest.param((b"dry=1", b"{}"), (b"dry=1", b"{}"), (b"", b"{}"), id="query gone"),
    ],
)
def test_the_same_meaning_is_replayed_and_another_one_refused(bench, first, again, other):
    """R17-R19, R24, B13, B15: neither order nor space of names is content, order of elements and each pair is."""

    def sent(query, body):
        request = bench.request(body=body)
        return bench.handle(request=Request("POST", request.raw_path, query, request.headers, body))

    assert [brief(sent(*one)) for one in (first, again, other)] == [
        (201, "", False),
        (201, "", True),
        (422, "idempotency-key-reuse", False),
    ]
    assert bench.effects == 1


def test_another_account_has_the_key_to_itself(bench):
    """R15, B18: nothing tells that the key exists elsewhere."""
    mine, hers = bench.handle(principal="alice"), bench.handle(principal="bob")
    assert brief(mine) == brief(hers) == (201, "", False)
    assert bench.effects == 2


def test_another_path_has_the_key_to_itself(bench):
    """R16, B17: the same key on another route is another operation."""
    answers = [bench.handle(path=path) for path in ("/orders", "/orders/1/cancel", "/orders/2/cancel")]
    assert {brief(answer) for answer in answers} == {(201, "", False)}
    assert bench.effects == 3


def test_a_named_operation_counts_its_path_as_payload(bench):
    """R16: a name replaces method and path in the scope; another path under the same key is a mismatch."""
    policy = Policy(operation="orders.create")
    bench.handle(policy, path="/v1/orders")
    assert brief(bench.handle(policy, path="/v1/orders")) == (201, "", True)
    assert code_of(bench.handle(policy, path="/v2/orders")) == "idempotency-key-reuse"


def test_a_request_without_a_key_runs_each_time_and_touches_no_store(bench):
    """R9, B30: no key, no deduplication, no record, no marker."""
    answers = [bench.handle(request=bench.request(key=None)) for _ in range(3)]
    assert [brief(answer) for answer in answers] == [(201, "", False)] * 3
    assert (bench.effects, bench.faults.foreground(), bench.world.records()) == (3, [], [])


@pytest.mark.parametrize("status", [400, 422, 428])
def test_a_missing_key_is_refused_where_it_is_required(bench, status):
    """R8: the handler does not run, the store is not asked, and the document says the status that was sent."""
    answer = bench.handle(Policy(required=True, missing_status=status), request=bench.request(key=None))
    assert brief(answer) == (status, "idempotency-key-missing", False)
    assert b'"status": %d' % status in (answer.body or b"")
    assert (bench.effects, bench.faults.foreground()) == (0, [])
    assert bench.names == ["refused:idempotency-key-missing"]


def test_a_bad_key_is_refused_where_it_is_optional_too(bench):
    """R6: before any store I/O, and never echoed."""
    answer = bench.handle(request=bench.request(key="no good"))
    assert brief(answer) == (400, "idempotency-key-invalid", False)
    assert b"no good" not in (answer.body or b"")
    assert (bench.effects, bench.faults.foreground()) == (0, [])


def test_a_method_that_is_not_covered_passes_through(bench):
    """R1: its key is ignored and nothing is stored."""
    request = bench.request()
    request = Request("PUT", request.raw_path, b"", request.headers, request.body)
    assert isinstance(bench.begin(request=request), Bypass)
    assert bench.faults.foreground() == []


def test_a_body_over_the_limit_is_refused_before_the_claim(bench):
    """R11: also where no HTTP server stands in front."""
    answer = bench.handle(Policy(max_request_bytes=10), body=b'"123456789"')
    assert brief(answer) == (413, "request-too-large", False)
    assert brief(bench.handle(Policy(max_request_bytes=10), body=b'"12345678"')) == (201, "", False)
    assert bench.faults.foreground() == ["claim", "complete"]


@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        pytest.param(Policy(store_body=False), Response(201, [(b"Location", b"/o/1")], b"x"), id="option"),
        pytest.param(Policy(max_response_bytes=3), Response(201, [(b"Location", b"/o/1")], b"four"), id="too large"),
        pytest.param(Policy(), Response(201, [(b"Location", b"/o/1")], None), id="sent but not kept"),
        pytest.param(
            Policy(),
            Response(201, [(b"Content-Type", b"text/event-stream; charset=utf-8"), (b"Location", b"/o/1")], b"data: 1"),
            id="event stream",
        ),
    ],
)
def test_an_answer_that_was_not_kept_is_not_made_up(bench, policy, answer):
    """R26, R43: the handler does not run again; the refusal has the first status and Location."""
    first = bench.handle(policy, lambda request, attempt: answer)
    assert first is answer
    again = bench.handle(policy)
    assert brief(again) == (409, "replay-unavailable", False)
    assert b'"original_status": 201' in (again.body or b"")
    assert again.header(b"location") == b"/o/1"
    assert (bench.effects, bench.world.states()) == (0, ["completed"])


def test_a_large_body_is_fingerprinted_like_a_small_one(bench):
    """R17: wherever the digest is made, the same payload is the same, and another one is not."""
    body = b'{"blob":"' + b"x" * 200_000 + b'"}'
    assert brief(bench.handle(body=body)) == (201, "", False)
    assert brief(bench.handle(body=b" " + body)) == (201, "", True)
    assert code_of(bench.handle(body=body.replace(b"xx", b"xy", 1))) == "idempotency-key-reuse"


def test_a_key_is_new_once_its_retention_ran_out(bench):
    """R33: the completed record answers for as long as it was promised, counted from completion."""
    policy = Policy(retention=2 * 86_400)
    bench.handle(policy)
    bench.world.clock.pass_(2 * 86_400 - 1)
    assert brief(bench.handle(policy)) == (201, "", True)
    bench.world.clock.pass_(1)
    assert brief(bench.handle(policy)) == (201, "", False)
    assert bench.effects == 2


def test_a_handler_sees_its_key_and_the_token_of_its_grant(bench):
    """The attempt says what stands behind the run."""
    seen = {}

    def handler(request, attempt):
        for name in ("key", "protected", "token", "attempt", "lease_lost"):
            seen[name] = getattr(attempt, name)
        return Response(200)

    bench.handle(handler=handler)
    assert seen == {"key": "key-1", "protected": True, "token": 1, "attempt": 1, "lease_lost": False}
    bench.handle(handler=handler, request=bench.request(key=None))
    assert seen == {"key": None, "protected": False, "token": None, "attempt": 1, "lease_lost": False}


def test_a_key_that_is_known_already_is_not_parsed_again(bench):
    """A door admits on the head of a request, before the body is there, and hands the key on."""
    request = bench.request()
    admitted = bench.engine.admit(request.method, request.headers, Policy())
    assert admitted == Keyed("key-1")
    made = bench.engine.begin(Request("POST", b"/orders", b"", [], b""), "alice", Policy(), key=admitted.key)
    run = made if bench.loop is None else bench.wait_for(made)
    assert (run.attempt.key, run.attempt.protected) == ("key-1", True)


def test_what_an_engine_is_asked_for_must_name_somebody(bench):
    """R12: an empty principal is nobody, and nobody has no keys."""
    for nobody in ("", None):
        with pytest.raises(ValueError, match="principal"):
            bench.handle(principal=nobody)
    assert bench.faults.foreground() == []


def test_what_one_process_refused_it_replays_once_another_is_done(make, world):
    """B39: nothing but the record decides; no process remembers that a key was in progress."""
    one, other = make(world), make(world)
    gate = Gate()
    with gate.running(one):
        assert brief(other.handle()) == (409, "in-progress", False)
    assert brief(other.handle()) == (201, "", True)


def test_a_payload_that_was_refused_is_refused_again(make, world):
    """B40: a mismatch leaves nothing behind that its next try could find."""
    one, other = make(world), make(world)
    one.handle()
    assert [code_of(other.handle(body=b"{}")) for _ in range(2)] == ["idempotency-key-reuse"] * 2
    assert brief(other.handle()) == (201, "", True)


def test_large_bodies_are_compared_one_at_a_time():
    """R11: each takes several times its size while it is read, so that many at once must not add up."""

    async def main() -> int:
        engine = AsyncEngine("memory://", accept_volatile=True)
        running, most, lock = 0, 0, threading.Lock()
        digest = engine._call

        def counted(*args):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.01)
            try:
                return digest(*args)
            finally:
                with lock:
                    running -= 1

        engine._call = counted  # type: ignore[method-assign]
        body = b'"' + b"x" * 100_000 + b'"'
        async with engine:
            requests = [Request("POST", b"/x", headers=[(b"idempotency-key", b"k%d" % n)], body=body) for n in range(6)]
            begun = await asyncio.gather(*(engine.begin(each, "alice", Policy()) for each in requests))
            for run in begun:
                assert isinstance(run, Run)
                await engine.finish(run, NothingHappened())
        return most

    assert asyncio.run(main()) == 1
