"""twiceproof makes HTTP operations safe to retry: one effect, and the same answer again."""

from twiceproof.core._fingerprint import FingerprintOptions
from twiceproof.core._messages import Request, Response
from twiceproof.core._outcome import Completed, DontKnow, NothingHappened
from twiceproof.core._policy import Policy
from twiceproof.core._record import Guarantee, Record, State
from twiceproof.engine import AsyncEngine, Attempt, Engine, Event
from twiceproof.errors import (
    ConfigurationError,
    NotExecuted,
    StoreError,
    StoreOutcomeUnknown,
    StoreUnavailable,
    TwiceproofError,
    TwiceproofWarning,
)

__all__ = [
    "AsyncEngine",
    "Attempt",
    "Completed",
    "ConfigurationError",
    "DontKnow",
    "Engine",
    "Event",
    "FingerprintOptions",
    "Guarantee",
    "NotExecuted",
    "NothingHappened",
    "Policy",
    "Record",
    "Request",
    "Response",
    "State",
    "StoreError",
    "StoreOutcomeUnknown",
    "StoreUnavailable",
    "TwiceproofError",
    "TwiceproofWarning",
]
__version__ = "0.1.0"
