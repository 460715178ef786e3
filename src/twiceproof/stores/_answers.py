"""How a live record that was not granted is answered, the same in every store."""

from __future__ import annotations

from typing import Final

from twiceproof.core._record import FORMAT, Found, Held, Record, State

_UNFINISHED: Final = (State.IN_FLIGHT, State.WAITING)


def held_or_found(record: Record) -> Held | Found:
    """Return `Held` under a live lease, while waiting and while reconciled (R23, R28); else `Found`.

    A record in a format above ours is `Found`: what its other fields mean is not ours to say (R17).
    """
    if record.format > FORMAT or record.state is State.COMPLETED:
        return Found(record)
    if record.reconciling or (record.state in _UNFINISHED and not record.lapsed):
        return Held(record)
    return Found(record)
