"""The neutral HTTP messages: the only two that the rules know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True)
class Request:
    """A request as the rules see it.

    ``method`` as sent (methods are case-sensitive, RFC 9110 §9.1); ``raw_path`` the path of the request
    line before any decoding, without the query; ``query`` without its question mark; ``headers`` the field
    lines in order, with repeats.
    """

    method: str
    raw_path: bytes
    query: bytes = b""
    headers: Headers = ()
    body: bytes = b""


@dataclass(slots=True)
class Response:
    """An answer; a ``body`` of None says that it was sent but not kept (R26)."""

    status: int
    headers: Headers = ()
    body: bytes | None = b""

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a field, its name in lower case, or None."""
        for field, value in self.headers:
            if field.lower() == name:
                return value
        return None
