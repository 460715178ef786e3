"""A live run keeps its claim: one thread renews, tells, and gives up when it must (R31, R33)."""

import threading
import time
from dataclasses import replace

import pytest

from tests.support.engines import Gate, World, brief, until
from tests.support.faulty_store import DOWN, Fault
from twiceproof import Policy, Response
from twiceproof.core._outcome import Answered, NothingHappened, Raised
from twiceproof.errors import StoreOutcomeUnknown

SHORT = Policy(lease=0.5)
TWICE = Policy(lease=0.5, guarantee="at_least_once")
DONE = Answered(Response(201, [], b"done"))


@pytest.fixture
def running(make):
    """A bench whose store's clock runs."""
    return make(World(clock=time.monotonic))


def test_a_slow_run_outlives_its_leases_and_is_not_taken_over(make, world):
    """B10: while its process lives, a run that takes longer than three leases is the only one."""
    slow = make(World(clock=time.monotonic) if world.kind == "memory" else world)
    other = make(slow.world)
    gate = Gate()
    with gate.running(slow, TWICE):
        deadline = time.monotonic() + 1.7
        while time.monotonic() < deadline:
            assert brief(other.handle(TWICE)) == (409, "in-progress", False)
            time.sleep(0.1)
        assert [attempt.lease_lost for attempt in gate.attempts] == [False]
    assert brief(other.handle(TWICE)) == (201, "", True)
    assert other.effects == 0


def test_all_claims_of_one_lease_length_are_renewed_in_one_statement(running):
    """One call per third of a lease, however many run."""
    runs = [running.run(SHORT, key=f"key-{n}") for n in range(7)]
    running.run(Policy(lease=3600), key="other-length")
    until(lambda: running.faults.count()["background.renew"] >= 3)
    assert set(running.faults.refs) == {7}
    for run in runs:
        running.finish(run, DONE)


def test_a_claim_is_renewed_every_third_of_its_lease(running):
    """Neither more often than that, nor less: three times within a lease."""
    moments = []
    running.faults.now["background.renew"] = Fault(before=lambda: moments.append(time.monotonic()))
    started = time.monotonic()
    run = running.run(Policy(lease=0.9))
    until(lambda: len(moments) >= 4)
    running.finish(run, DONE)
    gaps = [after - before for before, after in zip([started, *moments], moments, strict=False)]
    assert min(gaps) >= 0.28, gaps


def test_the_handler_is_told_when_the_lease_was_not_renewed_in_time(running):
    """Without success for a third of the lease, `lease_lost` says that another run may begin."""
    running.faults.now["background.renew"] = DOWN
    begun = time.monotonic()
    run = running.run(SHORT)
    assert not run.attempt.lease_lost
    until(lambda: run.attempt.lease_lost)
    assert time.monotonic() - begun >= 0.5 * 2 / 3
    running.finish(run, DONE)
    assert running.handle(SHORT).body == b"done"


def test_one_failed_renewal_is_no_loss(running):
    """The next one is in time."""
    running.faults.next["background.renew"] = [DOWN]
    run = running.run(SHORT)
    until(lambda: running.faults.count()["background.renew"] >= 3)
    assert not run.attempt.lease_lost
    running.finish(run, DONE)


def test_a_run_that_was_taken_over_is_told(running, make):
    """R30, B10: paused for longer than its lease, it finds its claim fenced, and an event says so."""
    running.faults.now["background.renew"] = DOWN
    run = running.run(TWICE)
    other = make(running.world)
    time.sleep(0.55)
    second = other.run(TWICE)
    running.faults.now.clear()
    until(lambda: running.names == ["granted", "fenced:renew"])
    assert run.attempt.lease_lost
    running.finish(run, DONE)
    assert running.names == ["granted", "fenced:renew", "fenced"]
    other.finish(second, DONE)
    assert other.names == ["taken_over", "completed"]


def test_a_run_is_renewed_no_longer_than_its_max_runtime(running, make):
    """A run that hangs for ever holds its key for a bounded time; then nobody knows how it came out."""
    run = running.run(Policy(lease=0.5, max_runtime=0.5))
    until(lambda: run.attempt.lease_lost)
    other = make(running.world)
    until(lambda: brief(other.handle(SHORT)) == (500, "outcome-unknown", False))
    assert running.engine._keeper.idle
    running.finish(run, DONE)
    assert other.handle(SHORT).body == b"done"


def test_a_settled_run_is_renewed_no_more(running):
    """Whatever its outcome."""
    for n, outcome in enumerate([DONE, Raised(), NothingHappened()]):
        running.finish(running.run(SHORT, key=f"key-{n}"), outcome)
    assert running.engine._keeper.idle
    time.sleep(0.4)
    assert running.faults.count()["background.renew"] == 0


@pytest.mark.parametrize("error", [None, StoreOutcomeUnknown("lost")], ids=["answered", "reply lost"])
def test_a_renewal_that_overtakes_a_parking_does_not_hide_it(running, error):
    """R28: what is parked is unknown at once, also where the thread had just begun to renew it."""
    in_renewal, parked = threading.Event(), threading.Event()

    def overtake():
        in_renewal.set()
        parked.wait(10)

    running.faults.next["background.renew"] = [Fault(error, acts=True, before=overtake)]
    run = running.run(Policy(lease=60))
    running.engine._keeper._due[60.0] = 0.0
    running.engine._keeper._wake.set()
    assert in_renewal.wait(10)
    running.finish(run, Raised())
    parked.set()
    until(lambda: running.faults.count()["background.park"] == 1)
    until(lambda: running.world.states() == ["parked"])
    assert running.world.record().cause == "exception"
    assert running.names == ["granted", "parked"]


def test_a_renewal_that_overtakes_a_release_is_nobodys_news(running):
    """R30: what it finds gone is gone because its own handler said so."""
    in_renewal, released = threading.Event(), threading.Event()

    def overtake():
        in_renewal.set()
        released.wait(10)

    running.faults.next["background.renew"] = [Fault(before=overtake)]
    run, other = running.run(Policy(lease=60)), running.run(Policy(lease=60), key="other")
    running.engine._keeper._due[60.0] = 0.0
    running.engine._keeper._wake.set()
    assert in_renewal.wait(10)
    running.finish(run, NothingHappened())
    released.set()
    until(lambda: other.renewed_at > other.started_at)
    assert (running.names, run.attempt.lease_lost) == (["granted", "granted", "released"], False)


def test_the_thread_survives_a_bug_of_ours(running, monkeypatch):
    """The claims of a whole process depend on it."""
    broken = threading.Event()

    def purge():
        broken.set()
        raise ZeroDivisionError

    monkeypatch.setattr(running.engine._keeper, "_purge", purge)
    run = running.run(SHORT)
    until(lambda: running.faults.count()["background.renew"] >= 2)
    assert broken.is_set()
    running.finish(run, DONE)


def test_the_thread_survives_whatever_a_store_raises(running):
    """A bug in the store ends neither renewal nor purging nor the repetition of writes."""
    running.faults.now["background.renew"] = Fault(ZeroDivisionError())
    run = running.run(SHORT)
    until(lambda: run.attempt.lease_lost)
    running.faults.now.clear()
    before = running.faults.count()["background.renew"]
    until(lambda: running.faults.count()["background.renew"] > before + 1)
    running.finish(run, DONE)


def test_the_thread_opens_its_store_again_until_it_can(running):
    """A store that was down when the thread first wanted it."""
    running.faults.next["background.open"] = [DOWN, DOWN]
    run = running.run(SHORT)
    until(lambda: running.faults.count()["background.renew"] >= 1)
    assert running.faults.count()["background.open"] == 3
    running.finish(run, DONE)


def test_expired_records_are_purged_by_the_thread(make):
    """R33: every `purge_every`, and an event counts them."""
    bench = make(purge_every=0.05)
    bench.handle(Policy(retention=86_400.0))
    bench.run(Policy(unsettled_retention=1.0), key="lost")
    bench.engine._keeper._runs.clear()
    bench.world.clock.pass_(86_400)
    until(lambda: bench.names[-2:] == ["purged:2", "purged:unsettled"])
    assert bench.world.memory._rows == {}


def test_a_purge_takes_a_thousand_at_a_time_and_goes_on(make):
    """R33: bounded steps, so that claims are not kept waiting."""
    bench = make(purge_every=0.3)
    new = bench.run().call.new
    for n in range(2_099):
        bench.world.memory.claim(replace(new, id=b"%d" % n), 0.0, b"nonce")
    bench.engine._keeper._runs.clear()
    bench.world.clock.pass_(31 * 86_400)
    until(lambda: bench.world.memory._rows == {})
    until(lambda: bench.names.count("purged:unsettled") == 3)
    assert [name for name in bench.names if name[7:].isdigit()] == ["purged:1000", "purged:1000", "purged:100"]


def test_a_purge_that_fails_is_tried_again(make):
    """The store was down once."""
    bench = make(purge_every=0.05)
    bench.faults.next["background.purge"] = [DOWN]
    bench.run()
    until(lambda: bench.faults.count()["background.purge"] >= 2)


def test_purging_can_be_turned_off(make):
    """0 leaves it to an operator."""
    bench = make(purge_every=0)
    bench.run(SHORT)
    until(lambda: bench.faults.count()["background.renew"] >= 2)
    assert bench.faults.count()["background.purge"] == 0


def test_one_thread_serves_the_whole_engine(running):
    """However many run at once."""
    names = [thread.name for thread in threading.enumerate()]
    for n in range(5):
        running.run(SHORT, key=f"key-{n}")
    grown = [thread.name for thread in threading.enumerate()]
    assert grown.count("twiceproof-keeper") - names.count("twiceproof-keeper") == 1


def test_a_run_goes_on_where_no_thread_can_be_started(bench, monkeypatch):
    """It is only not renewed: the token decides, never the time; the next run tries again."""
    with monkeypatch.context() as broken:
        broken.setattr("twiceproof.engine._keeper.threading.Thread.start", _no_thread)
        if bench.colour == "blocking":
            assert brief(bench.handle()) == (201, "", False)
        else:
            bench.engine._keeper._start()
    assert bench.engine._keeper._thread is None
    bench.run(key="next")
    assert bench.engine._keeper._thread is not None


def _no_thread(thread):
    raise RuntimeError("can't start new thread")


def test_many_pending_writes_do_not_keep_a_live_claim_from_renewal(running, make):
    """R31, R47: however much an outage left behind, a handler that runs now keeps its claim."""
    for number in range(60):
        run = running.run(Policy(lease=60), body=b"%d" % number, key=f"old-{number}")
        running.faults.next["complete"] = [DOWN]
        running.finish(run, DONE)
    running.faults.now["background.complete"] = Fault(sleep=0.05)
    live = running.run(SHORT, key="live")
    lost_at = time.monotonic() + 1.5
    while time.monotonic() < lost_at:
        assert not live.attempt.lease_lost
        time.sleep(0.05)
    running.finish(live, DONE)
