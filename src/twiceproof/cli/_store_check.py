"""``twiceproof store check``: what a store promises, and whether it works."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import click

from twiceproof.cli._output import Cannot, Refused, make_console, print_json, print_pairs
from twiceproof.cli._store import ID_BYTES, check_file, kind_of, made, shown_url, store_options
from twiceproof.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from twiceproof.stores import Capabilities, Store

ROUND_TRIPS: Final = 9
"""Reads that are measured; one before them opens the connection and is not."""
EPILOG: Final = """
\b
Examples:
  twiceproof store check postgresql://app@db/app
  twiceproof store check "redis://cache:6379/0" --json
  twiceproof store check sqlite:///keys.db --timeout 2s
"""


@click.command(epilog=EPILOG)
@store_options
def check(url: str, timeout: float, *, as_json: bool) -> None:
    """Say what the store is and promises, try it, and measure how long a look at a key takes.

    It is the check that an application makes at its start, and one record that can't exist is read; nothing is written
    or made. The round trip is the median of nine such reads on one connection.

    Exits with 0 when the store works, warnings or not; with 1 where it can't work: not reachable, not permitted, no
    schema, a schema of a later release; with 2 where the URL names no store, or a package is missing.
    """
    store = made(url, timeout)
    notes: Sequence[str] = ()
    took: float | None = None
    problem: str | None = None
    try:
        notes = store.check()
        absent = _absent(url)
        if absent is None:
            took = _round_trip(store)
        else:
            notes = [*notes, absent]
    except (ConfigurationError, StoreError) as error:
        problem = str(error)
    finally:
        store.close()
    if as_json:
        print_json(_document(url, store.capabilities, notes, took, problem))
    else:
        _print(url, store.capabilities, notes, took, works=problem is None)
    if problem is not None:
        raise Refused(problem)


def _absent(url: str) -> str | None:
    """Say so where a file or its schema is yet to be made, which opening it to look would do."""
    try:
        check_file(url)
    except Cannot:
        return "It has no schema yet; 'twiceproof store init' or the first request makes it."
    return None


def _round_trip(store: Store) -> float:
    """Return how many seconds a read takes that finds nothing."""
    store.open()
    taken: list[float] = []
    for _ in range(1 + ROUND_TRIPS):
        began = time.perf_counter()
        store.get(os.urandom(ID_BYTES))
        taken.append(time.perf_counter() - began)
    return median(taken[1:])


def _document(
    url: str, can: Capabilities, notes: Sequence[str], took: float | None, problem: str | None
) -> dict[str, Any]:
    return {
        "store": kind_of(url),
        "url": shown_url(url),
        "durable": can.durable if problem is None else None,  # some stores tell only when they are asked
        "shared": can.shared,
        "transactional": can.transactional,
        "notifies": can.notifies,
        "works": problem is None,
        "problem": problem,
        "notes": list(notes),
        "round_trip_seconds": None if took is None else round(took, 7),
    }


def _print(url: str, can: Capabilities, notes: Sequence[str], took: float | None, *, works: bool) -> None:
    pairs = [("store", shown_url(url)), ("works", "yes" if works else "NO")]
    if works:  # some stores tell only when they are asked
        durable = "yes: a record outlives the process and a restart of the host"
        alone = "no: one host" if can.durable else "no: one process"
        pairs += [
            ("durable", durable if can.durable else _FORGETS),
            ("shared", "yes: any number of hosts" if can.shared else alone),
        ]
    if took is not None:
        pairs.append(("round trip", f"{took * 1000:.3g} ms"))
    pairs += [("note", note) for note in notes]
    print_pairs(make_console(), pairs)


_FORGETS: Final = "no: it may forget, and a retry then runs again; engines want accept_volatile=True"
