"""Which part of an answer is stored, and how it is given again (R25, R46)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
_BODILESS: Final = frozenset({204, 304})


def to_store(response: Response, policy: Policy) -> Response:
    """Return what of an answer is stored: status, body, and the fields that R46 keeps, in order with repeats.

    Where the body is not kept, only the status and a Location are (R26).
    """
    if response.body is None or not policy.store_body:
        location = response.header(b"location")
        return Response(response.status, [] if location is None else [(b"location", location)], None)
    keep = {name.encode("ascii", "replace") for name in policy.keep_headers}
    drop = {name.encode("ascii", "replace") for name in policy.drop_headers}
    kept: list[tuple[bytes, bytes]] = []
    for name, value in response.headers:
        lower = name.lower()
        if lower == b"connection":
            drop.update(option.strip().lower() for option in value.split(b","))
        if lower in keep or not (lower in DROPPED or lower.startswith(DROPPED_PREFIXES)):
            kept.append((name, value))
    if drop:
        kept = [(name, value) for name, value in kept if name.lower() not in drop]
    return Response(response.status, kept, response.body)


def to_replay(stored: Response) -> Response:
    """Return a stored answer as it is given again: with the marker and its own Content-Length (R25)."""
    headers = [*stored.headers, REPLAYED]
    if stored.body is not None and not (stored.status in _BODILESS and not stored.body):
        headers.append((b"content-length", b"%d" % len(stored.body)))
    return Response(stored.status, headers, stored.body)
