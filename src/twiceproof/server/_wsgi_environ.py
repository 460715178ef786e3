"""A WSGI environ (PEP 3333) as the neutral request that the rules know, and an answer of ours as WSGI sends it."""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from twiceproof.core._lifecycle import field_names
from twiceproof.core._messages import Request
from twiceproof.core._path import encode_path
from twiceproof.server._setup import tell_no_raw_path

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse

    from twiceproof.core._messages import Headers, Response
    from twiceproof.core._policy import Policy

Environ = dict[str, Any]

_TARGETS: Final = ("REQUEST_URI", "RAW_URI")
"""Where servers keep the target of the request line as it was sent; PEP 3333 knows no name for it."""
_ORIGIN: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*")
_OWN_NAMES: Final = {"CONTENT_TYPE": b"content-type", "CONTENT_LENGTH": b"content-length"}


def make_request(environ: Environ, body: bytes) -> Request:
    """Return the neutral request of an environ."""
    query = octets(environ.get("QUERY_STRING", ""))
    return Request(environ["REQUEST_METHOD"], raw_path(environ), query, headers_of(environ), body)


def octets(text: str) -> bytes:
    """Return the bytes behind a native string; what no server may put there stays recognisably odd."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def headers_of(environ: Environ) -> Headers:
    """Return the header fields, their names in lower case; the server has joined repeated lines."""
    headers = [(name, octets(environ[variable])) for variable, name in _OWN_NAMES.items() if environ.get(variable)]
    for variable, value in environ.items():
        if variable.startswith("HTTP_") and variable[5:] not in _OWN_NAMES and isinstance(value, str):
            headers.append((octets(variable[5:].replace("_", "-").lower()), octets(value)))
    return headers


def key_fields(environ: Environ, policy: Policy) -> Headers:
    """Return the fields that may bear the key, and no other: most requests have none of them (R2)."""
    pairs = key_variables(field_names(policy))
    return [(name, octets(environ[variable])) for variable, name in pairs if variable in environ]


@lru_cache(maxsize=64)
def key_variables(names: tuple[bytes, ...]) -> tuple[tuple[str, bytes], ...]:
    """Return where an environ keeps each of these fields."""
    return tuple(("HTTP_" + name.decode().upper().replace("-", "_"), name) for name in names)


def raw_path(environ: Environ) -> bytes:
    """Return the path as it was sent, cut at the query, the mount prefix included (R16).

    What the server shows of the request line counts where it is this path: a middleware may have rewritten it. Else
    the decoded path is encoded again.
    """
    root, info = octets(environ.get("SCRIPT_NAME", "")), octets(environ.get("PATH_INFO", ""))
    sent = _as_sent(environ)
    if sent is not None:
        decoded = unquote_to_bytes(sent)
        if decoded == root + info:
            return sent
        if decoded == info:  # a prefix that only the environ knows, as a proxy's
            return _encode(root) + sent
    tell_no_raw_path()
    return _encode(root + info)


def own_path(environ: Environ) -> bytes:
    """Return the path below the mount prefix, for the policy table: spelled from what the application routes by."""
    return _encode(octets(environ.get("PATH_INFO", "")))


def _as_sent(environ: Environ) -> bytes | None:
    for name in _TARGETS:
        target: object = environ.get(name)
        if isinstance(target, str) and target:
            sent = octets(target).partition(b"?")[0]
            if not sent.startswith(b"/"):
                sent = _ORIGIN.sub(b"", sent, count=1) or b"/"  # absolute-form, RFC 9112 §3.2.2
            return sent
    return None


def _encode(path: bytes) -> bytes:
    return encode_path(path.decode("utf-8", "surrogateescape"))


def send_response(environ: Environ, start_response: StartResponse, response: Response) -> Iterable[bytes]:
    """Send one of our own answers or a replay."""
    start_response(status_line(response.status), native(response.headers))
    return [response.body or b""] if environ["REQUEST_METHOD"] != "HEAD" else []


def native(headers: Headers) -> list[tuple[str, str]]:
    """Return header fields as WSGI has them."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


@lru_cache(maxsize=128)
def status_line(status: int) -> str:
    """Return a status with its usual reason: PEP 3333 wants one."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Status"
