"""One call of ``maintain``: the steps that the engine's thread takes now and then, one after the other."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from twiceproof.core._policy import checked_seconds
from twiceproof.engine._options import DAY, PURGE_ROWS, Settings
from twiceproof.stores import Purged

if TYPE_CHECKING:
    from twiceproof.core._policy import Seconds


class Maintenance:
    """Adds up what was purged, and says when to stop; ``within`` is in seconds, None for as long as it takes."""

    def __init__(self, settings: Settings, within: Seconds | None) -> None:
        limit = math.inf if within is None else checked_seconds("within", within, 0.0, 30 * DAY)
        self._settings = settings
        self._until = time.monotonic() + limit
        self.purged = Purged(0)

    def goes_on(self, step: Purged) -> bool:
        """Count a step and tell its events; whether another step is due."""
        self.purged = Purged(self.purged.records + step.records, self.purged.unsettled + step.unsettled)
        tell_purged(self._settings, step)
        return step.records >= PURGE_ROWS and time.monotonic() < self._until


def tell_purged(settings: Settings, step: Purged) -> None:
    """Tell the events of one step, whoever took it."""
    if step.records:
        settings.emit("purged", str(step.records))
    if step.unsettled:
        settings.emit("purged", "unsettled")
