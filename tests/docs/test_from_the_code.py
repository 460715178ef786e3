"""What the pages say about the code is what the code says."""

import ast
import re
from dataclasses import fields

import pytest

from docs._generate import PART, PARTS, with_parts
from tests.support.docs_pages import DOCS, PAGES, ROOT, name
from twiceproof import FingerprintOptions, Policy, State
from twiceproof.core._engine import DoComplete, DoPark, DoRelease, note_of
from twiceproof.core._lifecycle import ABSENT, TRANSITIONS, UNSETTLED
from twiceproof.core._problems import PROBLEMS
from twiceproof.engine._options import EngineOptions

SOURCE = ROOT / "src" / "twiceproof"


@pytest.mark.parametrize("page", [page for page in PAGES if PART.search(page.read_text())], ids=name)
def test_the_parts_printed_from_the_code_are_up_to_date(page):
    """`python docs/_generate.py` would change nothing."""
    assert page.read_text() == with_parts(page.read_text())


def test_every_part_is_printed_on_exactly_one_page():
    """The lifecycle, the guarantees and every table of options are there to be read."""
    printed = [found[2] for page in PAGES for found in PART.finditer(page.read_text())]
    assert sorted(printed) == sorted(PARTS)


def test_the_diagram_of_the_lifecycle_is_the_table_that_decides():
    """Read back from the drawing: every change that a record can undergo, and no other."""
    drawing = (DOCS / "guarantees.md").read_text().split("```text\n")[1].split("```")[0]
    arrow = re.compile(r"(\w+) +──  (.+?) ─*▶  (\w+)")
    read = [arrow.fullmatch(line) for line in drawing.splitlines()]
    assert [found and found.groups() for found in read] == [tuple(map(str, row)) for row in TRANSITIONS]
    assert {state for row in TRANSITIONS for state in (row[0], row[2])} <= {*State, ABSENT, UNSETTLED}


@pytest.mark.parametrize(
    ("prefix", "options"),
    [
        ("policy", [field.name for field in fields(Policy)]),
        ("engine", list(EngineOptions.__annotations__)),
        ("fingerprint", [field.name for field in fields(FingerprintOptions) if field.init]),
    ],
)
def test_every_option_is_on_the_page_of_options_and_says_what_it_does(prefix, options):
    """None is missing, none is left over, and each has a sentence."""
    rows = re.findall(rf'<a id="{prefix}-(\w+)"></a>`(\w+)` \|.* (.*) \|\n', (DOCS / "options.md").read_text())
    assert [row[0] for row in rows] == options
    assert [row[0] for row in rows if not row[2]] == []


def test_every_problem_code_has_an_anchor_and_a_page():
    """A client that follows `type` lands on its code; every code on the page exists."""
    index = (DOCS / "problems" / "index.md").read_text()
    assert re.findall(r"^## (.+)$", index, re.MULTILINE) == list(PROBLEMS)
    assert {path.stem for path in (DOCS / "problems").glob("*.md")} - {"index"} == set(PROBLEMS)


@pytest.mark.parametrize("code", PROBLEMS)
def test_the_page_of_a_problem_says_what_a_client_and_an_operator_do_next(code):
    """Under its own name, in that order, with something to read in each part."""
    page = (DOCS / "problems" / f"{code}.md").read_text()
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    assert headings == [code, "What a client does next", "What an operator does next"]
    assert [part for part in re.split(r"^#+ .+$", page, flags=re.MULTILINE)[1:] if not part.strip()] == []


def texts(tree):
    """The texts in an expression."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_event_is_on_the_page_of_operations():
    """A name that the code can tell is a row of the table, and every row can be told."""
    writes = (DoComplete(b"", b"", b"", 1.0), DoRelease(b"", b""), DoPark(b"", b"", ""))
    told = {"operator"} | {note_of(write, late=late) for write in writes for late in (False, True)}
    for path in [*(SOURCE / "core").glob("*.py"), *(SOURCE / "engine").glob("*.py"), *(SOURCE / "server").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).split(".")[-1] in {"DoNote", "emit"}:
                told |= texts(node.args[0])
    table = (DOCS / "operations.md").read_text().split("| event | when | code |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == told
