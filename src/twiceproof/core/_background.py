"""What a claim is owed after its request went on: the rules of the engine's thread that are not about its clock."""

from __future__ import annotations

from twiceproof.core._engine import DoLater, DoPark, DoRelease
from twiceproof.core._record import Done, WriteAnswer


def is_over(job: DoLater, back: WriteAnswer, *, recent: bool) -> bool:
    """Whether a write that the store answered need not be repeated (R47, R48).

    What takes a claim back may have overtaken it: while that claim is ``recent``, it may still be on its way to the
    store. A second claim is sent once, so that taking it back once is enough; a first one may have been sent twice.
    """
    if not recent:
        return True
    if isinstance(job.write, DoRelease) and job.write.again:
        return False
    return bool(job.note) or isinstance(back, Done)


def after_renewal(parked: DoPark | None) -> DoLater | None:
    """Return what must follow the renewal of a claim that was parked meanwhile, if anything (R28, R40).

    The renewal may have come second and undone the parking. So may one whose reply was lost.
    """
    return None if parked is None else DoLater(parked)
