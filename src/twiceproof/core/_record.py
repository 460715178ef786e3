"""What a store keeps (R54), and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

FORMAT: Final = 1
"""The record format that this release writes; it reads this one and those before it (R53)."""


class State(StrEnum):
    """The states of a live record; an absent key has no record at all (CONTRACT 4)."""

    IN_FLIGHT = "in_flight"
    WAITING = "waiting"
    PARKED = "parked"
    COMPLETED = "completed"


class Guarantee(StrEnum):
    """What an operation is promised when something breaks (CONTRACT 5)."""

    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    TRANSACTIONAL = "transactional"
    RESUMABLE = "resumable"


@dataclass(slots=True)
class Token:
    """One grant: ``nonce`` decides every later write (R30), ``number`` grows while the record lives."""

    number: int
    nonce: bytes


@dataclass(slots=True)
class NewRecord:
    """What a claim would write. ``keep`` is how many seconds an unsettled record outlives its lease (R42)."""

    id: bytes
    namespace: str
    principal: bytes
    operation: str
    path: str
    key: bytes
    fingerprint: bytes
    guarantee: Guarantee
    keep: float


@dataclass(slots=True)
class Record:
    """A record as it was read. Moments are seconds on the store's clock, and so is ``now`` (R34)."""

    id: bytes
    namespace: str
    principal: bytes
    operation: str
    path: str
    key: bytes
    fingerprint: bytes
    guarantee: Guarantee
    incarnation: bytes
    state: State
    token: Token
    lease_until: float
    attempts: int
    created_at: float
    granted_at: float
    expires_at: float
    completed_at: float | None = None
    next_attempt_at: float | None = None
    cause: str | None = None
    reconcile_nonce: bytes | None = None
    reconcile_until: float | None = None
    reconcile_asked_at: float | None = None
    answer: bytes | None = None
    format: int = FORMAT
    now: float = 0.0

    @property
    def lapsed(self) -> bool:
        """Whether it is in flight and its lease ran out."""
        return self.state is State.IN_FLIGHT and self.lease_until <= self.now

    @property
    def unsettled(self) -> bool:
        """Whether nobody knows if the handler took effect: parked, or lapsed (R28)."""
        return self.state is State.PARKED or self.lapsed

    @property
    def reconciling(self) -> bool:
        """Whether somebody holds the second claim right now (R28)."""
        return self.reconcile_until is not None and self.reconcile_until > self.now


@dataclass(slots=True)
class Granted:
    """The record bears my nonce. ``forgot``: the key is new, although nobody knew how its record came out (R42).

    ``doubtful``: an earlier send of the claim may still be on its way (R48); the steps say so, never a store.
    """

    token: Token
    incarnation: bytes
    attempts: int = 1
    taken_over: bool = False
    forgot: bool = False
    doubtful: bool = False


@dataclass(slots=True)
class Held:
    """Somebody else has it: a live lease, an attempt to come, or a reconcile hook at work."""

    record: Record


@dataclass(slots=True)
class Found:
    """It is completed, parked or lapsed, and not mine to run."""

    record: Record


@dataclass(slots=True)
class Absent:
    """There is no live record."""


@dataclass(slots=True)
class Done:
    """The write took place, or had taken place before under the same nonce."""


@dataclass(slots=True)
class Fenced:
    """Another token, or no record: nothing was written (R30)."""


@dataclass(slots=True)
class ClaimRef:
    """Names one claim in a renewal."""

    id: bytes
    nonce: bytes


ClaimAnswer: TypeAlias = Granted | Held | Found
UnsettledAnswer: TypeAlias = Granted | Held | Found | Absent
WriteAnswer: TypeAlias = Done | Fenced
