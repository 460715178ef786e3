"""Histories of store verbs, and the question whether one order of them explains every answer.

A history is linearizable when each operation can be given one moment between its call and its return such that the
answers are those of the rules, one after the other. The rules are the shipped ones (`twiceproof.stores._row_verbs`). An
operation whose outcome is unknown has no return: it may take effect at any time after its call, or never. Each record
is looked at alone, which is enough: linearizability of the parts is that of the whole.

What time does is seen without knowing the store's clock, since every duration in a history is either 0, over at once,
or `LONG`, longer than any run; so the clock of the rules can stand still. That is sound while the store's clock never
runs backwards. Seen: who is granted what, fencing, replays, parking, reconciling, take-over after a lapse, records that
expire at once. Not seen: moments inside of answers, how long a lease really is, and what `Store.scan` returns. A
`Store.purge` is held to two things: no live record goes, and it counts no more than could expire.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from twiceproof.core._record import Absent, Done, Fenced, Found, Granted, Guarantee, Held, NewRecord, Record
from twiceproof.stores import Purged, _row_verbs
from twiceproof.stores._rows import Row

LONG: Final = 100_000.0
BUDGET: Final = 200_000
_NOW: Final = 0.0

Shape = Any
"""An answer or arguments as JSON knows them: numbers, text, None, and tuples of such."""


_LOOKS: Final = frozenset({"held", "found", "absent", "fenced", "record", "none"})
"""Answers of operations that changed nothing. `Done` and `Granted` are not: where one repeats another, it may."""


class NotLinearizable(AssertionError):
    """No order explains the answers."""


class Undecided(AssertionError):
    """The search was given up, so nothing is known: a shorter history, or a greater budget, is needed."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one verb; ``returned_at`` is None where the outcome is unknown. Moments are of one clock."""

    process: str
    key: str
    verb: str
    arguments: tuple[Shape, ...]
    answer: Shape
    called_at: float
    returned_at: float | None

    def __str__(self) -> str:
        end = "…" if self.returned_at is None else self.returned_at
        return f"{self.called_at}–{end} {self.process}: {self.verb}{self.arguments} -> {self.answer}"


# ---- answers as values -----------------------------------------------------------------------------------------------


def shape(answer: object) -> Shape:
    """Return what of an answer is compared: everything but moments."""
    match answer:
        case Granted(token, incarnation, attempts, taken_over, forgot):
            return ("granted", token.number, token.nonce.decode(), incarnation.decode(), attempts, taken_over, forgot)
        case Held(record):
            return ("held", *_record(record))
        case Found(record):
            return ("found", *_record(record))
        case Record():
            return ("record", *_record(answer))
        case Purged(records, unsettled):
            return ("purged", records, unsettled)
        case Done() | Fenced() | Absent():
            return (type(answer).__name__.lower(),)
        case None:
            return ("none",)
        case _:
            raise TypeError(answer)


def _record(record: Record) -> tuple[Shape, ...]:
    return (
        str(record.state),
        record.token.number,
        record.token.nonce.decode(),
        record.incarnation.decode(),
        record.attempts,
        record.fingerprint.decode(),
        str(record.guarantee),
        record.cause,
        record.lapsed,
        record.reconciling,
        None if record.reconcile_nonce is None else record.reconcile_nonce.decode(),
        None if record.answer is None else record.answer.decode(),
        record.completed_at is not None,
    )


def new_record(key: str, fingerprint: str, guarantee: str) -> NewRecord:
    """Return the record that every process means by ``key``."""
    return NewRecord(
        id=identity(key),
        namespace="tests",
        principal=b"p",
        operation="POST /",
        path="/",
        key=key.encode(),
        fingerprint=fingerprint.encode(),
        guarantee=Guarantee(guarantee),
        keep=LONG,
    )


def identity(key: str) -> bytes:
    """Return the id of ``key``."""
    return key.encode().rjust(32, b".")


# ---- the rules -------------------------------------------------------------------------------------------------------


def applied(row: Row | None, operation: Operation) -> tuple[Shape, Row | None]:
    """Return what the rules answer, and the row that they leave; one that has expired is none."""
    answer, after = _ruled(row, operation.key, operation.verb, operation.arguments)
    return shape(answer), after if after is not None and after.live(_NOW) else None


def _ruled(row: Row | None, key: str, verb: str, arguments: Sequence[Shape]) -> tuple[object, Row | None]:
    match verb, arguments:
        case "claim", (fingerprint, guarantee, lease, nonce, after):
            new = new_record(key, fingerprint, guarantee)
            return _row_verbs.claim(row, new, lease, nonce.encode(), after and after.encode(), _NOW)
        case "claim_unsettled", (lease, nonce, every, force):
            return _row_verbs.claim_unsettled(row, identity(key), lease, nonce.encode(), every, _NOW, force=force)
        case "renew", (nonce, lease):
            return _row_verbs.renew(row, nonce.encode(), lease, _NOW)
        case "complete", (nonce, answer, retention):
            return _row_verbs.complete(row, nonce.encode(), answer.encode(), retention, _NOW)
        case "release", (nonce,):
            return _row_verbs.release(row, nonce.encode(), _NOW)
        case "park", (nonce, cause):
            return _row_verbs.park(row, nonce.encode(), cause, _NOW)
        case "forget", (nonce,):
            return _row_verbs.forget(row, nonce.encode(), _NOW)
        case "get", ():
            return (None if row is None else row.record(identity(key), _NOW)), row
        case _:
            raise ValueError(f"{verb}{arguments}")


# ---- the search ------------------------------------------------------------------------------------------------------


def check(history: Iterable[Operation], budget: int = BUDGET, *, own_numbers: bool = False) -> None:
    """Raise `NotLinearizable` where no order explains the history, `Undecided` where that takes too long to find out.

    ``budget`` bounds how many situations are looked at for each key. ``own_numbers``: the store doesn't number tokens
    from 1 on; then a token has one number, and a later attempt a greater one.
    """
    keys: dict[str, list[Operation]] = {}
    operations = list(history)
    if own_numbers:
        _check_numbers(operations)
        operations = [replace(one, answer=_unnumbered(one.answer)) for one in operations]
    for operation in operations:
        if operation.verb != "purge":
            keys.setdefault(operation.key, []).append(operation)
    for of_key in keys.values():
        _Search(of_key, budget, _unnumbered if own_numbers else lambda answer: answer).run()
    _check_purges(operations)


_NUMBER: Final = {"granted": 1, "held": 2, "found": 2, "record": 2}
"""Where in an answer the token's number stands; its nonce, incarnation and attempts follow."""


def _unnumbered(answer: Shape) -> Shape:
    at = _NUMBER.get(answer[0]) if answer else None
    return answer if at is None else (*answer[:at], None, *answer[at + 1 :])


def _check_numbers(operations: Sequence[Operation]) -> None:
    """Hold each number to one token, and a later attempt to a greater one; a nonce may come again after a release."""
    tokens: dict[tuple[str, str], dict[int, set[int]]] = {}
    owners: dict[tuple[str, int], tuple[str, str, int]] = {}
    for one in operations:
        at = _NUMBER.get(one.answer[0]) if one.answer else None
        if at is not None:
            number, nonce, incarnation, attempts = one.answer[at : at + 4]
            tokens.setdefault((one.key, incarnation), {}).setdefault(attempts, set()).add(number)
            owner = owners.setdefault((one.key, number), (nonce, incarnation, attempts))
            if owner != (nonce, incarnation, attempts):
                raise NotLinearizable(f"Two tokens of {one.key} have the number {number}: {owner} and {nonce}")
    for (key, incarnation), numbers in tokens.items():
        for earlier, later in itertools.pairwise(sorted(numbers)):
            if max(numbers[later]) <= min(numbers[earlier]):
                raise NotLinearizable(f"The tokens of {key}, begun as {incarnation}, don't grow: {numbers}")


def _check_purges(operations: Sequence[Operation]) -> None:
    """Hold purges to what could expire; what they took of live records shows in the answers that follow."""
    purged = [one.answer for one in operations if one.verb == "purge" and one.answer is not None]
    could = sum(one.verb == "complete" and one.arguments[2] == 0 and one.answer != ("fenced",) for one in operations)
    counted = sum(records for _, records, _ in purged)
    if counted > could or any(unsettled for _, _, unsettled in purged):
        raise NotLinearizable(
            f"{counted} records were purged, {could} could expire, and none of them unsettled: {purged}"
        )


class _Search:
    """Wing and Gong's search over one key, with Lowe's memory of situations that led nowhere.

    A situation is the set of operations that have had their moment, as the bits of a number, and the row they left.
    Two shortcuts lose nothing. What was answered as only a look is (`_LOOKS`) has its moment as soon as that is the
    right answer: wherever else it could have it, it changes nothing there. What is unknown and changes no row waits.
    """

    def __init__(self, operations: Sequence[Operation], budget: int, seen: Callable[[Shape], Shape]) -> None:
        self.seen = seen
        self.known = sorted((one for one in operations if one.returned_at is not None), key=lambda one: one.called_at)
        self.unknown = [one for one in operations if one.returned_at is None]
        self.budget = budget
        self.all = (1 << len(self.known)) - 1
        self.best: tuple[int, int, Row | None] = (-1, 0, None)

    def run(self) -> None:
        stack: list[tuple[int, int, Row | None]] = [(0, 0, None)]
        met: set[tuple[int, int, Row | None]] = set()
        while stack:
            situation = stack.pop()
            done, _, row = situation
            if done == self.all:
                return
            if situation in met:
                continue
            if len(met) == self.budget:
                raise Undecided(f"{len(self.known)} operations on one key: not decided after {self.budget} situations.")
            met.add(situation)
            self.best = max(self.best, (done.bit_count(), done, row), key=lambda best: best[0])
            stack += reversed(self.following(*situation))
        raise NotLinearizable(self.story())

    def following(self, done: int, used: int, row: Row | None) -> list[tuple[int, int, Row | None]]:
        """Return the situations that may come next, the likeliest first."""
        ready, until = self.ready(done)
        found = []
        for place in ready:
            answer, after = applied(row, self.known[place])
            answer = self.seen(answer)
            if answer == self.known[place].answer:
                if answer[0] in _LOOKS:
                    return [(done | 1 << place, used, row)]
                found.append((done | 1 << place, used, after))
        for place, operation in enumerate(self.unknown):
            if not used >> place & 1 and operation.called_at <= until:
                _, after = applied(row, operation)
                if after != row:
                    found.append((done, used | 1 << place, after))
        return found

    def ready(self, done: int) -> tuple[list[int], float]:
        """Return those that may come next, the first to return first, and by when all of these were called."""
        until = float("inf")
        ready: list[tuple[float, int]] = []
        first = (~done & (done + 1)).bit_length() - 1
        for place in range(first, len(self.known)):
            operation = self.known[place]
            if operation.called_at > until:
                break
            if not done >> place & 1:
                assert operation.returned_at is not None
                until = min(until, operation.returned_at)
                ready.append((operation.returned_at, place))
        return [place for _, place in sorted(ready)], until

    def story(self) -> str:
        """Tell how far the search came, and what it can't explain there."""
        count, done, row = self.best
        ready, until = self.ready(done)
        lines = [f"{count} of {len(self.known)} operations can be explained, but then none of these, on {row}:"]
        for one in (self.known[place] for place in ready):
            lines += [f"  {one}", f"    the rules answer {applied(row, one)[0]}"]
        late = [one for one in self.unknown if one.called_at <= until]
        return "\n".join(
            [*lines, "unknown by then:" if late else "nothing unknown by then", *(f"  {one}" for one in late)]
        )


def overlaps(history: Iterable[Operation]) -> int:
    """Return how many operations were called while another one on their key was under way."""
    ends: dict[str, float] = {}
    count = 0
    for one in sorted(history, key=lambda one: one.called_at):
        count += one.called_at < ends.get(one.key, float("-inf"))
        end = float("inf") if one.returned_at is None else one.returned_at
        ends[one.key] = max(ends.get(one.key, end), end)
    return count
