"""``twiceproof keys forget``."""

from __future__ import annotations

from typing import Final

import click

from twiceproof.cli._operator import reason_option, refuse, refuse_newer, report
from twiceproof.cli._output import span
from twiceproof.cli._records import condition
from twiceproof.cli._store import opened, parse_id, store_options
from twiceproof.core._record import Fenced, Record, State

EPILOG: Final = """
\b
Examples:
  twiceproof keys forget sqlite:///keys.db 3f9a0c41d2e8 --reason "test data"
"""


@click.command(epilog=EPILOG)
@store_options
@click.argument("id")
@reason_option(required=True)
@click.option("--force", is_flag=True, help="Also while a lease is live: what runs is fenced, not stopped.")
def forget(url: str, timeout: float, id: str, reason: str, *, force: bool, as_json: bool) -> None:
    """Delete one record, whatever its state.

    This CAN repeat an effect: its key is new afterwards, so that a retry runs the handler again.
    """
    with opened(url, timeout) as store:
        record = parse_id(store, id)
        if not force:
            refuse_newer(record)
            if (code := _held(record)) is not None:
                refuse(record, *code, as_json=as_json)
        if isinstance(store.forget(record.id, record.token.nonce), Fenced):
            refuse(
                record, "fenced", "It changed meanwhile; look at it with 'keys show' and try again.", as_json=as_json
            )
    report(
        "forget",
        record,
        [
            f"{record.id.hex()}  {record.operation}",
            f"Forgotten; it was {condition(record)}.",
            "This can repeat an effect: a retry with this key runs the handler again.",
            f"Reason: {reason}",
        ],
        as_json=as_json,
        was=condition(record).state,
        forced=force and _held(record) is not None,
        can_repeat_an_effect=True,
        reason=reason,
    )


def _held(record: Record) -> tuple[str, str] | None:
    """Say who is at work on it, if anybody is."""
    if record.reconciling:
        return "reconciling", "A reconcile hook is asked about it right now; wait, or give --force."
    if record.state is State.WAITING:
        return "waiting", "It waits for its next attempt; let it, or give --force."
    if record.state is State.IN_FLIGHT and not record.lapsed:
        left = span(record.lease_until - record.now)
        return "lease-live", f"It is still in flight: its lease is live for {left}. Wait, or give --force."
    return None
