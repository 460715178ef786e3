"""``twiceproof store init`` and ``twiceproof store schema``."""

from __future__ import annotations

from typing import Final

import click

from twiceproof.cli._output import print_json
from twiceproof.cli._store import kind_of, made, shown_url, store_options, told
from twiceproof.stores._protocol import HasSchema

INIT_EPILOG: Final = """
\b
Examples:
  twiceproof store init postgresql://app@db/app
  twiceproof store init sqlite:////var/lib/app/keys.db
"""
SCHEMA_EPILOG: Final = """
\b
Examples:
  twiceproof store schema postgresql://app@db/app | psql -v ON_ERROR_STOP=1 app
  twiceproof store schema postgresql://app@db/app > migrations/0042_twiceproof.sql
"""


@click.command(epilog=INIT_EPILOG)
@store_options
def init(url: str, timeout: float, *, as_json: bool) -> None:
    """Make the schema that the store needs; where it is there already, nothing changes.

    A store without a schema needs nothing made, and is told so.

    Exits with 0 when everything is there, with 2 where it can't be made: no such server, no permission, or a schema of
    a later release.
    """
    store = made(url, timeout)
    needs = isinstance(store, HasSchema)
    if isinstance(store, HasSchema):
        with told(store):
            store.init()
    if as_json:
        print_json({"done": "init", "store": kind_of(url), "url": shown_url(url), "needs_schema": needs})
    elif needs:
        click.echo(f"Ready: the schema is in {shown_url(url)}.")
    else:
        click.echo(f"The {kind_of(url)} store has no schema; there is nothing to make.")


@click.command(epilog=SCHEMA_EPILOG)
@store_options
def schema(url: str, timeout: float, *, as_json: bool) -> None:
    """Print the SQL that makes the schema, for psql or a migration; nothing is connected.

    Names that the URL gives (of a schema, of a table) are in it. Of a store without a schema nothing is printed, and
    stderr says so.

    Exits with 0, or with 2 where the URL names no store.
    """
    store = made(url, timeout)
    sql = store.schema() if isinstance(store, HasSchema) else None
    if as_json:
        print_json({"store": kind_of(url), "sql": sql})
    elif sql is None:
        click.echo(f"The {kind_of(url)} store has no schema.", err=True)
    else:
        click.echo(sql, nl=not sql.endswith("\n"))
