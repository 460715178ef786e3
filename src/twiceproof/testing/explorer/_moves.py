"""Everything that may happen next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._codec import encode
from twiceproof.core._messages import Response
from twiceproof.core._outcome import Abandoned, Completed, DontKnow, NothingHappened
from twiceproof.core._record import Granted, State
from twiceproof.testing.explorer._invariants import EFFECT, NO_EFFECT, broken_by_reply, broken_by_run
from twiceproof.testing.explorer._invariants import STRICT_EFFECT
from twiceproof.testing.explorer._locals import NOWHERE, Locals
from twiceproof.testing.explorer._paths import Force, Paths, Renew
from twiceproof.testing.explorer._people import LEASE, ME, RETENTION, Bounds, Kind, Scene
from twiceproof.testing.explorer._records import ABSENT, LONG, Records

World: TypeAlias = tuple[int, ...]
"""record, effects, overdue, operator, crashes, lost, lapses, expiries left, then one local state per request."""

RECORD, EFFECTS, OVERDUE, OPERATOR, CRASHES, LOST, LAPSES, EXPIRIES, FIRST = range(9)
AWAY, ASKED, DONE = range(3)
"""The operator has not come, holds the second claim, is done."""

BY_HOOK: Final = Response(201, [], b"says the hook")
BY_OPERATOR: Final = Response(201, [], b"says a person")


class Move(NamedTuple):
    """One thing that may happen: what it is, whose, and the world after it; or what it broke."""

    what: str
    who: int
    detail: int
    world: World
    broken: str | None = None


class Moves:
    """The moves of one scene. All that they share is remembered here, so a mutant needs a fresh one."""

    def __init__(self, scene: Scene, *, merge: bool = True) -> None:
        kinds: list[Kind] = []
        self.which: list[int] = []
        for kind in scene.kinds:
            if kind not in kinds:
                kinds.append(kind)
            self.which.append(kinds.index(kind))
        self.kinds, self.people = kinds, len(scene.kinds)
        self.scene = scene
        self.paths = Paths(kinds, merge=merge)
        self.records = Records(kinds[0].call.new.id, self.people, self.paths)
        self.locals = Locals(kinds, self.paths, self.records.steps)
        self.counted = any(kind.strict for kind in kinds)
        self._outcomes = [[(self.paths.answer(end.outcome), end.effect) for end in kind.endings] for kind in kinds]
        self._abandoned = self.paths.answer(Abandoned())
        self._left, self._stayed = self.paths.answer(True), self.paths.answer(False)
        self._knows = self.paths.answer(Completed(BY_HOOK))
        self._nothing, self._unsure = self.paths.answer(NothingHappened()), self.paths.answer(DontKnow())
        self._renew = self.locals.step_number(Renew(self.records.id))
        self._force = self.locals.step_number(Force(self.records.id))
        complete = core.DoComplete(self.records.id, ME, encode(BY_OPERATOR), RETENTION)
        self._resolve = self.locals.step_number(complete)
        self._free = self.locals.step_number(core.DoRelease(self.records.id, ME))
        self._payloads = {kind.call.new.fingerprint: kind.amount for kind in kinds}

    def start(self, bounds: Bounds) -> World:
        """Return the world before anything happened."""
        locals = (self.locals.start(kind) for kind in self.which)
        left = (bounds.crashes, bounds.lost, bounds.lapses, bounds.expiries)
        return (ABSENT, NO_EFFECT, 0, AWAY, *left, *locals)

    def of(self, world: World) -> Iterator[Move]:
        """Yield everything that may happen now."""
        for who in range(self.people):
            number = world[FIRST + who]
            local = self.locals[number]
            if local.point != NOWHERE:
                step = self.locals.step(number)
                if isinstance(step, core.DoRun):
                    yield from self._run(world, who)
                elif isinstance(step, core.DoAsk):
                    yield from self._ask(world, who)
                elif isinstance(step, core.DoPause):
                    yield from self._pause(world, who)
                else:
                    yield from self._call(world, who, self.locals.step_number(step))  # type: ignore[arg-type]
            if world[CRASHES] and not local.dead and (local.point != NOWHERE or local.jobs or local.watched):
                after = self._with(world, who, self.locals.crashed(number))
                yield Move("dies", who, 0, _less(after, CRASHES))
            if local.jobs:
                yield from self._background(world, who)
            if local.watched or local.overtaken:
                yield from self._renewal(world, who)
            for step_number in local.late:
                yield self._arrival(world, who, step_number)
        yield from self._time(world)
        if self.scene.operator:
            yield from self._operator(world)

    # ------------------------------------------------------------------ a request

    def _call(self, world: World, who: int, step: int) -> Iterator[Move]:
        number = world[FIRST + who]
        act = self.records.act(world[RECORD], who, step)
        acted = self._acted(world, who, step)
        yield self._told(acted, "calls", who, act.answer, act.broken)
        if not world[LOST]:
            return
        lossy, unsent = _less(acted, LOST), _less(world, LOST)
        if acted != world:
            yield self._told(lossy, "calls, and the reply is lost", who, self.paths.unknown, act.broken)
            cancelled = self._with(lossy, who, self.locals.cancelled(number))
            yield Move("calls, and is cancelled", who, act.answer, cancelled, act.broken)
        yield self._told(unsent, "finds the store down", who, self.paths.down, None)
        waiting = self._with(unsent, who, self.locals.sent(number, step))
        yield self._told(waiting, "calls, and is answered too late", who, self.paths.unknown, None)
        gone = self._with(waiting, who, self.locals.cancelled(waiting[FIRST + who]))
        yield Move("calls, and is cancelled before the store acts", who, 0, gone)

    def _acted(self, world: World, who: int, step: int) -> World:
        """Return the world with the store's part of a call done."""
        act = self.records.act(world[RECORD], who, step)
        if act.record != world[RECORD] or isinstance(self.paths.answers.values[act.answer], Granted):
            return (act.record, world[EFFECTS], 0, *world[OPERATOR:])
        return world

    def _told(self, world: World, what: str, who: int, answer: int, broken: str | None) -> Move:
        after, end = self.locals.told(world[FIRST + who], answer)
        if broken is None and isinstance(end, life.Reply):
            row = self.records.row(world[RECORD])
            recorded = None if row is None or row.answer is None else self.records.as_told(row.answer, who)
            same = row is not None and self._payloads.get(row.subject.fingerprint) == self._kind(who).amount
            left = answer == self._left and what == "waits"
            broken = broken_by_reply(end, row, recorded, same=same, overdue=bool(world[OVERDUE]) and not left)
        return Move(what, who, answer, self._with(world, who, after), broken)

    def _run(self, world: World, who: int) -> Iterator[Move]:
        number = world[FIRST + who]
        for answer, effect in self._outcomes[self.which[who]]:
            ran, broken = self._ran(world, who, effect=effect)
            yield self._told(ran, "runs", who, answer, broken)
        if world[CRASHES]:  # with its effect; the process that dies or stops before it is like any other crash
            ran, broken = self._ran(world, who, effect=True)
            after, _ = self.locals.told(number, self._abandoned)
            yield Move("dies in its handler", who, 0, _less(self._with(ran, who, self.locals.crashed(after)), CRASHES), broken)

    def _ran(self, world: World, who: int, *, effect: bool) -> tuple[World, str | None]:
        if not self.counted or self.locals[world[FIRST + who]].old:
            return world, None
        effects, broken = broken_by_run(world[EFFECTS], strict=self._kind(who).strict, effect=effect)
        return (world[RECORD], effects, *world[OVERDUE:]), broken

    def _ask(self, world: World, who: int) -> Iterator[Move]:
        """Let the hook speak; it tells the truth, and *nothing happened* only of what can't happen any more (R28)."""
        yield self._told(world, "asks the hook", who, self._unsure, None)
        if world[EFFECTS] != NO_EFFECT:
            yield self._told(world, "asks the hook", who, self._knows, None)
        elif self._nothing_can_happen(world):
            yield self._told(world, "asks the hook", who, self._nothing, None)
        if world[LOST]:
            gone = self._with(_less(world, LOST), who, self.locals.cancelled(world[FIRST + who]))
            yield Move("is cancelled while the hook is asked", who, 0, gone)

    def _nothing_can_happen(self, world: World) -> bool:
        row = self.records.row(world[RECORD])
        owner = -1 if row is None else self.records.owner(row.nonce)
        return not any(self.locals.may_act(world[FIRST + who], owner=who == owner) for who in range(self.people))

    def _pause(self, world: World, who: int) -> Iterator[Move]:
        yield self._told(world, "waits", who, self._stayed, None)
        yield self._told(world, "waits", who, self._left, None)

    # ------------------------------------------------------------------ its process

    def _background(self, world: World, who: int) -> Iterator[Move]:
        number = world[FIRST + who]
        for job in self.locals[number].jobs:
            act = self.records.act(world[RECORD], who, job.step)
            acted = self._acted(world, who, job.step)
            done = self._with(acted, who, self.locals.job_done(number, job, act.answer))
            yield Move("in the background", who, job.step, done, act.broken)
            if world[LOST] and acted != world:
                yield Move("in the background, and the reply is lost", who, job.step, _less(acted, LOST), act.broken)

    def _renewal(self, world: World, who: int) -> Iterator[Move]:
        number = world[FIRST + who]
        act = self.records.act(world[RECORD], who, self._renew)
        acted = self._acted(world, who, self._renew)
        fenced = bool(self.paths.answers.values[act.answer])
        if not fenced:
            acted = (acted[RECORD], acted[EFFECTS], 0, *acted[OPERATOR:])
        after = self._with(acted, who, self.locals.renewed(number, fenced=fenced))
        yield Move("renews", who, act.answer, after, act.broken)

    def _arrival(self, world: World, who: int, step: int) -> Move:
        act = self.records.act(world[RECORD], who, step)
        acted = self._acted(world, who, step)
        after = self._with(acted, who, self.locals.arrived(world[FIRST + who], step))
        return Move("what was on its way arrives", who, step, after, act.broken)

    # ------------------------------------------------------------------ the world

    def _time(self, world: World) -> Iterator[Move]:
        row = self.records.row(world[RECORD])
        if row is None:
            return
        purged = self.records.purged(world[RECORD])
        if purged != world[RECORD]:
            broken = "a purge deleted a record that had not expired (R33, R42)" if row.live(0) else None
            yield Move("the store is purged", -1, 0, (purged, *world[1:]), broken)
        if not row.live(0):
            return
        if world[LAPSES] and row.state is not State.COMPLETED:
            later = self.records.after(world[RECORD], LEASE)
            if later != world[RECORD]:
                broken = None if self.records.live(later) else "a record expired when only a lease had passed (R42)"
                yield Move("a lease passes", -1, 0, _less(self._aged(world, later), LAPSES), broken)
        if world[EXPIRIES]:
            later = self.records.after(world[RECORD], LONG[row.state is State.COMPLETED])
            broken = "a record outlives its retention (R33, R42)" if self.records.live(later) else None
            aged = self._aged(world, later, old=True)
            yield Move("the record expires", -1, 0, _less((later, NO_EFFECT, *aged[OVERDUE:]), EXPIRIES), broken)

    def _aged(self, world: World, record: int, *, old: bool = False) -> World:
        aged = (self.locals.aged(number, old=old) for number in world[FIRST:])
        return (record, world[EFFECTS], 1, *world[OPERATOR:FIRST], *aged)

    def _operator(self, world: World) -> Iterator[Move]:
        """Let a person resolve an unsettled record, with what is true; a live lease may be overridden."""
        row = self.records.row(world[RECORD])
        if world[OPERATOR] == AWAY and row is not None and row.live(0) and row.state is not State.COMPLETED:
            yield self._person(world, "an operator takes the second claim", self._force, ASKED)
        if world[OPERATOR] == ASKED:
            if world[EFFECTS] != NO_EFFECT:
                yield self._person(world, "the operator says that it took effect", self._resolve, DONE)
            elif self._nothing_can_happen(world):
                yield self._person(world, "the operator says that nothing happened", self._free, DONE)

    def _person(self, world: World, what: str, step: int, then: int) -> Move:
        act = self.records.act(world[RECORD], self.people, step)
        acted = self._acted(world, self.people, step)
        return Move(what, -1, step, (*acted[:OPERATOR], then, *acted[OPERATOR + 1 :]), act.broken)

    # ------------------------------------------------------------------ what worlds are made of

    def _kind(self, who: int) -> Kind:
        return self.kinds[self.which[who]]

    def _with(self, world: World, who: int, local: int) -> World:
        at = FIRST + who
        return (*world[:at], local, *world[at + 1 :])

    def broken(self, world: World, before: World) -> str | None:
        """Judge a world by itself: a claim in flight has somebody who will settle it, and nothing is lost silently."""
        record = world[RECORD]
        row = self.records.row(record)
        if row is None:
            gone = self.records.row(before[RECORD])
            if gone is not None and gone.live(0) and world[EFFECTS] == STRICT_EFFECT:
                return "a claim was released after its handler had taken effect under at most once (R47)"
            return None
        if row.state is not State.IN_FLIGHT or not row.live(0):
            return None
        owner = self.records.owner(row.nonce)
        if 0 <= owner < self.people and self.locals.abandoned(world[FIRST + owner]):
            return "a record is in flight for a request that ended, and nobody will settle it (R40, R47, R48)"
        return None


def _less(world: World, which: int) -> World:
    return (*world[:which], world[which] - 1, *world[which + 1 :])
