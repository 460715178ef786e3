"""What the suite stands on: records, lengths of time, and the questions that most tests ask."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pytest

from twiceproof.core._record import Found, Granted, Guarantee, Held, NewRecord, Record
from twiceproof.stores import Filter, Store

Advance: TypeAlias = Callable[[float], None]
"""Lets so many seconds pass on the store's clock."""

LEASE: Final = 1.0
KEEP: Final = 10.0
RETENTION: Final = 5.0
ONCE: Final = Guarantee.AT_MOST_ONCE
AGAIN: Final = Guarantee.AT_LEAST_ONCE

_numbers: Final = itertools.count(1)


def new_record(guarantee: Guarantee = ONCE, **changes: Any) -> NewRecord:
    """Return a record of an id that no other has."""
    number = next(_numbers)
    record = NewRecord(
        id=number.to_bytes(32, "big"),
        namespace="tests",
        principal=b"\x00principal\xff",
        operation="POST /orders",
        path=f"/orders/{number}",
        key=b"key-digest",
        fingerprint=b"\x01fingerprint",
        guarantee=guarantee,
        keep=KEEP,
    )
    return replace(record, **changes)


def near(moment: float) -> Any:
    """Equal but for the rounding of a clock, and for what a verb takes."""
    return pytest.approx(moment, abs=0.3)  # pyright: ignore[reportUnknownMemberType]  # pytest leaves it untyped


def kept(store: Store, id: bytes) -> Record:
    """Return the live record, which must be there."""
    record = store.get(id)
    assert record is not None
    return record


def expect_granted(answer: object) -> Granted:
    """Return the answer, which must be a grant."""
    assert type(answer) is Granted
    return answer


def expect_held(answer: object) -> Record:
    """Return the record of the answer, which must be `Held`."""
    assert type(answer) is Held
    return answer.record


def expect_found(answer: object) -> Record:
    """Return the record of the answer, which must be `Found`."""
    assert type(answer) is Found
    return answer.record


def timeless(record: Record) -> Record:
    """Return a record without the moment at which it was read, for comparison."""
    return replace(record, now=0.0)


def all_records(store: Store, filter: Filter | None = None, limit: int = 2) -> list[Record]:
    """Scan to the end, in pages of ``limit`` records."""
    records: list[Record] = []
    cursor = None
    while True:
        page = store.scan(filter or Filter(), cursor, limit)
        assert len(page.records) <= limit
        records += page.records
        cursor = page.cursor
        if cursor is None:
            return records
