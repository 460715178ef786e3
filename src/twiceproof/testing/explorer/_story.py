"""A move in plain words, and what the record is after it."""

from __future__ import annotations

from typing import Final, assert_never

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._outcome import Completed, DontKnow, NothingHappened
from twiceproof.core._record import Absent, Done, Fenced, Found, Granted, Held, State
from twiceproof.errors import StoreError
from twiceproof.stores._rows import Row
from twiceproof.testing.explorer._moves import Moves
from twiceproof.testing.explorer._paths import Asked, Force, Renew
from twiceproof.testing.explorer._people import OPERATOR
from twiceproof.testing.explorer._world import FIRST, Snapshot, Step, World


def told(world: World, before: Snapshot, step: Step, names: list[str]) -> str:
    """Return one line: who does what, what comes back, and the record then."""
    after = record_in_words(world.moves, world.moves.records.row(step.world[0]), names)
    return f"{_what(world.moves, before, step, names)}  [{after}]"


def _what(moves: Moves, before: Snapshot, taken: Step, names: list[str]) -> str:
    what, detail = taken.move.what, taken.move.detail
    if taken.who < 0:
        return what
    name, step = names[taken.who], moves.locals.step(before[FIRST + taken.who])
    answer = moves.paths.answers.values[detail]
    match what:
        case "calls":
            return f"{name} {_verb(step)}: {_answer(answer)}{_reply(moves, before[FIRST + taken.who], detail)}"
        case "runs":
            ending = next(end for end in moves.kinds[moves.which[taken.who]].endings if end.outcome == answer)
            return f"{name}'s handler {ending.says}"
        case "asks":
            return f"{name}'s hook {_verdict(answer)}"
        case "waits":
            return f"{name}'s client {'leaves' if answer is True else 'waits'}"
        case "renews":
            return f"{name}'s claim is renewed: {'fenced' if answer else 'done'}"
        case _:
            sent = moves.records.steps.values[detail] if what in _SENT_BEFORE else step
            return _WORDS.get(what, "{name} {what}").format(name=name, does=f"{name} {_verb(sent)}", what=what)


_SENT_BEFORE: Final = frozenset({"in the background", "in the background, unheard", "arrives"})
_WORDS: Final = {
    "loses the reply": "{does}, and the reply is lost",
    "is cancelled after it": "{does}, and is cancelled",
    "is cancelled before it": "{does}, and is cancelled while that is still on its way",
    "gives the reply up": "{does}, and hears nothing; that is still on its way",
    "finds the store down": "{does}, but finds the store down",
    "in the background": "in the background {does}",
    "in the background, unheard": "in the background {does}, and the reply is lost",
    "arrives": "what was on its way arrives: {does}",
}


def _verb(step: core.Step | Asked | None) -> str:
    match step:
        case None:
            return "has ended"
        case core.DoClaim():
            return "claims" if step.after is None else "claims, since its hook said that nothing happened"
        case core.DoClaimUnsettled() | Force():
            return "takes the second claim"
        case core.DoComplete():
            return "completes"
        case core.DoRelease():
            return "releases"
        case core.DoPark():
            return "parks" if not step.nonce.startswith(b"r") else "ends its second claim"
        case Renew():
            return "renews"
        case core.DoAsk() | core.DoRun() | core.DoPause() | core.DoLater() | core.DoNote():
            return type(step).__name__.removeprefix("Do").lower()
        case _:
            assert_never(step)


def _answer(answer: object) -> str:
    match answer:
        case Granted():
            return f"granted, token {answer.token.number}"
        case Held():
            return "held by another"
        case Found():
            return "found " + answer.record.state.replace("_", " ") + (", lapsed" if answer.record.lapsed else "")
        case Done() | Fenced() | Absent():
            return type(answer).__name__.lower()
        case StoreError():  # pragma: no cover  # a move of its own, which has words of its own
            return "the store is down"
        case _:  # pragma: no cover  # for answers to come: a trace must never fail to be told
            return repr(answer)


def _verdict(answer: object) -> str:
    match answer:
        case NothingHappened():
            return "says that nothing happened"
        case DontKnow():
            return "doesn't know"
        case Completed():
            return "says that it took effect"
        case _:  # pragma: no cover  # for answers to come: a trace must never fail to be told
            return repr(answer)


def _reply(moves: Moves, local: int, answer: int) -> str:
    _, end = moves.locals.told(local, answer)
    if not isinstance(end, life.Reply):
        return ""
    return (
        f"; its client is told {end.code}" if end.code else f"; its client is given a replay of {end.response.status}"
    )


def record_in_words(moves: Moves, row: Row | None, names: list[str]) -> str:
    """Return a record in a few words."""
    if row is None:
        return "no record"
    if not row.live(0):
        return "expired"
    owner = moves.records.owner(row.nonce)
    whose = "the operator's" if owner >= len(names) else "nobody's" if owner < 0 else f"{names[owner]}'s"
    state = "lapsed" if row.lapsed(0) else row.state.replace("_", " ")
    words = f"{state}, {whose}, token {row.number}"
    if row.state is not State.COMPLETED and row.reconciling(0):
        asking = moves.records.owner(row.reconcile_nonce)
        by = "the operator" if row.reconcile_nonce == OPERATOR or not 0 <= asking < len(names) else names[asking]
        words += f", second claim {by}'s"
    return words
