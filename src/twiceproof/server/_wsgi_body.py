"""Reading a request's body from ``wsgi.input``, whole and within its bound (R11, R52)."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final, Protocol

from twiceproof.server._body import BadBody, BodyCopy, Framing, framing_of
from twiceproof.server._lifespan import logger
from twiceproof.server._wsgi_environ import Environ, octets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twiceproof.core._policy import Policy

PART: Final = 65_536
TOO_LARGE: Final = BadBody("request-too-large")
INCOMPLETE: Final = BadBody("body-incomplete")


class Input(Protocol):
    """What PEP 3333 promises of ``wsgi.input``."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to so many bytes, or all."""
        ...

    def readline(self, size: int = -1, /) -> bytes:
        """Return a line."""
        ...


def read_body(environ: Environ, limit: int) -> bytes | BadBody:
    """Return the body that the server delivers, or why it can't be used; the application gets it from memory."""
    copy = BodyCopy(limit)
    bad = read_rest(environ, environ["wsgi.input"], copy, copy, limit)
    if bad is not None:
        return bad
    body = copy.value()
    environ["wsgi.input"] = BytesIO(body)  # shares the bytes: no second copy (R11)
    environ["wsgi.input_terminated"] = True
    return body


def read_rest(environ: Environ, source: Input, copy: BodyCopy, rest: BodyCopy, limit: int) -> BadBody | None:
    """Read what is left of a body into ``copy`` and ``rest``; return why it can't be used, or None."""
    framing = framing_in(environ)
    if isinstance(framing, BadBody):
        return framing
    if max(copy.size, framing.length or 0) > limit:
        return TOO_LARGE
    try:
        for part in _parts(environ, source, framing, copy.size):
            copy.add(part)
            if rest is not copy:
                rest.add(part)
            if copy.size > limit:
                return TOO_LARGE
    except OSError as error:  # the client has gone, or its chunks make no sense
        logger.info("a request body could not be read: %s", type(error).__name__)
        return INCOMPLETE
    return None if framing.fits(copy.size) else INCOMPLETE


def framing_in(environ: Environ) -> Framing | BadBody:
    """Return what the environ says of the body's length, or why nobody can tell (R52)."""
    length: str = environ.get("CONTENT_LENGTH") or ""
    coding: str = environ.get("HTTP_TRANSFER_ENCODING") or ""
    headers = [(b"content-length", octets(length))] if length else []
    if coding and not length:
        if not environ.get("wsgi.input_terminated"):
            logger.warning(
                "this server hands a chunked body on as it is, so that its end can't be told; a request with a key "
                "needs a Content-Length here"
            )
            return INCOMPLETE
        headers.append((b"transfer-encoding", octets(coding)))
    framing = framing_of(headers)
    return INCOMPLETE if length and framing.length is None else framing


def _parts(environ: Environ, source: Input, framing: Framing, before: int) -> Iterator[bytes]:
    """Yield what is left after ``before`` bytes; a server that does not end the body itself is asked for no more."""
    if framing.length is not None:
        left = framing.length - before
        while left > 0 and (part := source.read(left)):
            left -= len(part)
            yield part
    elif environ.get("wsgi.input_terminated"):
        while part := source.read(PART):
            yield part


class Tee:
    """Stands in ``wsgi.input`` where the claim comes late: copies what is read before it (R11).

    ``recognise`` is asked at the first read for the policy that will want the copy, if any does.
    """

    __slots__ = ("_recognise", "_source", "_taken", "copy", "read_unseen")

    def __init__(self, source: Input, recognise: Callable[[], Policy | None]) -> None:
        self._source = source
        self._recognise: Callable[[], Policy | None] | None = recognise
        self._taken = False
        self.copy: BodyCopy | None = None
        self.read_unseen = False
        """Something was read that is not in the copy."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to so many bytes, or all."""
        return self._seen(self._source.read(size))

    def readline(self, size: int = -1, /) -> bytes:
        """Return a line, or the beginning of it."""
        return self._seen(self._source.readline(size))

    def readlines(self, hint: int = -1, /) -> list[bytes]:
        """Return the lines that are left; with a hint, at least so many bytes of them."""
        lines: list[bytes] = []
        size = 0
        for line in self:
            lines.append(line)
            size += len(line)
            if 0 < hint <= size:
                break
        return lines

    def __iter__(self) -> Iterator[bytes]:
        while line := self.readline():
            yield line

    def _seen(self, part: bytes) -> bytes:
        if self._recognise is not None:
            policy, self._recognise = self._recognise(), None
            if policy is not None:
                self.copy = BodyCopy(policy.max_request_bytes)
        if self.copy is not None:
            self.copy.add(part)
        elif part and not self._taken:
            self.read_unseen = True
        return part

    def take(self, environ: Environ, limit: int) -> bytes | BadBody:
        """Return the whole body, or why it can't be used; what nobody has read yet stays to be read."""
        copy, self.copy, self._recognise = self.copy or BodyCopy(limit), None, None
        self._taken = True
        rest = BodyCopy(limit) if copy.size else copy
        bad = read_rest(environ, self._source, copy, rest, limit)
        if bad is not None:
            return bad
        body = copy.value()
        self._source = BytesIO(body if rest is copy else rest.value())
        return body
