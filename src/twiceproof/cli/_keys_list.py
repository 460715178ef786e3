"""``twiceproof keys list``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from twiceproof.cli._output import Cannot, Listing, make_console
from twiceproof.cli._records import HEADS, STYLES, condition, data, row
from twiceproof.cli._store import PAGE, duration, opened, store_options
from twiceproof.core._record import Record, State
from twiceproof.stores import Filter

if TYPE_CHECKING:
    from twiceproof.stores import Store

EPILOG: Final = """
\b
Examples:
  twiceproof keys list sqlite:///keys.db
  twiceproof keys list sqlite:///keys.db --state unsettled --older-than 1h
  twiceproof keys list sqlite:///keys.db --operation "POST /transfers" --all --json
"""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a store can select, and what of that is shown."""

    state: State | None = None
    unsettled: bool = False
    shown: Callable[[Record], bool] = lambda record: True  # noqa: ARG005  # everything


SELECTIONS: Final = {
    "in_flight": Selection(State.IN_FLIGHT, shown=lambda record: not record.lapsed),
    "completed": Selection(State.COMPLETED),
    "parked": Selection(State.PARKED),
    "waiting": Selection(State.WAITING),
    "unsettled": Selection(unsettled=True),
    "lapsed": Selection(unsettled=True, shown=lambda record: record.lapsed),
}


@click.command("list", epilog=EPILOG)
@store_options
@click.option("--state", type=click.Choice(list(SELECTIONS)), help="unsettled: parked or lapsed.")
@click.option("--operation", help='As stored: "POST /transfers", or the name that the policy gives.')
@click.option("--path", help="As stored: the canonical path.")
@click.option("--older-than", type=duration(), help="Created at least that long ago: 90s, 15m, 1h, 7d.")
@click.option("--limit", type=click.IntRange(min=1), default=PAGE, show_default=True, help="How many at most.")
@click.option("--cursor", help="Continue where the page before ended.")
@click.option("--all", "everything", is_flag=True, help="Page through all of them.")
def list_keys(
    url: str,
    timeout: float,
    state: str | None,
    operation: str | None,
    path: str | None,
    older_than: float | None,
    limit: int,
    cursor: str | None,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """List live records, oldest first.

    An in-flight record whose lease ran out is shown as unsettled, with the cause "lapsed".
    """
    selection = SELECTIONS.get(state or "", Selection())
    filter = Filter(selection.state, selection.unsettled, operation, path, older_than)
    with opened(url, timeout) as store:
        pages = Pages(store, filter, selection.shown, cursor, None if everything else limit)
        if as_json:
            _print_json(pages)
        else:
            _print_table(pages)


class Pages:
    """Records a page at a time, so that memory is bounded; ``cursor`` is where the next page begins."""

    def __init__(
        self,
        store: Store,
        filter: Filter,
        shown: Callable[[Record], bool],
        cursor: str | None,
        limit: int | None,
    ) -> None:
        self.store = store
        self.filter = filter
        self.shown = shown
        self.cursor = cursor
        self.left = limit

    def __iter__(self) -> Iterator[Sequence[Record]]:
        """Yield what is shown of each page; may be empty."""
        while self.left is None or self.left > 0:
            try:
                page = self.store.scan(self.filter, self.cursor, PAGE if self.left is None else min(PAGE, self.left))
            except ValueError as error:
                raise Cannot(f"--cursor: {error}") from None
            records = [record for record in page.records if self.shown(record)]
            if self.left is not None:
                self.left -= len(records)
            self.cursor = page.cursor
            yield records
            if self.cursor is None:
                return


def _print_table(pages: Pages) -> None:
    console = make_console()
    listing = Listing(console, HEADS)
    count = 0
    for records in pages:
        count += len(records)
        listing.add([(row(record), STYLES.get(condition(record).state, "")) for record in records])
    if not count:
        click.echo("No such records." if pages.cursor is None else "None so far.", err=True)
    if pages.cursor is not None:
        click.echo(f"More: --cursor {pages.cursor}")


def _print_json(pages: Pages) -> None:
    """Write the document as it comes: with --all it may be larger than memory."""
    click.echo('{\n  "records": [', nl=False)
    separator = "\n    "
    for records in pages:
        for record in records:
            click.echo(separator + json.dumps(data(record)), nl=False)
            separator = ",\n    "
    click.echo(f'\n  ],\n  "cursor": {json.dumps(pages.cursor)}\n}}')
