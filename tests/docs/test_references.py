"""What the pages point at is there."""

import ast
import os
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from tests.support.docs_pages import DOCS, PAGES, ROOT, command_lines, name
from twiceproof.cli._root import twiceproof

CITATION = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(\w+)`")
RULE = re.compile(r"\bR([1-9][0-9]?)\b")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
CONTRACT = DOCS / "contract.md"
LATER = {"R13"}


@cache
def names_in(path):
    if not (ROOT / path).is_file():
        return frozenset()
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def promised():
    """The rules of the contract's page, each with its row."""
    rows = re.findall(r'^\| <a id="r(\d+)"></a>(R\d+) \| (.+?) \| (.*?) \|$', CONTRACT.read_text(), re.MULTILINE)
    assert all(f"R{number}" == rule for number, rule, _, _ in rows)
    return {rule: shown for _, rule, _, shown in rows}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_test_that_a_page_cites_exists(page):
    """By file and function."""
    cited = CITATION.findall(page.read_text())
    assert [f"{path}::{test}" for path, test in cited if test not in names_in(path)] == []


def test_every_promise_of_the_contract_and_of_the_readme_cites_a_test():
    """A claim that nothing shows does not stand on these pages."""
    claims = (ROOT / "README.md").read_text().split("## What it promises")[1].split("##")[0]
    rows = re.findall(r"^\| (\w.+?) \| (.*) \|$", claims, re.MULTILINE)
    assert len(rows) >= 10
    assert [claim for claim, shown in [*rows, *promised().items()] if not CITATION.search(shown)] == []


def test_every_rule_that_the_code_cites_is_on_the_contract_s_page():
    """And so is every rule that a page cites."""
    sources = [*(ROOT / "src").rglob("*.py"), *PAGES]
    cited = {f"R{number}" for path in sources for number in RULE.findall(path.read_text())}
    assert cited - promised().keys() - LATER == set()
    assert len(cited) > 40


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=name)
def test_a_link_of_a_page_outside_the_docs_leads_to_a_file(page):
    """The docs' own links are checked when they are built."""
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def commands():
    found = {}
    for page in PAGES:
        for line in command_lines(page):
            if line.startswith("twiceproof "):
                found[f"{name(page)}: {line[:60]}"] = line
    return found


@pytest.mark.parametrize("line", commands().values(), ids=commands())
def test_a_command_on_a_page_is_one_that_the_program_takes(line):
    """Its verbs, its options and their values; running it is another test's business."""
    _, *words = shlex.split(line, comments=True)
    command: click.Command = twiceproof
    context = click.Context(command, info_name="twiceproof")
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words[0]
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    command.parse_args(context, words)
    assert context.params


def test_a_script_that_a_page_names_can_be_run():
    """`scripts/demo` and its like."""
    named = {
        found
        for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for found in re.findall(r"\bscripts/[a-z]+", page.read_text())
    }
    assert {"scripts/demo", "scripts/test"} <= named
    assert [path for path in sorted(named) if not os.access(ROOT / path, os.X_OK)] == []


def test_a_file_that_a_page_names_exists():
    """Paths in backticks below src, tests, docs, bench and examples."""
    pattern = re.compile(r"`((?:src|tests|docs|bench|examples)/[\w./]+\.(?:py|md))`")
    named = {Path(found) for page in PAGES for found in pattern.findall(page.read_text())}
    assert [str(path) for path in sorted(named) if not (ROOT / path).is_file()] == []
