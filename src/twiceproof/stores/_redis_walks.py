"""What takes several round trips, each of them short: one body for both colours, which yields verbs.

A Redis server does one thing at a time, so nobody may keep it for long.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from twiceproof.core._record import ClaimRef, Record
from twiceproof.stores._cursor import decode_cursor, encode_cursor
from twiceproof.stores._protocol import Filter, Page, Purged
from twiceproof.stores._redis_verbs import Verb, Verbs

T = TypeVar("T")
Walk: TypeAlias = Generator[Verb[Any], Any, T]

_RENEWED: Final = 500  # in one script: about 5 ms
_LOOKED_AT: Final = 200
_SWEPT: Final = 100


def renew(verbs: Verbs, claims: Sequence[ClaimRef], lease: float) -> Walk[Sequence[ClaimRef]]:
    """See `Store.renew`."""
    fenced: list[ClaimRef] = []
    for at in range(0, len(claims), _RENEWED):
        fenced += yield verbs.renew(claims[at : at + _RENEWED], lease)
    return fenced


def scan(verbs: Verbs, filter: Filter, cursor: str | None, limit: int, patience: float) -> Walk[Page]:
    """See `Store.scan`. After ``patience`` seconds the page ends where it is, be it empty."""
    ends_at = time.monotonic() + patience
    last: tuple[int, bytes] = (-1, b"")
    if cursor is not None:
        number, after = decode_cursor(cursor)
        last = (int(number), after)
    found: list[tuple[tuple[int, bytes], Record]] = []
    skip = 0
    while True:
        listed = yield verbs.listed(last[0], skip, _LOOKED_AT)
        left = [place for place in listed if place > last]
        skip = 0 if left else skip + len(listed)  # all of one microsecond, and seen before
        while left:
            seen, selected = yield verbs.selected(filter, [id for _, id in left], limit + 1 - len(found))
            found += [(left[at], record) for at, record in selected]
            if len(found) > limit:
                return Page([record for _, record in found[:limit]], _cursor(found[limit - 1][0]))
            last, left = left[seen - 1], left[seen:]
            if time.monotonic() > ends_at:
                return Page([record for _, record in found], _cursor(last))
        if len(listed) < _LOOKED_AT:
            return Page([record for _, record in found], None)


def _cursor(place: tuple[int, bytes]) -> str:
    return encode_cursor(float(place[0]), place[1])


def purge(verbs: Verbs, limit: int) -> Walk[Purged]:
    """See `Store.purge`."""
    records = unsettled = skip = 0
    while records < limit:
        names = yield verbs.due(skip, min(_SWEPT, limit - records))
        if not names:
            break
        deleted, doubtful, passed = yield verbs.sweep(names)
        records, unsettled, skip = records + deleted, unsettled + doubtful, skip + passed
    return Purged(records, unsettled)
