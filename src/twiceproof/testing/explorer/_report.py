"""What a run prints: lines for people, or one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Final

from twiceproof.testing.explorer._mutants import Mutant
from twiceproof.testing.explorer._people import Bounds
from twiceproof.testing.explorer._search import Finding

HOLDS, BROKEN, CUT = 0, 1, 3
"""Exit codes: all of it was seen and holds; a promise is broken or a mutant was missed; a bound ended the search."""

_WIDTH: Final = 52


def say(line: str = "") -> None:
    """Print a line at once, so that a long run shows how far it is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def bounds_in_words(requests: int, bounds: Bounds) -> str:
    """Return what a search may use up."""
    amounts = (
        (requests, "request", "requests"),
        (bounds.crashes, "crash", "crashes"),
        (bounds.lost, "lost reply", "lost replies"),
        (bounds.lapses, "lease that passes", "leases that pass"),
        (bounds.expiries, "expiry", "expiries"),
    )
    return ", ".join(f"{amount} {one if amount == 1 else many}" for amount, one, many in amounts)


def scene_line(found: Finding) -> str:
    """Return how a scene came out, in one line."""
    verdict = "BROKEN" if found.broken else "cut" if found.cut else "holds"
    numbers = f"{found.states:>9,} states {found.moves:>11,} moves {found.seconds:>6.1f} s"
    return f" {found.scene:<{_WIDTH}} {numbers}   {verdict}"


def trace_lines(found: Finding) -> Iterable[str]:
    """Yield what was broken and the shortest way there; behind each step stands the record after it."""
    yield f"broken: {found.broken}"
    for number, line in enumerate(found.trace, 1):
        yield f" {number:>2}. {line}"


def summary(findings: list[Finding]) -> str:
    """Return the closing line of a search."""
    states, seconds = sum(found.states for found in findings), sum(found.seconds for found in findings)
    seen = f"{states:,} states in {seconds:.1f} s"
    if any(found.broken for found in findings):
        return f"{seen}: a promise is broken"
    if any(found.cut for found in findings):
        return f"{seen}: nothing is broken so far, but --max-states cut the search, so this is no proof"
    return f"{seen}: every promise holds in all of them"


def mutant_line(mutant: Mutant, found: Finding) -> str:
    """Return how a mutant was caught, in one line."""
    numbers = f"{found.states:>7,} states {len(found.trace):>2} steps {found.seconds:>5.1f} s"
    return f" {mutant.name:<32} {numbers}   {found.broken or 'NOT CAUGHT'}"


def mutant_summary(caught: list[tuple[Mutant, Finding]]) -> str:
    """Return the closing line of a run over the mutants."""
    number = sum(found.broken is not None for _, found in caught)
    return f"{number} of {len(caught)} mutants caught in {sum(found.seconds for _, found in caught):.1f} s"


def as_data(found: Finding) -> dict[str, Any]:
    """Return a finding as plain data."""
    return {
        "scene": found.scene,
        "states": found.states,
        "moves": found.moves,
        "seconds": round(found.seconds, 3),
        "cut": found.cut,
        "broken": found.broken,
        "trace": found.trace,
    }


def say_json(document: dict[str, Any]) -> None:
    """Print one JSON document."""
    say(json.dumps(document, indent=2))
