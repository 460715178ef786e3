"""The explorer finds nothing wrong with what ships, and something wrong with each variant of it (CONTRACT 4, 5)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from twiceproof.testing.explorer.__main__ import main
from twiceproof.testing.explorer._mutants import MUTANTS, hunt, in_place
from twiceproof.testing.explorer._people import Bounds, scenes
from twiceproof.testing.explorer._search import search

ROOT = Path(__file__).parents[2]
GUARANTEES = ("at_most_once", "at_least_once", "versions")


def explored(*arguments, **environment):
    """A run of the command, with its exit code and its document."""
    command = [sys.executable, "-m", "twiceproof.testing.explorer", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=110)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def names(number, guarantee):
    return [scene.name for scene in scenes(number, guarantee)]


def test_two_requests_with_every_fault_keep_every_promise():
    """Each scene is searched to its end, with a crash, a lost reply, two lapses and an expiry."""
    code, document = explored()
    assert (code, document["broken"], document["cut"]) == (0, False, False)
    assert [found["scene"] for found in document["scenes"]] == names(2, "all")
    assert [found["broken"] for found in document["scenes"]] == [None] * 8
    assert min(found["states"] for found in document["scenes"]) > 1_000


@pytest.mark.slow
def test_three_requests_keep_every_promise():
    """At least once, whose scenes are the smallest; the others take minutes and are the command's business."""
    code, document = explored("--requests", "3", "--crashes", "2", "--guarantee", "at_least_once")
    assert (code, [found["cut"] for found in document["scenes"]]) == (0, [False] * 3)


@pytest.mark.slow
def test_two_crashes_two_lost_replies_and_three_lapses_keep_every_promise():
    """With two requests, in every scene."""
    code, document = explored("--crashes", "2", "--lost", "2", "--lapses", "3")
    assert (code, document["broken"], document["cut"]) == (0, False, False)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_broken_variant_is_caught(mutant):
    """And the trace leads there: as many lines as steps, the last one with what went wrong."""
    found = hunt(mutant, Bounds())
    assert found.broken is not None
    assert 1 <= len(found.trace) <= 8


def test_a_variant_is_taken_away_again():
    """What was explored after it is what ships."""
    with in_place(MUTANTS[0]):
        pass
    [scene, *_] = scenes(2, MUTANTS[0].guarantee)
    assert search(scene, Bounds()).broken is None


def test_the_page_lists_every_variant():
    """By name, with what is wrong with it, and no other."""
    page = (ROOT / "docs" / "explorer.md").read_text().split("## The variants that it must find")[1]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(mutant.name, mutant.says) for mutant in MUTANTS]


def test_the_page_shows_a_trace_as_it_is_printed(capsys):
    """Line by line."""
    assert main(["--mutant", "old-verdict-accepted"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match(r"broken: | +\d+\. ", line)]
    assert len(lines) > 5
    assert "\n".join(lines) in (ROOT / "docs" / "explorer.md").read_text()


def test_the_names_of_the_variants_differ():
    """A name is how one is asked for; there are at least twelve."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12


def test_a_violation_is_told_by_the_shortest_way_there_and_exits_1(capsys):
    """In plain words: who did what, what came back, and the record after it."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "at-most-once-takes-over")
    with in_place(mutant):
        code = main(["--guarantee", "at_most_once"])
    assert code == 1
    assert capsys.readouterr().out.splitlines()[2:6] == [
        "broken: an unsettled record was taken over although one side promises at most once (R27)",
        "  1. A claims: granted, token 1  [in flight, A's, token 1]",
        "  2. a lease passes  [lapsed, A's, token 1]",
        "  3. B claims: granted, token 2  [in flight, B's, token 2]",
    ]


def test_a_request_keeps_its_letter_through_a_trace(capsys):
    """Although requests that are alike swap their places while the search merges worlds."""
    assert main(["--mutant", "verdict-from-memory"]) == 0
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split(". ", 1)[1].split("  [")[0] for line in lines if line.lstrip()[:1].isdigit() and ". " in line]
    assert steps == [
        "A claims: granted, token 1",
        "A's handler answers 201 or answers 422 or answers 500 or answers 503",
        "a lease passes",
        "B claims: found in flight, lapsed",
        "B takes the second claim: granted, token 1",
        "B's hook says that it took effect",
        "B completes, but finds the store down",
    ]


def test_a_search_that_was_cut_says_so_and_exits_3(capsys):
    """It is no proof, and does not look like one."""
    assert main(["--guarantee", "at_least_once", "--max-states", "500"]) == 3
    out = capsys.readouterr().out
    assert out.count("   cut\n") == 3
    assert out.endswith("nothing is broken so far, but --max-states cut the search, so this is no proof\n")


def test_a_variant_that_is_missed_exits_1(capsys):
    """So does a run over all of them, once one is not caught."""
    assert main(["--mutant", "verdict-from-memory", "--max-states", "10"]) == 1
    out = capsys.readouterr().out
    assert "NOT CAUGHT" in out
    assert out.splitlines()[-1].startswith("0 of 1 mutants caught in ")


def test_the_run_over_the_variants_lists_each(capsys):
    """By its name, with states, steps and what was broken; and counts them at the end."""
    assert main(["--mutants", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["mutants"]
    assert [each["name"] for each in found] == [mutant.name for mutant in MUTANTS]
    assert all(each["broken"] and each["trace"] and each["states"] for each in found)


@pytest.mark.parametrize("arguments", [["--requests", "0"], ["--crashes", "-1"], ["--guarantee", "x"], ["--lost", "x"]])
def test_what_makes_no_sense_is_refused_with_2(arguments, capsys):
    """With a sentence that names the option."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert f"argument {arguments[0]}: " in capsys.readouterr().err


def test_the_search_is_the_same_every_time():
    """Whatever the seed of Python's hashes."""
    first, second = (explored("--guarantee", "at_least_once", PYTHONHASHSEED=seed)[1] for seed in ("1", "2"))
    for document in (first, second):
        for found in document["scenes"]:
            del found["seconds"]
    assert first == second


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_single_request_and_no_fault_is_a_search_too(guarantee):
    """Down to the smallest bounds."""
    none = [word for name in ("crashes", "lost", "lapses", "expiries") for word in (f"--{name}", "0")]
    assert main(["--requests", "1", *none, "--guarantee", guarantee]) == 0
