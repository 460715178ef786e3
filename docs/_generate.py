"""Writes those parts of the pages that are printed from the code: tables of options, guarantees, and the lifecycle.

A part stands between two comments, ``<!-- from the code: NAME -->`` and ``<!-- end -->``. ``python docs/_generate.py``
rewrites all of them; a test keeps them equal to what the code says.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from twiceproof import FingerprintOptions, Policy
from twiceproof.core._field import KeyFault
from twiceproof.core._guarantee import GATES, SETTLING, Ending
from twiceproof.core._kept import DROPPED, DROPPED_PREFIXES
from twiceproof.core._lifecycle import CAUSES, TRANSITIONS
from twiceproof.core._policy import DAY
from twiceproof.core._problems import PROBLEMS
from twiceproof.engine._options import EngineOptions

DOCS: Final = Path(__file__).parent
PART: Final = re.compile(r"(<!-- from the code: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def documented(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and docstring of each option of a class, in the order of its source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for item, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = inspect.cleandoc(str(after.value.value))
            yield item.target.id, ast.unparse(item.annotation), text


def default(kind: type, name: str) -> str:
    """Return the default of an option as one would write it, or nothing where a class has none."""
    if not is_dataclass(kind):
        return ""
    field = next(item for item in fields(kind) if item.name == name)
    if field.default_factory is not MISSING:
        return f"`{kind.__annotations__[name]}()`"
    value: Any = field.default
    if value == GATES:
        return "the gates, " + " ".join(map(str, sorted(GATES)))
    if value == frozenset():
        return "none"
    if isinstance(value, float):
        return length(value)
    if name.endswith("_bytes"):
        return f"{value // 1024**2} MiB"
    return f"`{value!r}`" if not hasattr(value, "value") else f'`"{value}"`'


def length(amount: float) -> str:
    """Return a duration in its largest unit that leaves no rest."""
    for unit, size in (("days", 2 * DAY), ("h", 3600), ("min", 60)):
        if amount and not amount % size:
            return f"{amount / (DAY if unit == 'days' else size):g} {unit}"
    return f"{amount:g} s"


def options(kind: type, *, anchor: str) -> str:
    """Return the table of a class of options; what it computes itself is left out."""
    made = {item.name for item in fields(kind) if not item.init} if is_dataclass(kind) else set[str]()
    rows = [row for row in documented(kind) if row[0] not in made]
    with_default = is_dataclass(kind)
    lines = ["| option | default | |", "| --- | --- | --- |"] if with_default else ["| option | |", "| --- | --- |"]
    for name, _, text in rows:
        cells = [f'<a id="{anchor}-{name}"></a>`{name}`']
        if with_default:
            cells.append(default(kind, name))
        lines.append(f"| {' | '.join([*cells, markdown(text)])} |")
    return "\n".join(lines)


def markdown(docstring: str) -> str:
    """Return a docstring as one line of Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(docstring.split())).replace("|", "\\|")


def lifecycle() -> str:
    """Return the changes that a record can undergo, one a line, as a drawing."""
    rows = [(str(before), event, str(after)) for before, event, after in TRANSITIONS]
    left, middle = (max(len(row[at]) for row in rows) for at in (0, 1))
    drawn = [
        f"{before:<{left}}  ──  {event} {'─' * (middle - len(event))}──▶  {after}" for before, event, after in rows
    ]
    return "\n".join(["```text", *drawn, "```"])


def guarantees() -> str:
    """Return what becomes of a claim, by how the run ended and by guarantee."""
    names = list(SETTLING)
    lines = [f"| the run ends with | {' | '.join(f'`{name}`' for name in names)} |", "| --- |" + " --- |" * len(names)]
    for ending in Ending:
        cells = []
        for name in names:
            settling = str(SETTLING[name][ending])
            cells.append(f"{settling}, cause `{CAUSES[ending]}`" if settling == "park" else settling)
        lines.append(f"| {ending} | {' | '.join(cells)} |")
    return "\n".join(lines)


def problems() -> str:
    """Return the table of our own answers."""
    lines = ["| code | status | retryable | |", "| --- | --- | --- | --- |"]
    for code, row in PROBLEMS.items():
        lines.append(f"| [`{code}`]({code}.md) | {row.status} | {str(row.retryable).lower()} | {row.title} |")
    return "\n".join(lines)


def key_reasons() -> str:
    """Return the values that the member ``reason`` can have."""
    return ", ".join(f"`{fault}`" for fault in KeyFault)


def dropped() -> str:
    """Return the header fields that are never stored."""
    names = [f"`{name.decode()}`" for name in sorted(DROPPED)]
    return ", ".join([*names, *(f"`{prefix.decode()}*`" for prefix in DROPPED_PREFIXES)])


PARTS: Final[dict[str, Callable[[], str]]] = {
    "policy": lambda: options(Policy, anchor="policy"),
    "engine": lambda: options(EngineOptions, anchor="engine"),
    "fingerprint": lambda: options(FingerprintOptions, anchor="fingerprint"),
    "lifecycle": lifecycle,
    "guarantees": guarantees,
    "problems": problems,
    "key-reasons": key_reasons,
    "dropped": dropped,
}


def with_parts(page: str) -> str:
    """Return a page with its parts as the code has them now."""
    return PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n{found[4]}", page)


if __name__ == "__main__":
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = with_parts(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print("rewritten:", path.relative_to(DOCS.parent))
