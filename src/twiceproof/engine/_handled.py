"""What a handler gave back, where there is no HTTP server between it and the engine."""

from __future__ import annotations

from twiceproof.core._lifecycle import Bypass
from twiceproof.core._messages import Response
from twiceproof.core._problems import UNPROTECTED


def checked_answer(answer: object) -> Response:
    """Return the answer if it is one; anything else is the handler's failure (CONTRACT 5)."""
    if not isinstance(answer, Response):
        msg = f"the handler returned {type(answer).__name__}; it must return a Response"
        raise TypeError(msg)
    return answer


def marked(answer: Response, bypass: Bypass) -> Response:
    """Return the answer of a run without protection; it says so where the store was down (R48)."""
    if bypass.unprotected:
        return Response(answer.status, [*answer.headers, UNPROTECTED], answer.body)
    return answer
