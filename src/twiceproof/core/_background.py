"""What a claim is owed after its request went on: the rules of the engine's thread that are not about its clock."""

from __future__ import annotations

from twiceproof.core._engine import DoLater, DoPark
from twiceproof.core._record import Fenced, WriteAnswer


def is_over(job: DoLater, back: WriteAnswer, *, recent: bool) -> bool:
    """Whether a write that the store answered need not be repeated (R47, R48).

    What takes a claim back and finds nothing may have overtaken it: while that claim is ``recent``, its message may
    still be on its way to the store.
    """
    return not (isinstance(back, Fenced) and not job.note and recent)


def after_renewal(parked: DoPark | None) -> DoLater | None:
    """Return what must follow the renewal of a claim that was parked meanwhile, if anything (R28, R40).

    The renewal may have come second and undone the parking. So may one whose reply was lost.
    """
    return None if parked is None else DoLater(parked)
