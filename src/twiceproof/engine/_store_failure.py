"""What a store raised, as the rules understand it."""

from __future__ import annotations

import traceback
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
    frames = "".join(traceback.format_tb(error.__traceback__))  # drivers put the values of a row into the message
    logger.error("the store failed at %s: %s\n%s", type(step).__name__, type(error).__name__, frames)
    unknown = StoreOutcomeUnknown()
    unknown.__cause__ = error
    return unknown
