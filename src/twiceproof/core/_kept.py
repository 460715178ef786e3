"""Which part of an answer is stored, and how it is given again (R25, R46)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twiceproof.core._answer import BODILESS
from twiceproof.core._messages import Response
from twiceproof.core._problems import REPLAYED

if TYPE_CHECKING:
    from twiceproof.core._policy import Policy

DROPPED: Final = frozenset(
    {
        # hop by hop, RFC 9110 §7.6.1
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        # about this message, not about the answer
        b"age",
        b"alt-svc",
        b"content-length",
        b"date",
        b"server",
        b"server-timing",
        b"traceparent",
        b"tracestate",
        b"via",
        b"x-correlation-id",
        b"x-request-id",
        # about this client's session
        b"authentication-info",
        b"clear-site-data",
        b"set-cookie",
        b"www-authenticate",
    }
)
DROPPED_PREFIXES: Final = (b"access-control-", b"idempot", b"ratelimit", b"signature", b"x-ratelimit-")


def to_store(response: Response, policy: Policy) -> Response:
    """Return what of an answer is stored: status, body, and the fields that R46 keeps, in order with repeats.

    Where the body is not kept (R43), only the status and a Location are (R26).
    """
    body = b"" if response.status in BODILESS else response.body  # what such an answer carries was never an answer
    if body is None or not policy.store_body or len(body) > policy.max_response_bytes:
        return _without_body(response, policy)
    keep, drop = _encoded(policy.keep_headers), _encoded(policy.drop_headers)
    kept: list[tuple[bytes, bytes]] = []
    for name, value in response.headers:
        lower, dropped = _named(name)
        if dropped:
            if lower == b"connection":
                drop = drop.union(option.strip().lower() for option in value.split(b","))
            if lower not in keep:
                continue
        elif lower == b"content-type" and value.lstrip().lower().startswith(b"text/event-stream"):
            return _without_body(response, policy)
        kept.append((name, value))
    if drop:
        kept = [(name, value) for name, value in kept if name.lower() not in drop]
    return Response(response.status, kept, body)


def _without_body(response: Response, policy: Policy) -> Response:
    location = None if "location" in policy.drop_headers else response.header(b"location")
    return Response(response.status, [] if location is None else [(b"location", location)], None)


@lru_cache(maxsize=256)  # an application has few names that come often
def _named(name: bytes) -> tuple[bytes, bool]:
    """Return a name in lower case, and whether its fields are dropped (R46)."""
    lower = name.lower()
    return lower, lower in DROPPED or lower.startswith(DROPPED_PREFIXES)


@lru_cache(maxsize=64)
def _encoded(names: frozenset[str]) -> frozenset[bytes]:
    return frozenset(name.encode("ascii", "replace") for name in names)


def to_replay(stored: Response) -> Response:
    """Return a stored answer as it is given again: with the marker and its own Content-Length (R25)."""
    headers = [*stored.headers, REPLAYED]
    if stored.status in BODILESS:  # RFC 9110 §6.4.1, §8.6: a byte more would be taken for the next answer's
        return Response(stored.status, headers, b"")
    body = stored.body or b""
    headers.append((b"content-length", b"%d" % len(body)))
    return Response(stored.status, headers, body)
