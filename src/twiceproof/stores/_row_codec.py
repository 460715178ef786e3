"""Row <-> bytes, for stores that keep a row as one value. The first byte is the format number (R53).

It numbers the form of the bytes; the record's own format, which says what its fields mean (R17), is one of them.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from twiceproof.core._record import Guarantee, State
from twiceproof.errors import UnknownFormat
from twiceproof.stores._rows import Row, Subject

_FORM: Final = 1
_HEAD: Final = struct.Struct(">BHQI8d")  # form, format, number, attempts, and eight moments
_SIZE: Final = struct.Struct(">I")
_NONE: Final = 0xFFFFFFFF  # the size of a field that is not set
_FIELDS: Final = 13
_TEXT: Final = ("utf-8", "surrogatepass")


def encode_row(row: Row) -> bytes:
    """Return the stored form of a row."""
    subject = row.subject
    head = _HEAD.pack(
        _FORM,
        row.format,
        row.number,
        row.attempts,
        row.expires_at,
        row.lease_until,
        subject.created_at,
        row.granted_at,
        *map(_packed, (row.completed_at, row.next_attempt_at, row.reconcile_until, row.reconcile_asked_at)),
    )
    fields = (
        subject.namespace.encode(*_TEXT),
        subject.principal,
        subject.operation.encode(*_TEXT),
        subject.path.encode(*_TEXT),
        subject.key,
        subject.fingerprint,
        subject.guarantee.encode(),
        subject.incarnation,
        row.state.encode(),
        row.nonce,
        None if row.cause is None else row.cause.encode(*_TEXT),
        row.reconcile_nonce,
        row.answer,
    )
    parts = [head]
    for field in fields:
        parts += (_SIZE.pack(_NONE),) if field is None else (_SIZE.pack(len(field)), field)
    return b"".join(parts)


def decode_row(stored: bytes) -> Row:
    """Return what `encode_row` was given; raise `UnknownFormat` for another form, and for what was cut short."""
    if not stored or stored[0] != _FORM:
        raise UnknownFormat
    try:
        return _decoded(stored)
    except (struct.error, ValueError):  # a field too short; a state or guarantee of another release
        raise UnknownFormat from None


def _decoded(stored: bytes) -> Row:
    _, format, number, attempts, expires_at, lease_until, created_at, granted_at, *moments = _HEAD.unpack_from(stored)
    completed_at, next_attempt_at, reconcile_until, reconcile_asked_at = map(_unpacked, moments)
    fields = _fields(stored)
    namespace, principal, operation, path, key, fingerprint, guarantee, incarnation, state, nonce = map(
        _set, fields[:10]
    )
    cause, reconcile_nonce, answer = fields[10:]
    subject = Subject(
        namespace.decode(*_TEXT),
        principal,
        operation.decode(*_TEXT),
        path.decode(*_TEXT),
        key,
        fingerprint,
        Guarantee(guarantee.decode()),
        incarnation,
        created_at,
    )
    return Row(
        subject,
        State(state.decode()),
        number,
        nonce,
        lease_until,
        attempts,
        granted_at,
        expires_at,
        completed_at,
        next_attempt_at,
        None if cause is None else cause.decode(*_TEXT),
        reconcile_nonce,
        reconcile_until,
        reconcile_asked_at,
        answer,
        format,
    )


def _fields(stored: bytes) -> list[bytes | None]:
    fields: list[bytes | None] = []
    at = _HEAD.size
    for _ in range(_FIELDS):
        size: int = _SIZE.unpack_from(stored, at)[0]
        at += _SIZE.size
        if size == _NONE:
            fields.append(None)
            continue
        if at + size > len(stored):
            raise UnknownFormat
        fields.append(stored[at : at + size])
        at += size
    if at != len(stored):
        raise UnknownFormat
    return fields


def _set(field: bytes | None) -> bytes:
    if field is None:
        raise UnknownFormat
    return field


def _packed(moment: float | None) -> float:
    return math.nan if moment is None else moment


def _unpacked(moment: float) -> float | None:
    return None if math.isnan(moment) else moment
