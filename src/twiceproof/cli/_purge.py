"""``twiceproof store purge``, which is also ``twiceproof keys purge``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from twiceproof.cli._operator import reason_option
from twiceproof.cli._output import log_operator, print_json
from twiceproof.cli._store import opened, store_options

if TYPE_CHECKING:
    from twiceproof.stores import Store

BATCH: Final = 1000
EPILOG: Final = """
\b
Examples:
  twiceproof store purge sqlite:///keys.db
  twiceproof store purge postgresql://app@db/app --limit 100000 --json
  twiceproof keys purge sqlite:///keys.db
"""


@click.command(epilog=EPILOG)
@store_options
@reason_option(required=False)
@click.option("--limit", type=click.IntRange(min=1), help="Delete at most that many.")
def purge(url: str, timeout: float, reason: str | None, limit: int | None, *, as_json: bool) -> None:
    """Delete the records that have expired, a thousand at a time, until none is left.

    This can't repeat an effect: their keys are new already, purged or not. It may run beside the application, and
    beside another purge.

    Exits with 0 when it is done, also where there was nothing; with 2 where the store can't be reached or read, or
    failed on the way. What was deleted before stays deleted.
    """
    with opened(url, timeout) as store:
        records, unsettled = _purge(store, limit)
    log_operator("purge", records=records, unsettled=unsettled, reason=reason)
    if as_json:
        print_json(
            {
                "done": "purge",
                "records": records,
                "unsettled": unsettled,
                "can_repeat_an_effect": False,
                "reason": reason,
            }
        )
        return
    click.echo(f"Purged {records:,} expired records.")
    if unsettled:
        click.echo(
            f"Of {unsettled:,} of them nobody ever learned the outcome; they were kept until unsettled_retention."
        )
    click.echo("This can't repeat an effect: their keys were new already.")


def _purge(store: Store, limit: int | None) -> tuple[int, int]:
    """Delete in steps that are short for everybody else, and show how far it is where somebody looks."""
    records = unsettled = 0
    show = sys.stderr.isatty()
    while limit is None or records < limit:
        size = BATCH if limit is None else min(BATCH, limit - records)
        purged = store.purge(size)
        records += purged.records
        unsettled += purged.unsettled
        if show:
            click.echo(f"\r{records:,} purged", nl=False, err=True)
        if purged.records < size:
            break
    if show:
        click.echo("\r\x1b[K", nl=False, err=True)
    return records, unsettled
