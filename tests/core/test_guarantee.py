"""What happens when something breaks: each outcome settles as promised (CONTRACT 5, R35-R40, R50).

The expectation is written here a second time, in other words than the code's.
"""

import itertools
from typing import Any

import pytest

from twiceproof import Guarantee, Policy, Response
from twiceproof.core._guarantee import GATES, SETTLING, Ending, Settling
from twiceproof.core._lifecycle import CAUSES, Complete, Leave, Park, Release, Settlement, settle
from twiceproof.core._outcome import Abandoned, Answered, Cancelled, CutShort, NothingHappened, Raised
from twiceproof.core._problems import PROBLEMS, REPLAYED, problem

ONCE, TWICE = "at_most_once", "at_least_once"
GATE_LIST = {401, 403, 407, 421, 425, 426, 428, 429, 431}
RECORDS: dict[str, Any] = {
    "default": "default",
    "2xx": "2xx",
    "all": "all",
    "wants": lambda response: True,
    "refuses": lambda response: False,
    "fails": lambda response: 1 / 0,
}
KEPT, FREED, UNKNOWN, LEFT = "kept", "freed", "unknown", "left"


def word(settlement: Settlement) -> str:
    match settlement:
        case Complete():
            return KEPT
        case Release():
            return FREED
        case Park():
            return UNKNOWN
        case Leave():
            return LEFT


def promised(guarantee: str, status: int, record: str, released: bool, gates: set[int]) -> str:
    """What becomes of an answer of the handler."""
    if status >= 400 and released:
        return FREED  # the handler itself says that nothing happened
    if status in gates:
        return FREED
    if status < 400:
        return KEPT
    wishes = {"default": None, "2xx": FREED, "all": KEPT, "wants": KEPT, "refuses": FREED, "fails": KEPT}[record]
    failure = status >= 500 or status in (408, 499)
    if not failure:
        return wishes or KEPT  # a refusal: as wished, else kept
    if guarantee == TWICE:
        return wishes or FREED  # a failure that may be repeated
    if status in (408, 499):
        return wishes or KEPT  # a 4xx, which the option is about
    return KEPT  # a failure that may have acted is final


@pytest.mark.parametrize("guarantee", [ONCE, TWICE])
@pytest.mark.parametrize("record", RECORDS)
def test_every_answer_settles_as_promised(guarantee, record):
    """All statuses, both guarantees, every record option, with and without `release()`, two lists of gates."""
    for gates in (GATE_LIST, {402, 408, 503}):
        policy = Policy(guarantee=guarantee, record=RECORDS[record], released_statuses=frozenset(gates))
        for status, released in itertools.product(range(200, 600), (False, True)):
            seen = word(settle(Answered(Response(status), released), policy))
            assert seen == promised(guarantee, status, record, released, gates), (status, released)


def test_a_record_rule_is_shown_the_answer():
    """R36: it decides by what the client gets."""
    answer = Response(404, [(b"etag", b"x")], b"gone")
    shown = []

    def rule(response):
        shown.append(response)
        return False

    assert word(settle(Answered(answer), Policy(record=rule))) == FREED
    assert shown == [answer]


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize(
    ("outcome", "once", "twice"),
    [
        (Raised(), UNKNOWN, FREED),
        (Cancelled(), UNKNOWN, FREED),
        (CutShort(), UNKNOWN, FREED),
        (NothingHappened(), FREED, FREED),
        (Abandoned(), LEFT, LEFT),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_every_ending_without_an_answer_settles_as_promised(record, outcome, once, twice):
    """Exceptions, cancellation, answers cut short, and what nobody can tell: no option changes those."""
    options: dict[str, Any] = {"record": RECORDS[record]}
    assert word(settle(outcome, Policy(guarantee=ONCE, **options))) == once
    assert word(settle(outcome, Policy(guarantee=TWICE, **options))) == twice


@pytest.mark.parametrize(
    ("outcome", "cause"), [(Raised(), "exception"), (Cancelled(), "cancelled"), (CutShort(), "cut-short")]
)
def test_a_parked_record_says_why(outcome, cause):
    """The cause that `outcome-unknown` tells."""
    assert settle(outcome, Policy()) == Park(cause)


@pytest.mark.parametrize("guarantee", [ONCE, TWICE])
@pytest.mark.parametrize("code", sorted(PROBLEMS))
def test_an_inner_layers_own_answer_is_never_stored(guarantee, code):
    """R36: whatever its status."""
    assert word(settle(Answered(problem(code)), Policy(guarantee=guarantee, record="all"))) == FREED


@pytest.mark.parametrize("guarantee", [ONCE, TWICE])
def test_a_marked_answer_of_a_handler_is_stored(guarantee):
    """R35, R36: its effect is real, whoever marked it; the marker itself is not kept."""
    settled = settle(Answered(Response(201, [REPLAYED], b"{}")), Policy(guarantee=guarantee))
    assert settled == Complete(Response(201, [], b"{}"))


def test_what_is_completed_is_the_part_that_is_stored():
    """R46: the filtered answer."""
    answer = Answered(Response(200, [(b"date", b"now"), (b"etag", b"x")], b"body"))
    assert settle(answer, Policy()) == Complete(Response(200, [(b"etag", b"x")], b"body"))


def test_the_gates_are_these():
    """R37."""
    assert Policy().released_statuses == GATES == GATE_LIST


def test_the_table_is_whole():
    """Each guarantee of this release has a row with every ending; each that parks has a cause."""
    assert set(SETTLING) == {Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE}
    for row in SETTLING.values():
        assert set(row) == set(Ending)
    parking = {end for row in SETTLING.values() for end, settling in row.items() if settling is Settling.PARK}
    assert set(CAUSES) == parking
