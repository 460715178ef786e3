"""`maintain`: purging from a cron job or a management command, for those who set `purge_every=0` (R33, R42)."""

import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.engines import Bench, World
from tests.support.faulty_store import DOWN, Fault
from twiceproof import Engine, Policy, Response
from twiceproof.core._outcome import Answered
from twiceproof.errors import ConfigurationError, StoreUnavailable
from twiceproof.stores import Purged

LONG = 31 * 86_400
DONE = Answered(Response(201, [], b"done"))


def maintained(bench: Bench, **options: object) -> Purged:
    done = bench.engine.maintain(**options)
    return done if bench.loop is None else bench.wait_for(done)


def expired(bench: Bench, completed: int = 0, unsettled: int = 0) -> None:
    """So many records whose keeping time is over, of each kind."""
    new = bench.run(Policy(unsettled_retention=1.0)).call.new
    bench.engine._keeper._runs.clear()
    store = bench.world.memory
    for n in range(completed):
        id = b"completed %d" % n
        store.claim(replace(new, id=id), 30.0, id)
        store.complete(id, id, b"", 1.0)
    for n in range(unsettled - 1):  # the first is one of them
        store.claim(replace(new, id=b"unsettled %d" % n), 0.0, b"nonce")
    bench.world.clock.pass_(LONG)


def test_what_expired_goes_and_is_counted(bench):
    """All of it, with how many of them nobody ever learned the outcome of; what is live stays (R33, R42)."""
    bench.handle(Policy(retention=2.0 * LONG), key="alive")
    expired(bench, completed=3, unsettled=2)
    assert maintained(bench) == Purged(5, 2)
    assert bench.world.states() == ["completed"]
    assert maintained(bench) == Purged(0)


def test_steps_are_bounded_and_told_as_the_background_tells_them(bench):
    """A thousand at most in one statement; an event for each step, none for one that found nothing."""
    expired(bench, completed=1_500, unsettled=1)
    bench.events.clear()
    assert maintained(bench) == Purged(1_501, 1)
    assert [name for name in bench.names if name != "purged:unsettled"] == ["purged:1000", "purged:501"]
    assert bench.names.count("purged:unsettled") == 1
    bench.events.clear()
    maintained(bench)
    assert bench.names == []


@pytest.mark.parametrize("within", [0, 0.0, timedelta(0)])
def test_no_step_begins_after_the_time_is_up(bench, within):
    """One is always taken, so that a job that has no time at all gets on too."""
    expired(bench, completed=2_500)
    assert maintained(bench, within=within).records == 1_000
    assert maintained(bench, within=60).records == 1_501


@pytest.mark.parametrize("within", [-1, float("nan"), "soon", True])
def test_a_time_that_is_none_is_refused_before_anything_is_done(bench, within):
    """In a sentence that names it."""
    expired(bench)
    with pytest.raises(ConfigurationError, match="within must"):
        maintained(bench, within=within)
    assert bench.faults.count()["purge"] == 0


def test_a_store_that_fails_half_way_is_told_and_what_was_deleted_stays_so(bench):
    """The steps before it have been told as events; the next call goes on."""
    expired(bench, completed=1_200)
    bench.faults.next["purge"] = [Fault(), DOWN]
    with pytest.raises(StoreUnavailable):
        maintained(bench)
    assert "purged:1000" in bench.names
    assert maintained(bench).records == 201


def test_it_opens_the_store_and_can_be_called_while_requests_run(make, world):
    """A management command makes an engine for nothing else; in a server it takes no claim away."""
    bench = make(world)
    assert maintained(bench) == Purged(0)
    assert bench.faults.count()["open"] == 1
    run = bench.run()
    assert maintained(bench) == Purged(0)
    assert world.states() == ["in_flight"]
    bench.finish(run, DONE)
    assert world.states() == ["completed"]


def test_two_at_a_time_delete_each_record_once(make):
    """Whoever calls it: their counts add up to what there was."""
    world = World()
    first, second = make(world), make(world)
    expired(first, completed=2_000)
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda b=bench: counts.append(maintained(b).records)) for bench in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(counts), sum(counts)) == (2, 2_001)


def test_a_script_of_two_lines_is_enough(tmp_path):
    """As a cron job would run it: the process ends by itself, and has told what it did."""
    store = f"sqlite:///{tmp_path}/keys.db"
    with Engine(store) as engine:
        engine.store.open()
    script = (
        "from twiceproof import Engine\n"
        f"with Engine({store!r}, purge_every=0) as engine:\n"
        "    print(engine.maintain(within=60))\n"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "Purged(records=0, unsettled=0)\n", "")
