"""The table of the PostgreSQL store: what makes it, and what its name is in a statement."""

from __future__ import annotations

import re
from typing import Final

from twiceproof.errors import ConfigurationError
from twiceproof.stores._postgresql_asked import COLUMNS, OPTIONAL
from twiceproof.stores._postgresql_statements import SCHEMA_VERSION

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
_LONGEST: Final = 48  # PostgreSQL cuts names at 63 bytes, and those of our indexes are longer than the table's

INDEXES: Final = {"expiry": "expires_at", "age": "created_at"}
"""What each index is of; see `index_name`."""


def index_name(table: str, of: str) -> str:
    """Return the name of one of a table's indexes."""
    return f"{table}_{of}"


def full_name(schema: str, table: str) -> str:
    """Return the quoted name for statements, or raise `ConfigurationError` where it can't be one."""
    for option, name in (("schema", schema), ("table", table)):
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            raise ConfigurationError(
                f"{option}={name!r} must be a name of at most {_LONGEST} ASCII letters, digits, _ and $,"
                " and begin with a letter or _."
            )
    return f'"{schema}"."{table}"'


def schema_sql(schema: str, table: str) -> str:
    """Return the SQL that makes what is missing and leaves what is there; it may be run again at any time (R54)."""
    name = full_name(schema, table)
    columns = ",\n".join(f"    {column} {kind}{_rest(column)}" for column, kind in COLUMNS.items())
    indexes = "\n".join(
        f'CREATE INDEX IF NOT EXISTS "{index_name(table, of)}" ON {name} ({column});' for of, column in INDEXES.items()
    )
    return f"""\
DO $twiceproof$ BEGIN
    IF to_regnamespace('"{schema}"') IS NULL THEN -- its mere mention needs a right on the database
        CREATE SCHEMA IF NOT EXISTS "{schema}";
    END IF;
END $twiceproof$;
CREATE TABLE IF NOT EXISTS {name} (
{columns}
);
{indexes}
DO $twiceproof$ BEGIN
    IF obj_description('{name}'::regclass, 'pg_class') IS NULL THEN
        COMMENT ON TABLE {name} IS
            'twiceproof schema {SCHEMA_VERSION}: one row for each key. Moments are seconds since 1970.';
    END IF;
END $twiceproof$;
"""


def _rest(column: str) -> str:
    if column == "id":
        return " PRIMARY KEY"
    return "" if column in OPTIONAL else " NOT NULL"
