"""``python -m twiceproof.testing.explorer``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from twiceproof.testing.explorer import _report as report
from twiceproof.testing.explorer._mutants import MUTANTS, Mutant, hunt
from twiceproof.testing.explorer._people import Bounds, scenes
from twiceproof.testing.explorer._search import Finding, search

_EXAMPLES = """\
examples:
  python -m twiceproof.testing.explorer                            two requests and one crash: seconds
  python -m twiceproof.testing.explorer --requests 3 --crashes 2   a minute or two
  python -m twiceproof.testing.explorer --mutants                  is every broken variant of the rules found?
  python -m twiceproof.testing.explorer --mutant held-for-ever     how one of them is found

exit code: 0 every promise holds; 1 one is broken, or a mutant was missed; 2 can't; 3 --max-states cut the search
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore, and return the exit code."""
    options = _parser().parse_args(arguments)
    bounds = Bounds(options.crashes, options.lost, options.lapses, options.expiries, options.max_states)
    if options.mutants or options.mutant:
        wanted = [mutant for mutant in MUTANTS if options.mutants or mutant.name == options.mutant]
        return _hunt(wanted, bounds, as_json=options.json)
    return _explore(options.requests, options.guarantee, bounds, as_json=options.json)


def _explore(requests: int, guarantee: str, bounds: Bounds, *, as_json: bool) -> int:
    findings: list[Finding] = []
    if not as_json:
        report.say(f"exploring with at most {report.bounds_in_words(requests, bounds)}")
    for scene in scenes(requests, guarantee):
        found = search(scene, bounds)
        findings.append(found)
        if not as_json:
            report.say(report.scene_line(found))
        if found.broken:
            break
    broken, cut = any(found.broken for found in findings), any(found.cut for found in findings)
    if as_json:
        report.say_json({"broken": broken, "cut": cut, "scenes": [report.as_data(found) for found in findings]})
    else:
        if broken:
            for line in report.trace_lines(findings[-1]):
                report.say(line)
        report.say(report.summary(findings))
    return report.BROKEN if broken else report.CUT if cut else report.HOLDS


def _hunt(mutants: list[Mutant], bounds: Bounds, *, as_json: bool) -> int:
    caught: list[tuple[Mutant, Finding]] = []
    for mutant in mutants:
        found = hunt(mutant, bounds)
        caught.append((mutant, found))
        if not as_json:
            report.say(report.mutant_line(mutant, found))
            if len(mutants) == 1:
                report.say(f"{mutant.says}; in the scene: {found.scene}")
                for line in report.trace_lines(found):
                    report.say(line)
    if as_json:
        data = [{"name": mutant.name, "says": mutant.says, **report.as_data(found)} for mutant, found in caught]
        report.say_json({"mutants": data})
    else:
        report.say(report.mutant_summary(caught))
    return report.HOLDS if all(found.broken for _, found in caught) else report.BROKEN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m twiceproof.testing.explorer",
        description="Walk through every interleaving of a few requests on one key, with crashes, lost replies, "
        "lapses and late holders, over the rules and the memory store that ship.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Bounds()
    parser.add_argument("--requests", type=_least(1), default=2, help="how many requests race (2)")
    parser.add_argument("--crashes", type=_least(0), default=usual.crashes, help="how many processes may die (1)")
    parser.add_argument("--lost", type=_least(0), default=usual.lost, help="store calls that fail or go unheard (1)")
    parser.add_argument("--lapses", type=_least(0), default=usual.lapses, help="how many leases pass (2)")
    parser.add_argument("--expiries", type=_least(0), default=usual.expiries, help="how often the key expires (1)")
    parser.add_argument("--max-states", type=_least(1), default=usual.states, help="end a scene there, with code 3")
    parser.add_argument(
        "--guarantee",
        choices=("at_most_once", "at_least_once", "versions", "all"),
        default="all",
        help="which scenes; versions: two versions of an application, one with each (all)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.add_argument("--mutants", action="store_true", help="explore broken variants of the rules instead")
    parser.add_argument("--mutant", choices=[mutant.name for mutant in MUTANTS], metavar="NAME", help="only this one")
    return parser


def _least(bound: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < bound:
            raise argparse.ArgumentTypeError(f"must be at least {bound}, not {value}")
        return value

    return number


if __name__ == "__main__":
    sys.exit(main())
