"""Our own answers: problem documents (RFC 9457, CONTRACT 7)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, cast

from twiceproof.core._messages import Response

URN: Final = "urn:twiceproof:problem:"
REPLAYED: Final = (b"idempotent-replayed", b"true")
"""The marker: on every replay, whatever the status, and never on a first answer."""
UNPROTECTED: Final = (b"idempotency-unprotected", b"true")
"""On an answer that was given although the store was down (R48, ``fail_open``)."""
PROBLEM_JSON: Final = b"application/problem+json"
_COMMON: Final = (
    (b"content-type", PROBLEM_JSON),
    (b"content-language", b"en"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of the table of CONTRACT 7."""

    status: int
    title: str
    detail: str
    retryable: bool = False


PROBLEMS: Final[dict[str, Problem]] = {
    "idempotency-key-missing": Problem(
        400,
        "The Idempotency-Key header is missing",
        "This operation needs an Idempotency-Key header. Make one key per intent, for example a UUID, and send "
        "the same key on every retry of it.",
    ),
    "idempotency-key-invalid": Problem(
        400,
        "The Idempotency-Key header is not valid",
        "The Idempotency-Key header can't be used as it was sent (see 'reason'). Send exactly one key of 1 to 255 "
        "visible ASCII characters, bare or as a quoted string. Nothing was done.",
    ),
    "body-incomplete": Problem(
        400,
        "The request body did not arrive whole",
        "The body that arrived is not the one that the header fields announce. Nothing was done; send the request "
        "again with the same key.",
        retryable=True,
    ),
    "request-too-large": Problem(
        413,
        "The request body is too large for a request with a key",
        "The body is larger than this server fingerprints. Nothing was done; send a smaller body under a new key.",
    ),
    "in-progress": Problem(
        409,
        "A request with this key is still in progress",
        "An earlier request with this key has not finished. Wait as long as Retry-After says, then send the same "
        "request with the same key again.",
        retryable=True,
    ),
    "replay-unavailable": Problem(
        409,
        "The operation was completed, but its answer was not kept",
        "The first request with this key was carried out with the status in 'original_status', and its answer was "
        "not kept. Do not send it again under a new key; ask for the state of the resource instead.",
    ),
    "idempotency-key-reuse": Problem(
        422,
        "This key was used for another request",
        "This key belongs to a request with other content. Nothing was done. A retry must repeat the first request "
        "unchanged; a new intent needs a new key.",
    ),
    "outcome-unknown": Problem(
        500,
        "Nobody knows whether the operation took effect",
        "The server lost the first request with this key while it was running. The operation may have taken effect; "
        "ask for its state before you start it again under a new key.",
    ),
    "store-unavailable": Problem(
        503,
        "The store of idempotency keys can't be reached",
        "The server could not look this key up. Nothing was done; send the same request with the same key again "
        "after Retry-After.",
        retryable=True,
    ),
}
"""Every answer of ours that carries a code."""


def problem(
    code: str,
    *,
    docs_url: str | None = None,
    status: int | None = None,
    retry_after: int | None = None,
    **members: object,
) -> Response:
    """Return the problem document for a code of `PROBLEMS`, with extra members; ``status`` in place of its own."""
    row = PROBLEMS[code]
    status = status or row.status
    document: dict[str, object] = {
        "type": f"{docs_url}#{code}" if docs_url else URN + code,
        "title": row.title,
        "status": status,
        "detail": row.detail,
        "code": code,
        "retryable": row.retryable,
        **members,
    }
    headers = [*_COMMON]
    if docs_url:
        headers.append((b"link", f'<{docs_url}>; rel="describedby"'.encode("ascii", "replace")))
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after))
    return _document(status, headers, document)


def unauthorized() -> Response:
    """Return the 401 for a request for which the principal resolver finds nobody (R12)."""
    document: dict[str, object] = {
        "type": "about:blank",
        "title": "Unauthorized",
        "status": 401,
        "detail": "The account that this request acts for is not known. Send valid credentials and the same key again.",
    }
    return _document(401, [*_COMMON, (b"www-authenticate", b"Bearer")], document)


def _document(status: int, headers: list[tuple[bytes, bytes]], document: dict[str, object]) -> Response:
    body = json.dumps(document).encode()
    headers.append((b"content-length", b"%d" % len(body)))
    return Response(status, headers, body)


def is_ours(response: Response) -> bool:
    """Whether an answer is a refusal by an inner twiceproof: it carries one of our codes (R36).

    A marker alone says nothing: other APIs mark their replays likewise, and the effect behind one is real.
    """
    if response.status < 400 or response.header(b"content-type") != PROBLEM_JSON or not response.body:
        return False
    try:
        document: object = json.loads(response.body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    members = cast("dict[str, object]", document)
    code = members.get("code")
    return isinstance(code, str) and code in PROBLEMS and "retryable" in members
