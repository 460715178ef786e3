"""The opaque place between two pages of `scan`: after the record with this number, and this id among equals."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import Final

_NUMBER: Final = struct.Struct(">d")


def encode_cursor(number: float, id: bytes = b"") -> str:
    """Return the cursor that continues after this place."""
    return base64.urlsafe_b64encode(_NUMBER.pack(number) + id).decode("ascii")


def decode_cursor(cursor: str) -> tuple[float, bytes]:
    """Return what `encode_cursor` was given; raise `ValueError` for anything else."""
    try:
        packed = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        number: float = _NUMBER.unpack_from(packed)[0]
    except (UnicodeEncodeError, binascii.Error, struct.error):
        number, packed = math.nan, b""
    if not math.isfinite(number):
        raise ValueError("This cursor is not one that scan returned; begin again without a cursor.")
    return number, packed[_NUMBER.size :]


def checked_limit(limit: int) -> int:
    """Return ``limit``, or raise `ValueError` where it asks for no record at all."""
    if limit < 1:
        raise ValueError(f"A limit of {limit} asks for nothing; it must be at least 1.")
    return limit
