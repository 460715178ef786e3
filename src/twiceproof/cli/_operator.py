"""What an operator's commands share: the reason they ask for, and how their results are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import click

from twiceproof.cli._output import Cannot, Refused, log_operator, print_json, printable
from twiceproof.core._record import FORMAT, Record

LONGEST_REASON: Final = 1000


def reason(value: str) -> str:
    """Return a sentence for those who come later, without white space around it; an option's type."""
    text = value.strip()
    if not text:
        raise click.BadParameter("say why, for those who read the log later.")
    if len(text) > LONGEST_REASON:
        raise click.BadParameter(f"at most {LONGEST_REASON} characters, please; this has {len(text)}.")
    return text


def reason_option(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--reason``."""
    return click.option("--reason", type=reason, required=required, help="Why; goes to the log.")


def refuse_newer(record: Record) -> None:
    """Refuse a record whose fields this release may misread (R17)."""
    if record.format > FORMAT:
        raise Cannot(
            f"Record {record.id.hex()} has format {record.format} and this release knows {FORMAT}; upgrade twiceproof."
        )


def report(verb: str, record: Record, sentences: list[str], *, as_json: bool, **members: object) -> None:
    """Log what was done, and tell it: ``sentences`` to people, ``members`` to programs."""
    event = {"record": record.id.hex(), "operation": record.operation, **members}
    log_operator(verb, **event)
    if as_json:
        print_json({"done": verb, "id": record.id.hex(), **members, "event": {"name": "operator", **event}})
        return
    for sentence in sentences:
        click.echo(printable(sentence))


def refuse(record: Record, code: str, sentence: str, *, as_json: bool) -> NoReturn:
    """Tell why it was not done, to people and, with ``code``, to programs; the exit code is 1."""
    if as_json:
        print_json({"done": None, "id": record.id.hex(), "refused": code, "detail": sentence})
    raise Refused(sentence)
