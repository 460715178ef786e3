"""What commands print: lines for people, one JSON document for programs, sentences on stderr."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

operator_log: Final = logging.getLogger("twiceproof.operator")

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


class Refused(click.ClickException):
    """Understood, and not done: the exit code is 1."""

    exit_code = 1


class Cannot(click.ClickException):
    """Bad input, or nothing to work on: the exit code is 2."""

    exit_code = 2


def make_console() -> Console:
    """Return a console on stdout: colours on a terminal only, and no line ever cut."""
    from rich.console import Console

    class OurConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command's own way out

    return OurConsole(highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_json(document: object) -> None:
    """Print one JSON document, in ASCII."""
    click.echo(json.dumps(document, indent=2))


def printable(text: str) -> str:
    r"""Return ``text`` without anything that a terminal would obey: such characters as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def iso(moment: float | None) -> str | None:
    """Return a moment in ISO 8601, in UTC to the millisecond; None where it is none, or beyond the calendar."""
    if moment is None:
        return None
    try:
        stamp = dt.datetime.fromtimestamp(round(moment, 3), dt.UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moments(**named: float | None) -> dict[str, Any]:
    """Return each moment twice: as ISO 8601 under its name, and in seconds since 1970 under ``<name>_seconds``."""
    found: dict[str, Any] = {}
    for name, value in named.items():
        found[name] = iso(value)
        found[f"{name}_seconds"] = None if value is None else round(value, 3)
    return found


def span(seconds: float) -> str:
    """Return a duration for people: its two largest units, such as ``3h12m``."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds < 10:
        return f"{seconds:.3g}s"
    left, parts = int(seconds), list[str]()
    for unit, size in _UNITS:
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount}{unit}")
        elif parts:
            break
    return "".join(parts[:2])


class Listing:
    """Columns that are aligned as rows come, so that any number can be listed: widths only grow, nothing is cut."""

    def __init__(self, console: Console, heads: Sequence[str]) -> None:
        self.console = console
        self.heads = heads
        self.widths = [len(head) for head in heads]
        self.begun = False

    def add(self, rows: Sequence[tuple[Sequence[str], str]]) -> None:
        """Print some rows, each with its style, and the heads before the first of them."""
        from rich.cells import cell_len

        lines = [([printable(cell) for cell in cells], style) for cells, style in rows]
        for cells, _ in lines:
            self.widths = [max(width, cell_len(cell)) for width, cell in zip(self.widths, cells, strict=True)]
        if not self.begun and lines:
            self.begun = True
            self._print(self.heads, "bold")
        for cells, style in lines:
            self._print(cells, style)

    def _print(self, cells: Sequence[str], style: str) -> None:
        from rich.cells import cell_len
        from rich.text import Text

        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, self.widths, strict=True))
        self.console.print(Text("  ".join(padded).rstrip(), style=style))


def print_pairs(console: Console, pairs: Iterable[tuple[str, str]], indent: str = "") -> None:
    """Print names and values, one pair a line, the values aligned."""
    from rich.text import Text

    rows = list(pairs)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        line = Text(indent).append(name.ljust(width), style="bold").append("  ").append(printable(value))
        console.print(line)


def log_operator(verb: str, **members: object) -> None:
    """Tell the logger ``twiceproof.operator`` what an operator did, as one line; it also goes to stderr.

    ``2>> audit.log`` keeps a trail of it.
    """
    line = " ".join(["operator", verb, *(f"{name}={json.dumps(value)}" for name, value in members.items())])
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    operator_log.addHandler(handler)
    operator_log.setLevel(logging.INFO)
    try:
        operator_log.info("%s", line)
    finally:
        operator_log.removeHandler(handler)
