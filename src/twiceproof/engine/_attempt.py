"""What the handler can see of its own run, and the suspended run itself."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twiceproof.core._engine import Call, DoPark, Steps
    from twiceproof.core._record import Granted


class Attempt:
    """One request as its handler sees it: ``scope["twiceproof"]`` and its like in every door.

    ``key``: the key, or None. ``protected``: whether a record stands behind this run. ``token``: the fencing number
    of this grant, to show downstream, or None. ``attempt``: 1 on the first run, more after a take-over.
    ``lease_lost``: the claim could not be renewed in time, so another run may begin (R31); read it before an effect.
    """

    __slots__ = ("_fenced", "_lost_at", "attempt", "key", "protected", "released", "token")

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        self.protected = False
        self.token: int | None = None
        self.attempt = 1
        self.released = False
        self._fenced = False
        self._lost_at = math.inf

    def granted(self, key: str, granted: Granted) -> None:
        """Take over what the claim says."""
        self.key, self.protected = key, True
        self.token, self.attempt = granted.token.number, granted.attempts

    @property
    def lease_lost(self) -> bool:
        """Whether renewal failed for a third of the lease or more, or another grant fenced this one (R31)."""
        return self._fenced or time.monotonic() >= self._lost_at

    def renewed(self, at: float, lease: float) -> None:
        """Note that the claim has ``lease`` seconds from ``at``, on this process's clock: due after a third of them."""
        self._lost_at = at + lease * 2 / 3

    def lost(self) -> None:
        """Note that the claim is renewed no more."""
        self._fenced = True

    def release(self) -> None:
        """Say that nothing happened: an answer of 400 or more then frees the key instead of being stored."""
        self.released = True


@dataclass(slots=True, eq=False)
class Run:
    """A granted request, between `begin` and `finish`. It keeps the suspended steps."""

    attempt: Attempt
    call: Call
    steps: Steps
    renewed_at: float = 0.0
    started_at: float = 0.0
    finished: bool = False
    pending: bool = False
    """The background settles it, and renewal goes on meanwhile (R47)."""
    parked: DoPark | None = None
    """How it was parked, or is being parked."""
