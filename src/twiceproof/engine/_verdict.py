"""What a reconcile hook gave back."""

from __future__ import annotations

from twiceproof.core._outcome import Completed, DontKnow, NothingHappened, Verdict
from twiceproof.engine._options import logger


def checked_verdict(verdict: object) -> Verdict:
    """Return a hook's answer if it is a verdict, else *don't know* (R28)."""
    if isinstance(verdict, Completed | NothingHappened | DontKnow):
        return verdict
    logger.error("the reconcile hook returned %s, which is no verdict", type(verdict).__name__)
    return DontKnow()
