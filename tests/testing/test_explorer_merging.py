"""What the explorer leaves out changes nothing that it could have found."""

from itertools import permutations

import pytest

from twiceproof.core._record import State
from twiceproof.testing.explorer._frozen import freeze, resting_place
from twiceproof.testing.explorer._people import Bounds, scenes
from twiceproof.testing.explorer._search import Place, _walk
from twiceproof.testing.explorer._world import World

SMALL = Bounds(crashes=1, lost=1, lapses=1, expiries=1)
SCENES = scenes(2, "all")


def one_by_one(world):
    """Every world that can come about, found without leaving any out."""
    start = (world.start(), world.budget.full)
    seen, level = {start}, [start]
    while level:
        following = []
        for place in level:
            for step in world.steps(*place):
                assert step.move.broken is None
                after = (step.world, step.left)
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        level = following
    return {snapshot for snapshot, _ in seen}


def searched(world):
    ways: dict[Place, Place] = {}
    assert _walk(world, 10**9, ways).broken is None
    return {snapshot for snapshot, _ in ways} | {world.alike(world.start())[0]}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_swapping_equal_requests_and_spending_less_leaves_no_world_out(scene):
    """The search sees each world of the plain one, up to the names of requests that are alike."""
    world = World(scene, SMALL)
    assert {world.alike(snapshot)[0] for snapshot in one_by_one(world)} == searched(world)


def told(world):
    """What can be seen of the worlds of a search, whatever numbers and names it gave to things."""
    records, which = world.moves.records, world.moves.which
    orders = [order for order in permutations(range(2)) if [which[who] for who in order] == which]
    return {
        (
            records.row(records.reordered(record, order)),
            tuple(rest),
            tuple(told_of(world, locals[who]) for who in order),
        )
        for record, *rest, first, second in searched(world)
        for locals in [(first, second)]
        for order in orders
    }


def told_of(world, local):
    step = world.moves.locals.step(local)
    state = world.moves.locals[local]
    asked = freeze(step) if step is not None and hasattr(step, "nonce") else type(step)
    late = [freeze(world.moves.records.steps.values[number]) for number in state.late]
    jobs = [freeze(world.moves.records.steps.values[job.step]) for job in state.jobs]
    return state.kind, asked, state.dead, state.old, state.watched, state.overtaken, frozenset(late), frozenset(jobs)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_following_one_of_all_histories_that_go_on_alike_leaves_no_world_out(scene):
    """What the steps were told before is dropped where no way from there on reads it."""
    bounds = Bounds(crashes=1, lost=1, lapses=1, expiries=0)
    assert told(World(scene, bounds)) == told(World(scene, bounds, merge=False))


def counting(first, second):
    told = yield first
    unread = yield second
    del unread
    while told:
        yield told
        told -= 1


def delegating(value):
    local = value
    result = yield from counting(1, 2)
    yield (local, result)


def test_two_histories_rest_at_one_place_where_they_differ_in_nothing_that_is_read():
    """And at two where they do."""

    def after(*answers, made=counting, arguments=(1, 2)):
        steps = made(*arguments)
        steps.send(None)
        for answer in answers:
            steps.send(answer)
        return resting_place(steps)

    assert after(3, "x") == after(3, "y")
    assert after(3, "x") != after(4, "x")
    assert after(4, "x", None) == after(3, "y")
    assert after(made=delegating, arguments=(1,)) != after(made=delegating, arguments=(2,))
    assert after(arguments=(1, 2)) == after(arguments=(9, 2))


def test_a_generator_with_a_loop_over_an_iterator_is_refused():
    """Its place in the loop is not among its names, so that two could look alike and go on differently."""

    def looping():
        for item in (1, 2):
            yield item + 1

    steps = looping()
    next(steps)
    with pytest.raises(AssertionError, match="on the stack"):
        resting_place(steps)


def test_time_is_told_from_now_on():
    """A record is the same one whenever it came about, and so is how long it is kept."""
    world = World(SCENES[0], SMALL)
    records = world.moves.records
    rows = [records.row(snapshot[0]) for snapshot in searched(world)]
    in_flight = [row for row in rows if row is not None and row.live(0) and row.state is State.IN_FLIGHT]
    assert {row.lease_until for row in in_flight} == {0.0, 32.0}
    assert {row.expires_at - row.lease_until for row in in_flight} == {30 * 86_400.0}
