"""What happened, one name each, for metrics, logs and history checks (CONTRACT 7)."""

import pytest

from tests.support.engines import Gate, brief, until
from tests.support.faulty_store import DOWN
from twiceproof import Policy
from twiceproof.core._outcome import Raised

NAMES = {
    "granted",
    "replayed",
    "refused",
    "held",
    "taken_over",
    "parked",
    "reconciled",
    "completed",
    "complete_retried",
    "fenced",
    "released",
    "failed_open",
    "purged",
    "operator",
}


def test_an_event_names_operation_and_record_and_never_the_key(bench):
    """Only a digest of the key leaves the process."""
    bench.handle(key="very-secret")
    [granted, completed] = bench.events
    assert (granted.operation, granted.record) == ("POST /orders", bench.world.record().id.hex())
    assert (completed.operation, completed.record) == (granted.operation, granted.record)
    assert "very-secret" not in repr(bench.events)


def test_a_listener_that_fails_changes_nothing(make):
    """Its error is logged; the answer and the record are as without it."""

    def broken(event):
        raise ZeroDivisionError

    bench = make(on_event=broken)
    assert [brief(bench.handle()), brief(bench.handle())] == [(201, "", False), (201, "", True)]


def test_nobody_needs_to_listen(make):
    """The default."""
    assert brief(make(on_event=None).handle()) == (201, "", False)


def test_each_request_ends_in_one_event_of_its_own(bench):
    """A history can be read from them: begun or answered, exactly once each."""
    ends = {"granted", "taken_over", "replayed", "refused", "held", "failed_open"}
    gate = Gate()
    requests = 8
    with gate.running(bench):
        bench.handle()
        bench.handle(body=b"{}")
    bench.handle()
    bench.faults.next["claim"] = [DOWN, DOWN]
    bench.handle()
    bench.handle(Policy(fail_open=True))
    bench.finish(bench.run(key="key-2"), Raised())
    bench.handle(key="key-2")
    assert {event.name for event in bench.events} <= NAMES
    assert len([event for event in bench.events if event.name in ends]) == requests


@pytest.mark.parametrize("code", ["idempotency-key-invalid", "body-incomplete"])
def test_a_doors_own_refusals_are_events_too(bench, code):
    """R11, R52: what is refused before the engine is asked."""
    reply = bench.engine.refuse(code)
    assert (brief(reply.response)[1], bench.names) == (code, [f"refused:{code}"])


def test_a_purge_counts_and_names_no_record(make):
    """It is about many."""
    bench = make(purge_every=0.05)
    bench.handle()
    bench.world.clock.pass_(86_400)
    until(lambda: "purged:1" in bench.names)
    assert [(event.operation, event.record) for event in bench.events if event.name == "purged"] == [("", "")]
