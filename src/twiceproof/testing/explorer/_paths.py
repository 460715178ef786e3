"""How a request goes on: the shipped steps, replayed from the answers that they were sent."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._record import Found, Granted, Held, Record, Token
from twiceproof.errors import StoreError, StoreOutcomeUnknown, StoreUnavailable
from twiceproof.testing.explorer._frozen import Numbered, freeze, resting_place
from twiceproof.testing.explorer._people import KEEP, Kind

UNKNOWN: Final = StoreOutcomeUnknown()
DOWN: Final = StoreUnavailable()

End: TypeAlias = life.Reply | life.Bypass | None


@dataclass(slots=True)
class Renew:
    """Renew the claim of a request."""

    id: bytes


@dataclass(slots=True)
class Force:
    """An operator takes the second claim, whatever stands in the way."""

    id: bytes


Asked: TypeAlias = core.StoreStep | Renew | Force


@dataclass(slots=True, eq=False)
class Point:
    """Where a request rests: the step that it wants done, and one way of answers that leads there."""

    kind: int
    history: tuple[int, ...]
    step: core.Step
    finishing: bool
    """Whether its handler ran already."""


@dataclass(slots=True, eq=False)
class Turn:
    """What an answer led to: the next point, or its end; and what was left to the background on the way."""

    point: int | None
    end: End
    jobs: tuple[core.DoLater, ...]


class Paths:
    """Every point that the requests of a scene can rest at, found as the search needs them."""

    def __init__(self, kinds: list[Kind], *, merge: bool = True) -> None:
        self._kinds = kinds
        self._merge = merge
        self._points: Numbered[Point] = Numbered()
        self._turns: dict[tuple[int, int], Turn] = {}
        self.answers: Numbered[Any] = Numbered()
        self.unknown = self.answer(UNKNOWN)
        self.down = self.answer(DOWN)

    def answer(self, answer: object) -> int:
        """Return the number of an answer."""
        return self.answers.of(answer, (type(answer), freeze(answer)))

    def point(self, number: int) -> Point:
        """Return a point by its number."""
        return self._points.values[number]

    def start(self, kind: int) -> int:
        """Return the point at which a request of this kind begins."""
        turn = self._replay(kind, (), finishing=False)
        assert turn.point is not None
        return turn.point

    def turn(self, number: int, told: int) -> Turn:
        """Return what this answer leads to at this point."""
        found = self._turns.get((number, told))
        if found is None:
            answer = self.answer(_plain(self.answers.values[told])) if self._merge else told
            point = self._points.values[number]
            finishing = point.finishing or isinstance(point.step, core.DoRun)
            found = self._replay(point.kind, (*point.history, answer), finishing=finishing)
            self._turns[number, told] = found
        return found

    def _replay(self, kind: int, history: tuple[int, ...], *, finishing: bool) -> Turn:
        steps = core.steps(self._kinds[kind].call)
        jobs: list[core.DoLater] = []
        waiting = list(reversed(history))
        waited = 0.0
        try:
            step = steps.send(None)
            while True:
                if isinstance(step, core.DoNote | core.DoLater):
                    if isinstance(step, core.DoLater) and not waiting:
                        jobs.append(step)
                    step = steps.send(None)
                elif waiting:
                    back = self.answers.values[waiting.pop()]
                    if isinstance(step, core.DoPause):
                        waited += step.seconds
                    elif isinstance(back, Held | Found):
                        back = type(back)(_later(back.record, waited))
                    step = steps.throw(type(back)()) if isinstance(back, StoreError) else steps.send(back)
                else:
                    break
        except StopIteration as stop:
            return Turn(None, stop.value, tuple(jobs))
        key: Hashable = history
        if self._merge:
            key = (freeze(step) if isinstance(step, core.StoreStep) else type(step), resting_place(steps))
        point = Point(kind, history, step, finishing)
        return Turn(self._points.of(point, (kind, finishing, waited, key)), None, tuple(jobs))


def _later(record: Record, waited: float) -> Record:
    """Return a record as a store tells of it to a request that has waited so long for it (R23).

    All moments move together: a wait is short against a lease, so that none of them runs out in it.
    """
    if not waited:
        return record
    return replace(record, now=waited, granted_at=waited, lease_until=record.lease_until + waited)


def _plain(answer: Any) -> Any:
    """Return an answer without what steps only pass on: a search with and one without it come to the same."""
    match answer:
        case Granted():
            return Granted(Token(1, answer.token.nonce), b"")
        case Held() | Found():
            record = answer.record
            plain = replace(record, token=Token(1, record.token.nonce), expires_at=KEEP)
            if not record.reconciling:
                plain = replace(plain, reconcile_nonce=None, reconcile_until=None, reconcile_asked_at=None)
            return type(answer)(plain)
        case _:
            return answer
