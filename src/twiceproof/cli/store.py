"""``twiceproof store``: what a store needs before it is used, whether it works, and what can go."""

from __future__ import annotations

from typing import Final

import click

from twiceproof.cli._lazy import Lazy, LazyGroup

EPILOG: Final = """
\b
Examples:
  twiceproof store init postgresql://app@db/app
  twiceproof store schema postgresql://app@db/app > migrations/0042_twiceproof.sql
  twiceproof store check redis://cache:6379/0
  twiceproof store purge sqlite:///keys.db
"""


@click.group(
    cls=LazyGroup,
    lazy={
        "init": Lazy("twiceproof.cli._store_schema", "init", "Make what the store needs."),
        "schema": Lazy("twiceproof.cli._store_schema", "schema", "Print the SQL that makes it."),
        "check": Lazy("twiceproof.cli._store_check", "check", "Try the store: what it promises, and whether it works."),
        "purge": Lazy("twiceproof.cli._purge", "purge", "Delete the records that have expired."),
    },
    epilog=EPILOG,
)
def store() -> None:
    """Prepare a store, try it, and clear it of what has expired.

    URL is the store= of the application. A password in it is never printed.
    """
