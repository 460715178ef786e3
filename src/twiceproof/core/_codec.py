"""Response <-> bytes as stored. The first byte is the format number; readers refuse what they don't know (R53)."""

from __future__ import annotations

import struct
from typing import Final

from twiceproof.core._messages import Response
from twiceproof.errors import UnknownFormat

_FORMAT: Final = 1
_HEAD = struct.Struct(">BBHH")  # format, body kept, status, number of fields
_SIZES = struct.Struct(">II")  # length of a field's name and of its value
_KEPT: Final = 1  # any other bit is of a format to come


def encode(response: Response) -> bytes:
    """Return the stored form; a body of None is stored as *not kept* (R26)."""
    kept = response.body is not None
    parts = [_HEAD.pack(_FORMAT, _KEPT if kept else 0, response.status, len(response.headers))]
    for name, value in response.headers:
        parts += (_SIZES.pack(len(name), len(value)), name, value)
    if response.body:
        parts.append(response.body)
    return b"".join(parts)


def decode(stored: bytes) -> Response:
    """Return what `encode` was given, or raise `UnknownFormat`."""
    if not stored or stored[0] != _FORMAT:
        raise UnknownFormat
    try:
        _, flags, status, count = _HEAD.unpack_from(stored)
        at = _HEAD.size
        headers: list[tuple[bytes, bytes]] = []
        for _ in range(count):
            name_size, value_size = _SIZES.unpack_from(stored, at)
            at += _SIZES.size
            middle, end = at + name_size, at + name_size + value_size
            if end > len(stored):
                raise UnknownFormat
            headers.append((stored[at:middle], stored[middle:end]))
            at = end
    except struct.error:
        raise UnknownFormat from None
    if flags == _KEPT:
        return Response(status, headers, stored[at:])
    if flags or at < len(stored):
        raise UnknownFormat
    return Response(status, headers, None)
