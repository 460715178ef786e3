"""What happens when something breaks: the table of CONTRACT 5, as data."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from twiceproof.core._record import Guarantee


class Ending(StrEnum):
    """How a run came out, as far as the table distinguishes it."""

    SUCCESS = "2xx, 3xx"
    CLIENT_ERROR = "4xx by the handler"
    GATE = "gate"
    TEMPORARY = "408, 499, 503 by the handler"
    SERVER_ERROR = "other 5xx"
    EXCEPTION = "exception"
    CANCELLED = "cancelled in the handler"
    CUT_SHORT = "answer cut short"
    NOTHING = "nothing happened"


class Settling(StrEnum):
    """What is done with the claim then."""

    COMPLETE = "complete"
    RELEASE = "release"
    PARK = "park"


SETTLING: Final[dict[str, dict[Ending, Settling]]] = {
    Guarantee.AT_MOST_ONCE: {
        Ending.SUCCESS: Settling.COMPLETE,  # R35
        Ending.CLIENT_ERROR: Settling.COMPLETE,  # R36
        Ending.GATE: Settling.RELEASE,  # R37
        Ending.TEMPORARY: Settling.COMPLETE,
        Ending.SERVER_ERROR: Settling.COMPLETE,  # R39
        Ending.EXCEPTION: Settling.PARK,
        Ending.CANCELLED: Settling.PARK,  # R40
        Ending.CUT_SHORT: Settling.PARK,  # R50
        Ending.NOTHING: Settling.RELEASE,  # R38
    },
    Guarantee.AT_LEAST_ONCE: {
        Ending.SUCCESS: Settling.COMPLETE,
        Ending.CLIENT_ERROR: Settling.COMPLETE,
        Ending.GATE: Settling.RELEASE,
        Ending.TEMPORARY: Settling.RELEASE,
        Ending.SERVER_ERROR: Settling.RELEASE,
        Ending.EXCEPTION: Settling.RELEASE,
        Ending.CANCELLED: Settling.RELEASE,
        Ending.CUT_SHORT: Settling.RELEASE,
        Ending.NOTHING: Settling.RELEASE,
    },
}
"""One row per guarantee that this release keeps."""

TEMPORARY_STATUSES: Final = frozenset({408, 499, 503})
GATES: Final = frozenset({401, 403, 407, 421, 425, 426, 428, 429, 431})  # R37
