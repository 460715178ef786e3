"""What a reconcile hook gave back."""

from __future__ import annotations

from twiceproof.core._codec import encode
from twiceproof.core._outcome import Completed, DontKnow, NothingHappened, Verdict
from twiceproof.engine._options import logger


def checked_verdict(verdict: object) -> Verdict:
    """Return a hook's answer if it is a verdict that can be carried out, else *don't know* (R28)."""
    match verdict:
        case NothingHappened() | DontKnow():
            return verdict
        case Completed(response):
            try:
                encode(response)
            except Exception:  # noqa: BLE001  # whatever is wrong with it
                logger.exception("the reconcile hook's answer can't be stored; give a Response with bytes in it")
                return DontKnow()
            return verdict
        case _:
            logger.error("the reconcile hook returned %s, which is no verdict", type(verdict).__name__)
            return DontKnow()
