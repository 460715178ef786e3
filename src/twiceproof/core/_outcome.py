"""How a run came out, and what a reconcile hook may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from twiceproof.core._messages import Response


@dataclass(slots=True)
class Answered:
    """The handler's whole answer; a body of None was sent but can't be kept (R43).

    ``released``: the handler called ``attempt.release()``.
    """

    response: Response
    released: bool = False


@dataclass(slots=True)
class Raised:
    """The handler raised something else than `NotExecuted`."""


@dataclass(slots=True)
class Cancelled:
    """The handler was cancelled from outside while it ran (R40)."""


@dataclass(slots=True)
class CutShort:
    """The answer ended after its first byte and before its last (R50)."""


@dataclass(slots=True)
class NothingHappened:
    """The handler did not begin, or said that it did nothing (R38); as a verdict: so did the lost one (R28)."""


@dataclass(slots=True)
class Abandoned:
    """The process stops and the handler's outcome can't be awaited: the record is left to lapse (R40)."""


@dataclass(slots=True)
class Completed:
    """Verdict of a reconcile hook: it took effect, and this is its answer (R28)."""

    response: Response


@dataclass(slots=True)
class DontKnow:
    """Verdict of a reconcile hook: it can't tell either (R28)."""


Known: TypeAlias = Answered | Raised | Cancelled | CutShort | NothingHappened
Outcome: TypeAlias = Known | Abandoned
Verdict: TypeAlias = Completed | NothingHappened | DontKnow
