"""``twiceproof keys``: what a store keeps, and what an operator can do about it."""

from __future__ import annotations

from typing import Final

import click

from twiceproof.cli._lazy import Lazy, LazyGroup

EPILOG: Final = """
\b
Examples:
  twiceproof keys list sqlite:///keys.db --state unsettled --older-than 1h
  twiceproof keys show sqlite:///keys.db 3f9a0c41d2e8
  twiceproof keys resolve sqlite:///keys.db 3f9a0c41d2e8 --nothing-happened --reason "no payment at the bank"
"""


@click.group(
    cls=LazyGroup,
    lazy={
        "list": Lazy("twiceproof.cli._keys_list", "list_keys", "List records, oldest first, a page at a time."),
        "show": Lazy("twiceproof.cli._keys_show", "show", "Show one record and its stored answer."),
        "resolve": Lazy("twiceproof.cli._keys_resolve", "resolve", "Decide a record whose outcome nobody knows."),
        "forget": Lazy("twiceproof.cli._keys_forget", "forget", "Delete one record: a retry runs again."),
        "purge": Lazy("twiceproof.cli._purge", "purge", "Delete the records that have expired."),
    },
    epilog=EPILOG,
)
def keys() -> None:
    """Look at the records of a store, and settle what nobody knows the outcome of.

    Keys and principals are kept as digests only, so none is ever printed. A record is named by its id, or by the
    first 8 or more digits of it where no other begins like that.
    """
