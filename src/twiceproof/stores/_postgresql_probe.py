"""What a new connection is asked first: whether there is a table, and of which schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from twiceproof.errors import StoreUnavailable, UnknownFormat
from twiceproof.stores._postgresql_address import Address
from twiceproof.stores._postgresql_errors import missing_table
from twiceproof.stores._postgresql_statements import SCHEMA_VERSION
from twiceproof.stores._postgresql_verbs import Row

PROBE: Final = """
SELECT to_regclass($1::text) IS NOT NULL, obj_description(to_regclass($1::text), 'pg_class')
"""
_MARK: Final = re.compile(r"twiceproof schema (\d+)")


def probed(address: Address, rows: Sequence[Row]) -> None:
    """Raise where the verbs can't work: `StoreUnavailable` without the table, `UnknownFormat` where it is a later."""
    there, comment = rows[0]
    if not there:
        raise StoreUnavailable(missing_table(address.where))
    mark = _MARK.search(comment or "")
    if mark is None:
        mend = "'twiceproof store init URL' writes its comment anew" if comment is None else "remove its comment first"
        raise StoreUnavailable(
            f"{address.where}: the table {address.name} does not say of which schema it is;"
            f" if it is twiceproof's, {mend}."
        )
    if int(mark[1]) > SCHEMA_VERSION:
        raise UnknownFormat(
            f"{address.where}: the table {address.name} was made by a later release of twiceproof; upgrade this one."
        )
