"""An answer's body as it passes by: copied while it is small enough to be stored (R43)."""

from __future__ import annotations

from typing import Final

from twiceproof.core._messages import Headers, Response

BODILESS: Final = frozenset({204, 304})
"""Statuses whose answers have no body, whatever length they announce (RFC 9110 §6.4.1)."""


MOST_DIGITS: Final = 18
"""No answer is as long as a number of more digits says."""


class AnswerCopy:
    """The body of an answer that goes out in parts; beyond ``most`` bytes only its size is known."""

    __slots__ = ("_most", "_parts", "size")

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[bytes] | None = []
        self.size = 0

    def add(self, part: bytes) -> None:
        """Take in the next part."""
        self.size += len(part)
        if self._parts is not None:
            if self.size > self._most:
                self._parts = None
            else:
                self._parts.append(bytes(part))

    def drop(self) -> None:
        """Keep nothing: the body goes another way, or is not needed any more."""
        self._parts = None

    def response(self, status: int, headers: Headers) -> Response:
        """Return the answer that has gone by; its body is None where it can't be kept (R26, R43, R50)."""
        response = Response(status, headers, None)
        if self._parts is None:
            return response
        length = announced_length(response)
        if length is None or length == self.size:  # else its client saw a broken connection
            response.body = b"".join(self._parts)
        return response


def announced_length(response: Response) -> int | None:
    """Return the length of the body that the head of an answer announces; None where it says nothing of it."""
    return length_of(response.status, response.header(b"content-length"))


def length_of(status: int, field: bytes | None) -> int | None:
    """Return the length that a Content-Length announces beside a status; None where that says nothing of the body."""
    if field is None or status in BODILESS:
        return None
    digits = field.strip()
    return int(digits[:MOST_DIGITS]) if digits.isdigit() else None
