"""The checker of histories accepts what the rules could have given, and nothing else."""

from __future__ import annotations

import inspect
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support import faulty_keepings, faulty_rulings
from tests.support.histories import LONG, NotLinearizable, Operation, Undecided, applied, check, overlaps, shape
from tests.support.histories_recorder import Caller, call, read
from tests.support.row_stores import SharedRows

AGAIN = "at_least_once"


def claim(nonce: str, lease: float = LONG, guarantee: str = AGAIN, after: str | None = None) -> tuple[Any, ...]:
    return "claim", "f", guarantee, lease, nonce, after


def complete(nonce: str, answer: str = "answer", retention: float = LONG) -> tuple[Any, ...]:
    return "complete", nonce, answer, retention


def hook(nonce: str, lease: float = LONG, every: float = 0.0) -> tuple[Any, ...]:
    return "claim_unsettled", lease, nonce, every, False


def played(*calls: tuple[Any, ...]) -> list[Operation]:
    """Return the history of calls one after the other, each answered by the rules: the n-th from 10n to 10n+5."""
    row = None
    history = []
    for number, (verb, *arguments) in enumerate(calls):
        operation = Operation("p", "k", verb, tuple(arguments), None, 10.0 * number, 10.0 * number + 5)
        answer, row = applied(row, operation)
        history.append(replace(operation, answer=answer))
    return history


def amended(history: list[Operation], place: int, **changes: Any) -> list[Operation]:
    """Return the history with one operation changed."""
    place %= len(history)
    return [*history[:place], replace(history[place], **changes), *history[place + 1 :]]


def unknown(history: list[Operation], place: int, **changes: Any) -> list[Operation]:
    """Return the history with one operation whose outcome nobody knows."""
    return amended(history, place, answer=None, returned_at=None, **changes)


def answered(history: list[Operation], place: int, *answer: Any) -> list[Operation]:
    return amended(history, place, answer=answer)


def without(history: list[Operation], place: int) -> list[Operation]:
    return [*history[:place], *history[place + 1 :]]


GRANTED_B = ("granted", 1, "b", "b", 1, False, False)
TAKEN_OVER = played(claim("a", 0.0), claim("b"), complete("a"), ("get",))
LIFE = played(
    *(claim("a"), claim("b"), claim("a"), ("renew", "a", 0.0), claim("b"), ("renew", "a", LONG)),
    *(("park", "b", "exception"), hook("h"), claim("c", after="h"), complete("b"), ("get",), complete("c"), claim("d")),
    *(("release", "c"), ("forget", "c"), ("get",), claim("e"), ("release", "e"), claim("f"), complete("f", "x", 0.0)),
    *(("get",), claim("g"), ("park", "g", "exception"), hook("i", 0.0), complete("i"), ("get",)),
)


def test_a_life_in_order_is_accepted_and_no_other_answer_is():
    """R21, R25, R27, R28, R30: each answer of a long history is the only one."""
    check(LIFE)
    assert {one.answer[0] for one in LIFE} == {"granted", "held", "found", "record", "none", "done", "fenced"}
    for place in range(len(LIFE)):
        for other in {one.answer for one in LIFE} - {LIFE[place].answer}:
            with pytest.raises(NotLinearizable):
                check(answered(LIFE, place, *other))


HELD, SETTLED = played(claim("a"), ("get",))[1], played(claim("a"), complete("a"), ("get",))[2]
NOBODY = played(("get",))[0]
GOOD = {
    "two at once, in the order of their call": amended(played(claim("a"), claim("b")), 0, returned_at=99.0),
    "two at once, in the other order": amended(played(claim("b"), claim("a")), 0, called_at=11.0, returned_at=12.0),
    "a read during a write may see what was before": [
        *played(claim("a")),
        replace(played(claim("a"), complete("a"))[1], returned_at=99.0),
        replace(HELD, called_at=30.0, returned_at=31.0),
    ],
    "a read during a write may see what comes": [
        *played(claim("a")),
        replace(played(claim("a"), complete("a"))[1], returned_at=99.0),
        replace(SETTLED, called_at=30.0, returned_at=31.0),
    ],
    "an unknown claim that never took effect": [
        *unknown(played(claim("a")), 0),
        replace(NOBODY, called_at=50.0, returned_at=51.0),
    ],
    "an unknown claim that was seen": unknown(played(claim("a"), ("get",)), 0),
    "an unknown claim that was seen late": [
        *unknown(played(claim("a")), 0),
        *(replace(NOBODY, called_at=20.0, returned_at=21.0), replace(HELD, called_at=30.0, returned_at=31.0)),
    ],
    "an unknown completion that was seen": unknown(played(claim("a"), claim("b"), complete("a"), claim("c")), 2),
    "an unknown completion that was never seen": [
        *unknown(played(claim("a"), complete("a")), 1),
        replace(HELD, called_at=50.0, returned_at=51.0),
    ],
    "an unknown release that let the next one in": unknown(played(claim("a"), ("release", "a"), claim("b")), 1),
    "an unknown release that didn't": [
        *unknown(played(claim("a"), ("release", "a")), 1),
        replace(played(claim("a"), claim("b"))[1], called_at=30.0, returned_at=31.0),
    ],
    "all is unknown": [replace(one, answer=None, returned_at=None) for one in LIFE],
    "a claim that was repeated after its reply was lost": unknown(played(claim("a"), claim("a"), complete("a")), 0),
    "a repeated claim that could have changed nothing, but ended a second claim": [
        *played(claim("a"), ("claim_unsettled", LONG, "h", 0.0, True)),
        *amended(played(claim("a"), claim("a")), 1, called_at=6.0, returned_at=40.0)[1:],
        *amended(played(claim("a"), ("release", "h")), 1, called_at=30.0, returned_at=31.0)[1:],
    ],
    "two keys don't know each other": [*played(claim("a")), *(replace(one, key="l") for one in played(claim("b")))],
}
"""Histories that the rules could have given."""


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_a_history_that_some_order_explains_is_accepted(history):
    """R22, R48: what overlaps happened in either order, what is unknown at any time after its call or never."""
    check(history)


BAD = {
    "two grants of one key at once": answered(
        amended(played(claim("a"), claim("b")), 0, returned_at=99.0), 1, *GRANTED_B
    ),
    "a grant after it was completed": answered(played(claim("a"), complete("a"), claim("b")), 2, *GRANTED_B),
    "a replay of another answer": answered(
        played(claim("a"), complete("a", "one"), ("get",)),
        2,
        *played(claim("a"), complete("a", "two"), ("get",))[2].answer,
    ),
    "a completion under an old nonce": answered(
        answered(TAKEN_OVER, 2, "done"), 3, *played(claim("a", 0.0), claim("b"), complete("b"), ("get",))[3].answer
    ),
    "a completion under an old nonce that nobody looks at": answered(TAKEN_OVER, 2, "done"),
    "a lost update": answered(played(claim("a"), complete("a"), ("get",)), 2, *HELD.answer),
    "a parking that was lost": answered(played(claim("a"), ("park", "a", "exception"), ("get",)), 2, *HELD.answer),
    "a fenced answer for the live holder": answered(played(claim("a"), ("renew", "a", LONG)), 1, "fenced"),
    "a fenced completion by the live holder": answered(played(claim("a"), complete("a"), ("get",)), 1, "fenced"),
    "a record that vanishes": answered(played(claim("a"), ("get",), ("get",)), 2, "none"),
    "a record that vanishes and is granted again": answered(played(claim("a"), claim("b")), 1, *GRANTED_B),
    "a record that comes back": answered(played(claim("a"), ("release", "a"), ("get",)), 2, *HELD.answer),
    "a purge that took a live record": [
        *played(claim("a"), complete("a")),
        Operation("p", "*", "purge", (10,), ("purged", 0, 0), 21.0, 22.0),
        replace(NOBODY, called_at=30.0, returned_at=31.0),
    ],
    "a purge that counts a live record": [
        *played(claim("a"), complete("a")),
        Operation("p", "*", "purge", (10,), ("purged", 1, 0), 21.0, 22.0),
    ],
    "a purge that forgot an unsettled record": [
        *played(claim("a"), complete("a", "x", 0.0)),
        Operation("p", "*", "purge", (10,), ("purged", 1, 1), 21.0, 22.0),
    ],
    "a read of what was before, after the write": [
        *played(claim("a"), complete("a")),
        replace(HELD, called_at=26.0, returned_at=27.0),
    ],
    "two reads during a write, the new one first": [
        *amended(played(claim("a"), complete("a"), ("get",)), 1, returned_at=99.0),
        replace(HELD, called_at=40.0, returned_at=41.0),
    ],
    "an effect before its call": unknown(played(claim("a"), ("get",)), 0, called_at=16.0),
    "an unknown claim that took effect twice": [
        *unknown(played(claim("a"), ("get",), ("release", "a")), 0),
        replace(HELD, called_at=40.0, returned_at=41.0),
    ],
    "a grant under the same number and another incarnation": answered(
        played(claim("a", 0.0), claim("b")), 1, "granted", 2, "b", "b", 2, True, False
    ),
    "a second claim of two hooks": answered(
        played(claim("a", 0.0, "at_most_once"), hook("h"), hook("i")), 2, "granted", 1, "a", "a", 1, False, False
    ),
    "a hook that is asked too soon": answered(
        played(claim("a", 0.0, "at_most_once"), hook("h", 0.0), hook("i", every=LONG)),
        *(2, "granted", 1, "a", "a", 1, False, False),
    ),
}
"""Histories that no order explains."""


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_a_history_that_no_order_explains_is_refused(history):
    """R21, R22, R25, R28, R30, R33, R42."""
    with pytest.raises(NotLinearizable):
        check(history)


def test_a_store_may_number_its_tokens_as_it_likes_as_long_as_they_grow():
    """R30: one number each, a greater one for a later attempt; whatever else is wrong is still seen."""

    def numbered(history: list[Operation], *numbers: int) -> list[Operation]:
        given = iter(numbers)
        return [
            replace(one, answer=(one.answer[0], next(given), *one.answer[2:])) if one.answer[0] == "granted" else one
            for one in history
        ]

    taken_over = played(claim("a", 0.0), claim("b"), claim("b"), complete("a"))
    check(numbered(taken_over, 70, 90, 90), own_numbers=True)
    for numbers, told in (((90, 70, 70), "don't grow"), ((70, 70, 70), "Two tokens")):
        with pytest.raises(NotLinearizable, match=told):
            check(numbered(taken_over, *numbers), own_numbers=True)
    with pytest.raises(NotLinearizable):
        check(answered(numbered(taken_over, 70, 90, 90), 3, "done"), own_numbers=True)


def test_what_it_can_not_explain_is_told():
    """The message names the call, the answer, and what the rules say."""
    with pytest.raises(NotLinearizable) as caught:
        check(answered(played(claim("a"), complete("a"), ("renew", "b", LONG)), 2, "done"))
    assert "2 of 3 operations can be explained" in str(caught.value)
    assert "p: renew('b', 100000.0) -> ('done',)" in str(caught.value)
    assert "the rules answer ('fenced',)" in str(caught.value)


def test_a_search_without_end_is_given_up_aloud():
    """Undecided is neither right nor wrong: of many unknown claims and releases, any may have taken effect."""
    names = "abcdefghijklmnop"
    calls = played(*map(claim, names), *(("release", name) for name in names))
    nobody_knows = [replace(one, called_at=0.0, answer=None, returned_at=None) for one in calls]
    seen = replace(NOBODY, called_at=50.0, returned_at=51.0)
    check([*nobody_knows, seen], budget=500)
    with pytest.raises(Undecided, match="after 500 situations"):
        check([*nobody_knows, replace(seen, answer=("record", "of", "nobody"))], budget=500)


def test_overlapping_operations_are_counted():
    """A history without any shows nothing about races."""
    assert overlaps(LIFE) == 0
    assert overlaps(amended(LIFE, 0, returned_at=31.0)) == 3
    assert overlaps(unknown(LIFE, 0)) == len(LIFE) - 1


def test_what_a_process_wrote_is_read_as_it_was():
    """R48: a call without a return is unknown, one that the store refused never happened, half a line is none."""
    lines = [
        '{"call": 0, "key": "k", "verb": "get", "arguments": [], "at": 1}',
        '{"return": 0, "answer": ["none"], "at": 2}',
        '{"call": 1, "key": "k", "verb": "release", "arguments": ["a"], "at": 3}',
        '{"none": 1}',
        '{"call": 2, "key": "k", "verb": "release", "arguments": ["b"], "at": 4}',
    ]
    assert read("p", "\n".join([*lines, '{"call": 3, "ke'])) == [
        Operation("p", "k", "get", (), ("none",), 1, 2),
        Operation("p", "k", "release", ("b",), None, 4, None),
    ]


# ---- stores that are wrong in one way --------------------------------------------------------------------------------


def interleaved(kind: type[SharedRows], count: int) -> list[Operation]:
    """Let three callers take turns on two objects over the same rows."""
    ticks = itertools.count(1)
    make = kind.sharing()
    stores = [make(lambda: next(ticks) / 1000) for _ in range(2)]
    callers = [Caller(name, ["a", "b"], seed=1) for name in ("p0", "p1", "p2")]
    turns = random.Random(1)
    history = []
    for _ in range(count):
        caller, store = turns.choice(callers), turns.choice(stores)
        key, verb, arguments = caller.choose()
        called_at = next(ticks)
        answer = shape(call(store, key, verb, arguments))
        history.append(Operation(caller.name, key, verb, arguments, answer, called_at, next(ticks)))
        caller.learn(answer)
    return history


UNSEEN = {
    "BeginsAgainAtABadCursor": "nobody scans",
    "EmptyButThereIsMore": "nobody scans",
    "PagesOfNothing": "nobody scans",
    "SkipsAtAPagesEnd": "nobody scans",
    "FoldsCase": "ids and nonces are in lower case",
    "ForgetsWhenClosed": "nobody closes",
    "OpensEmpty": "nobody opens again",
    "ForgetsWithoutNotice": "no unsettled record expires",
    "NeverExpires": "what lives a thousand times as long as not at all expires at once, too",
    "HandsOutItsOwnRecord": "nobody changes a record",
    "LosesThePath": "answers are compared without it",
    "PurgesTooMuch": "few records expire",
    "SaysTooLittle": "nobody asks for capabilities",
    "LostRaceIsAnError": "one thread runs no race",
    "NoLock": "one thread runs no race",
}
"""Faults that are none of a history's, and why."""

FAULTY = [
    kind
    for module in (faulty_rulings, faulty_keepings)
    for name, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, SharedRows) and kind is not SharedRows and name not in UNSEEN
]


def test_a_right_store_gives_right_histories():
    """The recorder's callers meet every answer, and the checker has nothing to say."""
    history = interleaved(SharedRows, 3000)
    check(history)
    expected = {LIFE[place].answer[0] for place in range(len(LIFE))} | {"purged", "absent"}
    assert {one.answer[0] for one in history} == expected


@pytest.mark.parametrize("kind", FAULTY, ids=lambda kind: kind.__name__)
def test_a_store_with_a_fault_is_found_out(kind):
    """The callers come across each fault that a history can show."""
    with pytest.raises(NotLinearizable):
        check(interleaved(kind, 3000))
