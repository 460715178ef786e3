"""What a request, and the process that it runs in, may do next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._messages import Response
from twiceproof.core._outcome import Abandoned, Completed, DontKnow, NothingHappened
from twiceproof.core._record import Granted, State
from twiceproof.testing.explorer._invariants import (
    AGAIN,
    LEFT,
    NO_EFFECT,
    RELEASED,
    STRICT_EFFECT,
    broken_by_reply,
    broken_by_run,
)
from twiceproof.testing.explorer._locals import NOWHERE, Local, Locals
from twiceproof.testing.explorer._paths import Paths, Renew
from twiceproof.testing.explorer._people import Kind, Scene
from twiceproof.testing.explorer._records import ABSENT, Records

CRASH, LOSS, LAPSE, EXPIRY, NOTHING = range(5)
"""What a move uses up of the bounds."""

BY_HOOK: Final = Response(201, [], b"says the hook")


class Near(NamedTuple):
    """What one request's moves depend on, and all that they change.

    ``effects``: what took effect since the key was new. ``overdue``: nobody claimed or renewed the record for a
    whole lease.
    """

    record: int
    effects: int
    overdue: int
    local: int


class Move(NamedTuple):
    """One thing that may happen: what it is, what it leads to, and the promise that it breaks, if any."""

    what: str
    detail: int
    after: Near
    spends: int = NOTHING
    broken: str | None = None


class Moves:
    """The moves of the requests of one scene. Everything is remembered in here: a mutant needs a fresh one."""

    def __init__(self, scene: Scene, *, merge: bool = True) -> None:
        self.kinds: list[Kind] = []
        self.which: list[int] = []
        for kind in scene.kinds:
            if kind not in self.kinds:
                self.kinds.append(kind)
            self.which.append(self.kinds.index(kind))
        self.people = len(scene.kinds)
        self.paths = Paths(self.kinds, merge=merge)
        self.records = Records(self.kinds[0].call.new.id, self.people, self.paths)
        self.locals = Locals(self.paths, self.records.steps)
        self._counted = any(kind.strict for kind in self.kinds)
        self._outcomes = [[(self.paths.answer(end.outcome), end.effect) for end in kind.endings] for kind in self.kinds]
        self._abandoned = self.paths.answer(Abandoned())
        self._left, self._stayed = self.paths.answer(True), self.paths.answer(False)  # noqa: FBT003  # as they are sent
        self._knows, self._unsure = self.paths.answer(Completed(BY_HOOK)), self.paths.answer(DontKnow())
        self._nothing = self.paths.answer(NothingHappened())
        self._renew = self.locals.step_number(Renew(self.records.id))
        self._payloads = {kind.call.new.fingerprint: kind.amount for kind in self.kinds}
        self._known: dict[tuple[Near, int, bool], list[Move]] = {}

    def of(self, near: Near, who: int, *, still: bool) -> list[Move]:
        """Return everything that a request may do; ``still``: no handler can take effect any more."""
        key = near, who, still
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = [self._judged(near, move) for move in self._of(near, who, still=still)]
        return found

    def asks(self, local: int) -> bool:
        """Whether a request is at its hook, so that it matters who can still act."""
        return isinstance(self.locals.step(local), core.DoAsk)

    def _of(self, near: Near, who: int, *, still: bool) -> Iterator[Move]:
        local, step = self.locals[near.local], self.locals.step(near.local)
        match step:
            case None:
                pass
            case core.DoRun():
                yield from self._run(near, who)
            case core.DoAsk():
                yield from self._ask(near, who, still=still)
            case core.DoPause():
                yield self._told(near, "waits", who, self._stayed)
                yield self._told(near, "waits", who, self._left)
            case core.DoLater() | core.DoNote():
                raise AssertionError(step)  # a request never rests there
            case _:
                yield from self._call(near, who, self.locals.step_number(step))
        if not local.dead and (local.point != NOWHERE or local.jobs or local.watched):
            yield Move("dies", 0, near._replace(local=self.locals.crashed(near.local)), CRASH)
        yield from self._background(near, who, local)
        if local.watched or local.overtaken:
            yield self._renewal(near, who)
        for late in local.late:
            acted, _, broken = self._acted(near, who, late)
            yield Move("arrives", late, acted._replace(local=self.locals.arrived(near.local, late)), NOTHING, broken)

    # ------------------------------------------------------------------ the request itself

    def _call(self, near: Near, who: int, step: int) -> Iterator[Move]:
        """Let the store act or not, and the caller hear of it or not, now or never (R40, R47, R48)."""
        acted, answer, broken = self._acted(near, who, step)
        yield self._told(acted, "calls", who, answer, broken=broken)
        if acted != near:
            yield self._told(acted, "loses the reply", who, self.paths.unknown, LOSS, broken)
            gone = acted._replace(local=self.locals.cancelled(near.local))
            yield Move("is cancelled after it", 0, gone, LOSS, broken)
        yield self._told(near, "finds the store down", who, self.paths.down, LOSS)
        sent = near._replace(local=self.locals.sent(near.local, step))
        yield self._told(sent, "gives the reply up", who, self.paths.unknown, LOSS)
        yield Move("is cancelled before it", 0, sent._replace(local=self.locals.cancelled(sent.local)), LOSS)

    def _acted(self, near: Near, who: int, step: int) -> tuple[Near, int, str | None]:
        """Return what is near once the store has done its part, the answer, and what that broke."""
        act = self.records.act(near.record, who, step)
        granted = isinstance(self.paths.answers.values[act.answer], Granted)
        taken = granted or act.record != near.record
        broken = act.broken
        if broken is None and granted and near.effects == STRICT_EFFECT:
            claim = isinstance(self.records.steps.values[step], core.DoClaim)
            broken = AGAIN if claim and self.records.holder(near.record) != who else None
        return near._replace(record=act.record, overdue=0 if taken else near.overdue), act.answer, broken

    def _told(
        self, near: Near, what: str, who: int, answer: int, spends: int = NOTHING, broken: str | None = None
    ) -> Move:
        """Return the move that sends an answer into the steps; a reply that this brings is judged."""
        after, end = self.locals.told(near.local, answer)
        if isinstance(end, life.Reply) and broken is None:
            row = self.records.row(near.record)
            recorded = None if row is None or row.answer is None else self.records.as_told(row.answer, who)
            same = row is not None and self._payloads.get(row.subject.fingerprint) == self._kind(who).amount
            if not isinstance(self.locals.step(near.local), core.DoClaim):
                same = True  # a reply about what it saw before
            overdue = bool(near.overdue) and not (what == "waits" and answer == self._left)  # nobody hears that one
            broken = broken_by_reply(end, row, recorded, same=same, overdue=overdue)
        return Move(what, answer, near._replace(local=after), spends, broken)

    def _run(self, near: Near, who: int) -> Iterator[Move]:
        for answer, effect in self._outcomes[self.which[who]]:
            ran, broken = self._ran(near, who, effect=effect)
            yield self._told(ran, "runs", who, answer, broken=broken)
        ran, broken = self._ran(near, who, effect=True)  # to die before the effect is to die like anywhere else
        left, _ = self.locals.told(near.local, self._abandoned)
        yield Move("dies in its handler", 0, ran._replace(local=self.locals.crashed(left)), CRASH, broken)

    def _ran(self, near: Near, who: int, *, effect: bool) -> tuple[Near, str | None]:
        if not self._counted or self.locals[near.local].old:
            return near, None
        effects, broken = broken_by_run(near.effects, strict=self._kind(who).strict, effect=effect)
        return near._replace(effects=effects), broken

    def _ask(self, near: Near, who: int, *, still: bool) -> Iterator[Move]:
        """Let the hook speak; it tells the truth, and *nothing happened* only where nothing can any more (R28)."""
        yield self._told(near, "asks", who, self._unsure)
        if near.effects != NO_EFFECT:
            yield self._told(near, "asks", who, self._knows)
        elif still:
            yield self._told(near, "asks", who, self._nothing)
        yield Move("is cancelled after it", 0, near._replace(local=self.locals.cancelled(near.local)), LOSS)

    # ------------------------------------------------------------------ its process

    def _background(self, near: Near, who: int, local: Local) -> Iterator[Move]:
        for job in local.jobs:
            acted, answer, broken = self._acted(near, who, job.step)
            done = acted._replace(local=self.locals.job_done(near.local, job, answer))
            yield Move("in the background", job.step, done, NOTHING, broken)
            if acted != near:
                yield Move("in the background, unheard", job.step, acted, LOSS, broken)

    def _renewal(self, near: Near, who: int) -> Move:
        acted, answer, broken = self._acted(near, who, self._renew)
        fenced = bool(self.paths.answers.values[answer])
        after = acted._replace(local=self.locals.renewed(near.local, fenced=fenced))
        return Move("renews", answer, after if fenced else after._replace(overdue=0), NOTHING, broken)

    # ------------------------------------------------------------------ the same for all

    def _kind(self, who: int) -> Kind:
        return self.kinds[self.which[who]]

    def _judged(self, near: Near, move: Move) -> Move:
        """Look at both sides of a move once more, and drop what no later one depends on."""
        after = move.after
        row = self.records.row(after.record)
        if move.broken is None and near.record != after.record == ABSENT and after.effects == STRICT_EFFECT:
            return move._replace(broken=RELEASED)
        if after.overdue and (row is None or row.state is State.COMPLETED):
            return move._replace(after=after._replace(overdue=0))
        return move

    def broken(self, record: int, locals: tuple[int, ...]) -> str | None:
        """Judge a whole world: a claim in flight has somebody who will settle it (R40, R47, R48)."""
        owner = self.records.claimant(record)
        return LEFT if 0 <= owner < self.people and self.locals.abandoned(locals[owner]) else None
