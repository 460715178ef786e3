"""An HTTP client that shows what real ones hide: it holds back the last byte, cuts the connection, repeats a field."""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

PATIENCE: Final = 30.0
"""Seconds that we wait for any one answer."""

Fields = Iterable[tuple[str, str]]


class Lost(Exception):
    """The connection ended, or our patience, before the answer was there."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came over the wire."""

    status: int
    fields: tuple[tuple[str, str], ...]
    body: bytes

    def field(self, name: str) -> str | None:
        """Return the first value of a header field."""
        return next((value for known, value in self.fields if known.lower() == name.lower()), None)

    @property
    def replayed(self) -> bool:
        """Whether it bears the marker of a replay (R25)."""
        return self.field("Idempotent-Replayed") == "true"

    @property
    def document(self) -> dict[str, Any]:
        """The body as a JSON object; empty where it is none."""
        try:
            document: Any = json.loads(self.body)
        except ValueError:
            return {}
        return cast("dict[str, Any]", document) if isinstance(document, dict) else {}

    @property
    def code(self) -> str:
        """The code of a problem document (CONTRACT 7), or nothing."""
        if self.status < 400 or self.field("Content-Type") != "application/problem+json":
            return ""
        return str(self.document.get("code", ""))

    def __str__(self) -> str:
        code = "" if (self.status, self.code) == (409, "in-progress") else self.code
        words = (str(self.status), code, "replayed" if self.replayed else "")
        return " ".join(word for word in words if word)


class Sent:
    """A request on its own connection. What was held back goes with `release`; then the answer can be read."""

    def __init__(self, connection: socket.socket, held: bytes) -> None:
        self._connection = connection
        self._held = held

    def release(self) -> None:
        """Send what was held back."""
        held, self._held = self._held, b""
        try:
            self._connection.sendall(held)
        except OSError as error:
            raise Lost(f"the connection broke before the request was sent: {error}") from error

    def reply(self) -> Reply:
        """Read the answer, and close."""
        if self._held:
            self.release()
        response = HTTPResponse(self._connection)
        try:
            response.begin()
            return Reply(response.status, tuple(response.getheaders()), response.read())
        except (OSError, HTTPException) as error:
            raise Lost(f"no answer came: {str(error) or type(error).__name__}") from error
        finally:
            response.close()
            self._connection.close()

    @property
    def answered(self) -> bool:
        """Whether the answer has begun to arrive, or the connection ended."""
        return bool(select.select([self._connection], [], [], 0)[0])

    def cut(self) -> None:
        """Break the connection without reading: the other side sees a reset, as when a network goes away."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class Wire:
    """Sends requests to one server, each on a new connection."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.address = (parts.hostname, parts.port or 80)
        self.patience = patience

    def send(self, method: str, target: str, fields: Fields = (), body: bytes = b"", *, hold: int = 0) -> Sent:
        """Send a request, all but its last ``hold`` bytes. Raises `Lost` where nobody listens."""
        request = compose(method, target, (("Host", "{}:{}".format(*self.address)), *fields), body)
        ready, held = request[: len(request) - hold], request[len(request) - hold :]
        try:
            connection = socket.create_connection(self.address, timeout=self.patience)
        except OSError as error:
            raise Lost(f"no connection to {self.address[0]}:{self.address[1]}: {error}") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the held byte must leave at once
            connection.sendall(ready)
        except OSError as error:
            connection.close()
            raise Lost(f"the connection broke before the request was sent: {error}") from error
        return Sent(connection, held)

    def ask(self, method: str, target: str, fields: Fields = (), body: bytes = b"") -> Reply:
        """Send a request and read its answer."""
        return self.send(method, target, fields, body).reply()


def compose(method: str, target: str, fields: Fields, body: bytes) -> bytes:
    """Return a request as bytes; fields go out as given, in order and with repeats."""
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields]
    if body or method in ("POST", "PATCH", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    lines.append("Connection: close")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
