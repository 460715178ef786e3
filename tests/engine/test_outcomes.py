"""What becomes of a key when its handler answers, refuses, fails or gives up (CONTRACT 5, R35-R39)."""

import pytest

from tests.support.engines import brief, code_of
from twiceproof import NotExecuted, Policy, Response

ONCE, TWICE = Policy(), Policy(guarantee="at_least_once")
GATES = (401, 403, 407, 421, 425, 426, 428, 429, 431)


def answering(status, body=b"said"):
    def handler(request, attempt):
        return Response(status, [(b"content-type", b"text/plain")], body)

    return handler


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 302, 303, 304, 308, 400, 404, 406, 409, 418, 422])
@pytest.mark.parametrize("policy", [ONCE, TWICE], ids=["at most once", "at least once"])
def test_successes_and_refusals_are_stored_as_they_were(bench, policy, status):
    """R35, R36, B24, B25: the same status and body again, with the marker, and no second run."""
    body = b"" if status in (204, 304) else b"said"
    first = bench.handle(policy, answering(status, body))
    again = bench.handle(policy)
    assert (brief(first), brief(again)) == ((status, "", False), (status, "", True))
    assert (again.body, bench.effects) == (body, 0)
    assert again.header(b"content-length") == (b"4" if body else None)


@pytest.mark.parametrize("policy", [ONCE, TWICE], ids=["at most once", "at least once"])
def test_a_corrected_request_needs_a_new_key_and_is_told_so(bench, policy):
    """R24, R36, B22: never the stale refusal as if it were the answer to the correction."""
    bench.handle(policy, answering(400, b"wrong code"), body=b'{"otp":"0000"}')
    corrected = bench.handle(policy, body=b'{"otp":"1234"}')
    assert brief(corrected) == (422, "idempotency-key-reuse", False)
    assert b"a new intent needs a new key" in (corrected.body or b"")
    assert brief(bench.handle(policy, body=b'{"otp":"1234"}', key="key-2")) == (201, "", False)


@pytest.mark.parametrize("status", GATES)
@pytest.mark.parametrize("policy", [ONCE, TWICE], ids=["at most once", "at least once"])
def test_gates_free_the_key(bench, policy, status):
    """R37, B23: nothing was done, so the same key succeeds later, without a marker."""
    bench.handle(policy, answering(status))
    assert bench.world.records() == []
    assert brief(bench.handle(policy)) == (201, "", False)
    assert bench.names == ["granted", "released", "granted", "completed"]


@pytest.mark.parametrize("status", [408, 499, 500, 502, 503, 504, 599])
def test_a_5xx_is_final_under_at_most_once(bench, status):
    """R39: the handler may have acted, so a retry gets the same failure, marked as a replay."""
    bench.handle(ONCE, answering(status))
    assert brief(bench.handle(ONCE)) == (status, "", True)
    assert bench.effects == 0


@pytest.mark.parametrize("status", [408, 499, 500, 502, 503, 504, 599])
def test_a_5xx_is_run_again_under_at_least_once(bench, status):
    """B21, B24: a passing failure is not pinned to the key."""
    bench.handle(TWICE, answering(status))
    assert brief(bench.handle(TWICE)) == (201, "", False)
    assert bench.effects == 1


def boom(request, attempt):
    raise ZeroDivisionError


def test_an_exception_leaves_the_outcome_unknown_under_at_most_once(bench):
    """Nobody knows how far the handler came: the retry says so, and the error still reaches its caller."""
    with pytest.raises(ZeroDivisionError):
        bench.handle(ONCE, boom)
    answer = bench.handle(ONCE)
    assert brief(answer) == (500, "outcome-unknown", False)
    for member in (b'"may_have_taken_effect": true', b'"cause": "exception"', b'"retryable": false'):
        assert member in (answer.body or b"")
    assert answer.header(b"retry-after") is None
    assert bench.effects == 0
    assert bench.names == ["granted", "parked", "refused:outcome-unknown"]


def test_an_exception_is_run_again_under_at_least_once(bench):
    """The handler is safe to repeat, so its failure frees the key."""
    with pytest.raises(ZeroDivisionError):
        bench.handle(TWICE, boom)
    assert brief(bench.handle(TWICE)) == (201, "", False)
    assert bench.effects == 1


def test_an_answer_that_is_none_counts_as_an_exception(bench):
    """A handler that returns something else may have acted: at most once parks it, and its caller is told."""
    with pytest.raises(TypeError, match="must return a Response"):
        bench.handle(ONCE, lambda request, attempt: {"id": 1})
    assert bench.world.record().cause == "exception"


@pytest.mark.parametrize("policy", [ONCE, TWICE], ids=["at most once", "at least once"])
def test_a_handler_may_say_that_nothing_happened(bench, policy):
    """NotExecuted frees the key, whatever the guarantee, and reaches the caller."""

    def handler(request, attempt):
        raise NotExecuted

    with pytest.raises(NotExecuted, match="nothing happened"):
        bench.handle(policy, handler)
    assert bench.world.records() == []
    assert brief(bench.handle(policy)) == (201, "", False)


@pytest.mark.parametrize(
    ("status", "kept"),
    [pytest.param(status, status < 400, id=str(status)) for status in (200, 303, 399, 400, 409, 500, 503)],
)
def test_release_frees_the_key_of_a_refusal_and_of_no_success(bench, status, kept):
    """`attempt.release()` counts where the answer is 400 or more; a success is stored whatever was said."""

    def handler(request, attempt):
        attempt.release()
        return Response(status)

    bench.handle(ONCE, handler)
    assert [record.state for record in bench.world.records()] == (["completed"] if kept else [])


@pytest.mark.parametrize(
    ("record", "status", "kept"),
    [
        ("2xx", 201, True),
        ("2xx", 303, True),
        ("2xx", 404, False),
        ("2xx", 408, False),
        ("2xx", 500, True),
        ("all", 404, True),
        ("all", 401, False),
        (lambda response: response.status == 409, 409, True),
        (lambda response: response.status == 409, 404, False),
        (lambda response: 1 / 0, 404, True),
    ],
)
def test_the_record_option_decides_on_refusals_only(bench, record, status, kept):
    """R36: successes are always stored, gates never, and at most once keeps its 5xx; a broken rule stores."""
    bench.handle(Policy(record=record), answering(status))
    assert [found.state for found in bench.world.records()] == (["completed"] if kept else [])


@pytest.mark.parametrize(
    ("record", "status", "kept"),
    [("all", 500, True), ("all", 408, True), ("2xx", 500, False), (lambda response: response.status == 502, 502, True)],
)
def test_the_record_option_may_keep_a_5xx_under_at_least_once(bench, record, status, kept):
    """R36: what the table would run again may be kept instead."""
    bench.handle(Policy(guarantee="at_least_once", record=record), answering(status))
    assert [found.state for found in bench.world.records()] == (["completed"] if kept else [])


def test_the_gates_can_be_chosen(bench):
    """R37: `released_statuses` replaces the list."""
    policy = Policy(released_statuses=frozenset({402, 503}))
    for status, states in [(402, []), (503, []), (403, ["completed"])]:
        bench.handle(policy, answering(status), key=f"key-{status}")
        assert [record.state for record in bench.world.records()] == states


def test_an_inner_layers_refusal_is_passed_on_and_not_stored(make):
    """R36: the inner one keeps the record; the next retry asks it again."""
    inner, outer = make(), make(namespace="outer")
    inner.handle()

    def reused(request, attempt):
        return inner.handle(body=b"{}")

    assert code_of(outer.handle(handler=reused)) == "idempotency-key-reuse"
    assert outer.world.records() == []


def test_a_replay_that_a_handler_passes_on_is_stored_like_any_answer(make):
    """R36: its effect is real, whoever marked it; to forget it would let a retry repeat what the handler did."""
    inner, outer = make(), make(namespace="outer")
    inner.handle()
    calls = []

    def through(request, attempt):
        calls.append(request)
        return inner.handle(request=request)

    first, again = outer.handle(handler=through), outer.handle(handler=through)
    assert brief(first) == brief(again) == (201, "", True)
    assert len(calls) == 1


def test_a_finish_that_comes_twice_counts_once(bench):
    """The first outcome stands."""
    from twiceproof.core._outcome import Answered, Raised

    run = bench.run()
    bench.finish(run, Answered(Response(200, [], b"first")))
    bench.finish(run, Raised())
    assert bench.handle().body == b"first"
    assert bench.faults.foreground() == ["claim", "complete", "claim"]
