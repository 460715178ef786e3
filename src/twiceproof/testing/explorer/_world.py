"""All requests of a scene together, the clock, and the operator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import Final, NamedTuple, TypeAlias

from twiceproof.core import _engine as core
from twiceproof.core._codec import encode
from twiceproof.core._messages import Response
from twiceproof.core._record import State
from twiceproof.testing.explorer._invariants import NO_EFFECT
from twiceproof.testing.explorer._moves import CRASH, EXPIRY, LAPSE, LOSS, NOTHING, Move, Moves, Near
from twiceproof.testing.explorer._paths import Force
from twiceproof.testing.explorer._people import LEASE, ME, RETENTION, Bounds, Scene
from twiceproof.testing.explorer._records import ABSENT, LONG

Snapshot: TypeAlias = tuple[int, ...]
"""record, effects, overdue, operator, then one local state per request: see `Near`."""

OPERATOR, FIRST = 3, 4
AWAY, ASKED, DONE = range(3)
"""The operator has not come, holds the second claim, is done."""
NOBODY: Final = -1

BY_OPERATOR: Final = Response(201, [], b"says a person")


class Step(NamedTuple):
    """One move in a world: whose it is, and the world and what is left of the bounds after it."""

    move: Move
    who: int
    world: Snapshot
    left: int


class Budget:
    """What is left of the bounds, as one number, and which numbers are worth less than which."""

    def __init__(self, bounds: Bounds) -> None:
        most = (bounds.crashes, bounds.lost, bounds.lapses, bounds.expiries)
        amounts = list(product(*(range(amount + 1) for amount in most)))
        numbers = {amount: number for number, amount in enumerate(amounts)}
        self.full = numbers[most]
        self.after: list[list[int]] = []
        """Per number and kind of move what is left after it, -1 where it can't be paid."""
        self.below: list[int] = []
        """Per number a set of bits: all that allow nothing that it does not allow."""
        for amount in amounts:
            paid = [(*amount[:kind], amount[kind] - 1, *amount[kind + 1 :]) for kind in (CRASH, LOSS, LAPSE, EXPIRY)]
            self.after.append([*(numbers.get(less, -1) for less in paid), numbers[amount]])
            within = (n for other, n in numbers.items() if all(a <= b for a, b in zip(other, amount, strict=True)))
            self.below.append(sum(1 << number for number in within))


class World:
    """Everything that may happen in a scene."""

    def __init__(self, scene: Scene, bounds: Bounds, *, merge: bool = True) -> None:
        self.moves = Moves(scene, merge=merge)
        self.people = self.moves.people
        self.budget = Budget(bounds)
        self._operated = scene.operator
        self._records, self._locals = self.moves.records, self.moves.locals
        self._force = self._locals.step_number(Force(self._records.id))
        said = core.DoComplete(self._records.id, ME, encode(BY_OPERATOR), RETENTION)
        self._resolve = self._locals.step_number(said)
        self._free = self._locals.step_number(core.DoRelease(self._records.id, ME))
        self._pairs = [(a, b) for a, b in pairwise(range(self.people)) if self.moves.which[a] == self.moves.which[b]]
        if not self._records.distinct:
            self._pairs = []  # whoever bears another's nonce has no name of its own to swap
        self._order = tuple(range(self.people))

    def start(self) -> Snapshot:
        """Return the world before anything happened."""
        return (ABSENT, NO_EFFECT, 0, AWAY, *(self._locals.start(kind) for kind in self.moves.which))

    def steps(self, world: Snapshot, left: int) -> Iterator[Step]:
        """Yield everything that may happen now, as far as the bounds allow it."""
        payable = self.budget.after[left]
        record, effects, overdue, operator = world[:FIRST]
        for who in range(self.people):
            at = FIRST + who
            local = world[at]
            still = self.moves.asks(local) and self._still(world)
            for move in self.moves.of(Near(record, effects, overdue, local), who, still=still):
                rest = payable[move.spends]
                if rest >= 0:
                    near = move.after
                    after = (near.record, near.effects, near.overdue, operator, *world[FIRST:at], near.local)
                    yield Step(move, who, after + world[at + 1 :], rest)
        for move, after in self._time(world):
            rest = payable[move.spends]
            if rest >= 0:
                yield Step(move, NOBODY, after, rest)
        if self._operated:
            for move, after in self._operator(world):
                yield Step(move, NOBODY, after, left)

    def _still(self, world: Snapshot) -> bool:
        """Whether no handler can take effect any more on what is recorded now."""
        owner = self._records.claimant(world[0])
        return not any(self._locals.may_act(world[FIRST + who], owner=who == owner) for who in range(self.people))

    def _time(self, world: Snapshot) -> Iterator[tuple[Move, Snapshot]]:
        """Let time pass: a lease at a time, or until the record is due to expire."""
        record = world[0]
        row = self._records.row(record)
        if row is None:
            return
        purged = self._records.purged(record)
        if purged != record:
            broken = "a purge deleted a record that had not expired (R33, R42)" if row.live(0) else None
            yield Move("the store is purged", 0, _NONE, NOTHING, broken), (purged, *world[1:])
        if not row.live(0):
            return
        completed = row.state is State.COMPLETED
        later = self._records.after(record, LEASE)
        if not completed and later != record:
            broken = None if self._records.live(later) else "a record expired when only a lease had passed (R42)"
            aged = (self._locals.aged(local) for local in world[FIRST:])
            yield Move("a lease passes", 0, _NONE, LAPSE, broken), (later, world[1], 1, world[OPERATOR], *aged)
        later = self._records.after(record, LONG[completed])
        broken = "a record outlives its retention (R33, R42)" if self._records.live(later) else None
        aged = (self._locals.aged(local, old=True) for local in world[FIRST:])
        yield Move("the record expires", 0, _NONE, EXPIRY, broken), (later, NO_EFFECT, 0, world[OPERATOR], *aged)

    def _operator(self, world: Snapshot) -> Iterator[tuple[Move, Snapshot]]:
        """Let a person resolve the record, truthfully; a live lease may be overridden."""
        row = self._records.row(world[0])
        if world[OPERATOR] == AWAY and row is not None and row.live(0) and row.state is not State.COMPLETED:
            yield self._person(world, "an operator takes the second claim", self._force, ASKED)
        if world[OPERATOR] == ASKED:
            if world[1] != NO_EFFECT:
                yield self._person(world, "the operator says that it took effect", self._resolve, DONE)
            elif self._still(world):
                yield self._person(world, "the operator says that nothing happened", self._free, DONE)

    def _person(self, world: Snapshot, what: str, step: int, then: int) -> tuple[Move, Snapshot]:
        act = self._records.act(world[0], self.people, step)
        overdue = 0 if act.record != world[0] and act.record != ABSENT else world[2]
        return Move(what, step, _NONE, NOTHING, act.broken), (act.record, world[1], overdue, then, *world[FIRST:])

    def alike(self, world: Snapshot) -> tuple[Snapshot, tuple[int, ...]]:
        """Return the one of all worlds that differ only in the names of equal requests, and the order it has them in.

        A process that died leaves the same world as one that lives on, once the record is not its claim.
        """
        roles = self._records.roles(world[0])
        locals = world[FIRST:]
        quiet = self._locals.quiet
        if not quiet.keys().isdisjoint(locals):
            owner = self._records.claimant(world[0])
            gone = (local if who == owner else quiet.get(local, local) for who, local in enumerate(locals))
            locals = tuple(gone)
            world = (*world[:FIRST], *locals)
        for a, b in self._pairs:
            if locals[a] > locals[b] or (locals[a] == locals[b] and roles[a] > roles[b]):
                break
        else:
            return world, self._order
        which = self.moves.which
        order = tuple(sorted(self._order, key=lambda who: (which[who], locals[who], roles[who])))
        record = self._records.reordered(world[0], order)
        return (record, *world[1:FIRST], *(locals[who] for who in order)), order


_NONE: Final = Near(0, 0, 0, 0)
