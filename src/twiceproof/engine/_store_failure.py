"""What a store raised, as the rules understand it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twiceproof.engine._options import logger
from twiceproof.errors import StoreError, StoreOutcomeUnknown

if TYPE_CHECKING:
    from twiceproof.core._engine import Step


def store_failure(step: Step, error: Exception) -> StoreError:
    """Return the failure of a verb; anything unforeseen counts as *it may have acted* (R48)."""
    if isinstance(error, StoreError):
        logger.warning("the store failed at %s: %s", type(step).__name__, error)
        return error
    logger.error("the store failed at %s", type(step).__name__, exc_info=error)
    unknown = StoreOutcomeUnknown()
    unknown.__cause__ = error
    return unknown
