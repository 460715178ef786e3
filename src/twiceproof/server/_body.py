"""Reading a request's body whole, within its bound (R11, R52)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twiceproof.core._messages import Headers
    from twiceproof.server._exchange import Message, Receive


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
    framing = Framing(headers)
    if framing.length is not None and framing.length > limit:
        return BadBody("request-too-large")  # R11
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return Gone(message)
        chunk: bytes = message.get("body", b"")
        if chunk:
            size += len(chunk)
            if size > limit:
                return BadBody("request-too-large")  # R11
            chunks.append(chunk)
        if not message.get("more_body", False):
            break
    if not framing.fits(size):
        return BadBody("body-incomplete")  # R52
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class Framing:
    """What the header fields say about the body's length."""

    __slots__ = ("_doubtful", "length")

    def __init__(self, headers: Headers) -> None:
        self.length: int | None = None
        chunked = upgrade = False
        for name, value in headers:
            lower = name.lower()
            if lower == b"content-length":
                self.length = int(value) if value.isdigit() else None
            elif lower == b"transfer-encoding":
                chunked = True
            elif lower == b"upgrade":
                upgrade = True
        self._doubtful = chunked and upgrade
        if chunked:
            self.length = None

    def fits(self, size: int) -> bool:
        """Whether a body of this size may be the one announced; some servers lose it where Upgrade is sent (R52)."""
        if self._doubtful and size == 0:
            return False
        return self.length is None or self.length == size
