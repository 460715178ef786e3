"""The opaque place between two pages of `scan`: after the record that was created then, with this id."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Final

_MOMENT: Final = struct.Struct(">d")


def encode_cursor(created_at: float, id: bytes) -> str:
    """Return the cursor that continues after this record."""
    return base64.urlsafe_b64encode(_MOMENT.pack(created_at) + id).decode("ascii")


def decode_cursor(cursor: str) -> tuple[float, bytes]:
    """Return what `encode_cursor` was given; raise `ValueError` for anything else."""
    try:
        packed = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        return _MOMENT.unpack_from(packed)[0], packed[_MOMENT.size :]
    except (UnicodeEncodeError, binascii.Error, struct.error):
        raise ValueError("This cursor is not one that scan returned; begin again without a cursor.") from None


def checked_limit(limit: int) -> int:
    """Return ``limit``, or raise `ValueError` where it asks for no record at all."""
    if limit < 1:
        raise ValueError(f"A limit of {limit} asks for nothing; it must be at least 1.")
    return limit
