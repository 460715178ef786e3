"""Reading a request's body whole, within its bound (R11, R52)."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twiceproof.core._messages import Headers
    from twiceproof.server._exchange import Message, Receive


MOST_DIGITS: Final = 18
"""A length with more digits than that is too large for every limit, and need not be read to its end."""


@dataclass(slots=True)
class BadBody:
    """The body can't be used; ``code`` is the refusal."""

    code: str


@dataclass(slots=True)
class Gone:
    """The client left before its body was whole."""

    message: Message


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes | BadBody | Gone:
    """Return the body that the server delivers, or why it can't be used."""
    framing = framing_of(headers)
    if framing.length is not None and framing.length > limit:
        return BadBody("request-too-large")  # R11
    message = await receive()
    copy: BodyCopy | None = None
    while message["type"] == "http.request":
        part: bytes = message.get("body", b"")
        size = len(part) + (copy.size if copy else 0)
        if size > limit:
            return BadBody("request-too-large")  # R11
        if copy is not None:
            copy.add(part)
        if not message.get("more_body", False):
            if size != framing.length and not framing.fits(size):
                return BadBody("body-incomplete")  # R52
            return copy.value() if copy is not None else bytes(part)
        if copy is None:
            copy = BodyCopy(limit)
            copy.add(part)
        message = await receive()
    return Gone(message)


class BodyCopy:
    """A body as it arrives, copied at most once however many parts it has (R11); beyond ``limit`` only its size."""

    __slots__ = ("_first", "_limit", "_rest", "size")

    def __init__(self, limit: int) -> None:
        self._first = b""
        self._limit = limit
        self._rest: BytesIO | None = None
        self.size = 0

    def add(self, part: bytes) -> None:
        """Take in the next part."""
        before = self.size
        self.size += len(part)
        if self.size > self._limit:
            self._first, self._rest = b"", None
        elif not before:
            self._first = bytes(part)
        elif part:
            if self._rest is None:
                self._rest = BytesIO()  # it grows in place and hands its buffer out: one copy, not two
                self._rest.write(self._first)
                self._first = b""
            self._rest.write(part)

    def value(self) -> bytes:
        """Return what has arrived."""
        return self._first if self._rest is None else self._rest.getvalue()


@dataclass(slots=True)
class Framing:
    """What the header fields say about the body: its length, and whether a server may have lost it (R52)."""

    length: int | None
    losable: bool

    def fits(self, size: int) -> bool:
        """Whether a body of this size may be the one announced."""
        if self.losable and size == 0:
            return False
        return self.length is None or self.length == size


def framing_of(headers: Headers) -> Framing:
    """Return the framing that the fields announce; their names are in lower case, as ASGI has them."""
    fields = dict(headers)
    if b"transfer-encoding" in fields:
        return Framing(None, losable=b"upgrade" in fields)  # some servers drop the body beside an Upgrade
    length = fields.get(b"content-length", b"")
    return Framing(int(length[:MOST_DIGITS]) if length.isdigit() else None, losable=False)
