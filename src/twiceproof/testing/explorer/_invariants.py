"""What must always hold (CONTRACT 4 and 5). Each function returns the sentence that was broken, or None.

They look at both sides of one step and know nothing of how the rules are written.
"""

from __future__ import annotations

from typing import Final

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._codec import decode
from twiceproof.core._problems import REPLAYED
from twiceproof.core._record import Fenced, Granted, Guarantee, State
from twiceproof.stores._rows import Row
from twiceproof.stores.memory import MemoryStore
from twiceproof.testing.explorer._paths import Asked, Force, Renew
from twiceproof.testing.explorer._people import KEEP, LEASE

NO_EFFECT: Final = 0
EFFECT: Final = 1
STRICT_EFFECT: Final = 2
"""What took effect since the key was new: nothing, only what may be repeated, or what may not."""

AGAIN: Final = "a key was granted again after its handler had run under at most once (R21, R28)"
RELEASED: Final = "a claim was released after its handler had taken effect under at most once (R47)"
LEFT: Final = "a record is in flight for a request that ended, and nobody will settle it (R40, R47, R48)"
"""For claims that look right by themselves."""


def broken_by_act(before: Row | None, after: Row | None, asked: Asked, mine: bytes, answer: object) -> str | None:
    """Judge one call on the store: ``mine`` is the caller's nonce, now is 0."""
    held = before if before is not None and before.live(0) else None
    if held is not None and held.state is State.COMPLETED and after != before:
        return "a completed record changed before its retention ran out (R25)"
    match asked:
        case core.DoClaim():
            return _broken_by_claim(held, before, after, asked, answer)
        case core.DoClaimUnsettled() | Force():
            return _broken_by_second_claim(held, before, after, answer)
        case Renew():
            if held is None or held.nonce != mine:
                return None if after == before else "a renewal with another token changed the record (R30)"
            return None
        case core.DoComplete() | core.DoRelease() | core.DoPark():
            return _broken_by_write(held, before, after, asked, answer)


def _broken_by_claim(
    held: Row | None, before: Row | None, after: Row | None, asked: core.DoClaim, answer: object
) -> str | None:
    if not isinstance(answer, Granted):
        return None if after == before else "a claim that was not granted changed the record"
    if after is None or after.nonce != asked.nonce:
        return "a granted claim is not the record's: two could complete it (R22)"
    if held is None or held.nonce == asked.nonce:
        return None
    if held.subject.fingerprint != asked.new.fingerprint:
        return "another payload was granted a live record (R24)"
    if after.subject.incarnation != held.subject.incarnation:
        return "a take-over began a new incarnation"
    if after.number <= held.number:
        return "the number of a new token did not grow while the record lived"
    if held.reconciling(0):
        told = held.reconcile_nonce == asked.after
        return None if told else "a record was taken over while a hook was asked about it (R28)"
    if held.state is State.IN_FLIGHT and not held.lapsed(0):
        return "a live lease was taken over: two holders at once (R22)"
    if held.lapsed(0) and held.subject.guarantee == asked.new.guarantee == Guarantee.AT_LEAST_ONCE:
        return None
    if asked.after is not None:
        return "a verdict was carried out after its second claim had ended (R28)"
    return "an unsettled record was taken over although one side promises at most once (R27)"


def _broken_by_second_claim(held: Row | None, before: Row | None, after: Row | None, answer: object) -> str | None:
    if not isinstance(answer, Granted):
        return None if after == before else "a second claim that was not granted changed the record"
    if held is None or after is None:
        return "a second claim was granted on no record"
    kept = after._replace(
        reconcile_nonce=held.reconcile_nonce,
        reconcile_until=held.reconcile_until,
        reconcile_asked_at=held.reconcile_asked_at,
    )
    return None if kept == held else "a second claim touched the holder's own (R28)"


def _broken_by_write(
    held: Row | None, before: Row | None, after: Row | None, asked: core.Write, answer: object
) -> str | None:
    second = held is not None and held.reconcile_nonce == asked.nonce
    entitled = (
        held is not None
        and held.state is not State.COMPLETED
        and (held.nonce == asked.nonce or (second and (held.reconciling(0) or isinstance(asked, core.DoPark))))
    )
    if not entitled:
        if after != before:
            return f"a {_name(asked)} with another token changed the record (R30)"
        done_before = isinstance(asked, core.DoComplete) and held is not None and held.nonce == asked.nonce
        if isinstance(answer, Fenced) or done_before:
            return None
        return f"a {_name(asked)} with another token was not told that it is fenced (R30)"
    if isinstance(answer, Fenced):
        return f"a {_name(asked)} by the holder was fenced, although no other token was granted (R42)"
    if isinstance(asked, core.DoRelease):
        return None if after is None else "a released record is still there"
    if after is None:
        return f"a {_name(asked)} deleted the record"
    if isinstance(asked, core.DoComplete) and (after.state is not State.COMPLETED or after.answer != asked.answer):
        return "what was recorded is not the answer (R25)"
    return None


def _name(write: core.Write) -> str:
    return type(write).__name__.removeprefix("Do").lower()


def broken_by_time(id: bytes, row: Row) -> str | None:
    """Judge what a record that was just written promises for later."""
    if row.state is State.COMPLETED:
        return None if row.live(0) else "an answer expired at once (R33)"
    if row.lease_until > LEASE or (row.reconcile_until or 0) > LEASE:
        return "a claim holds for longer than one lease (R29)"
    late = max(row.lease_until, 0.0) + KEEP - 1
    store = MemoryStore.restored((0, ((id, row),)), lambda: late)
    store.purge(10)
    if store.get(id) is None:
        return "a record whose outcome nobody knows is forgotten before its keeping ran out (R42)"
    return None


def broken_by_reply(
    reply: life.Reply, row: Row | None, answer: bytes | None, *, same: bool, overdue: bool
) -> str | None:
    """Judge a reply without a run, as it is given: ``answer`` is the record's, as this client would be told of it.

    ``same``: the record is of this payload. ``overdue``: nobody claimed or renewed it for a whole lease.
    """
    live = row if row is not None and row.live(0) else None
    if reply.code == "store-unavailable":
        return None
    if reply.code == "idempotency-key-reuse":
        return "a request was refused as another payload although it is none (R24)" if live is None or same else None
    if live is not None and not same:
        given = f"told {reply.code}" if reply.code else "given a replay"
        return f"another payload is {given} instead of idempotency-key-reuse (R24)"
    if reply.code:
        late = reply.code == "in-progress" and overdue
        return "a key is 409 in-progress longer than one lease after anybody held it (R29)" if late else None
    if live is None or answer is None:
        return "a replay of what is not recorded (R25)"
    stored = decode(answer)
    added = (REPLAYED, (b"content-length", b"%d" % len(stored.body or b"")))
    if (reply.response.status, reply.response.body) != (stored.status, stored.body) or list(reply.response.headers) != [
        *stored.headers,
        *added,
    ]:
        return "a replay is not what was recorded (R25)"
    return None


def broken_by_run(effects: int, *, strict: bool, effect: bool) -> tuple[int, str | None]:
    """Judge one run of a handler, after what took effect since the key was new; return what has taken effect then.

    A run that was granted under at least once may come late: its version of the application promised no more.
    """
    if strict and effects == STRICT_EFFECT:
        return effects, "a handler ran twice under at most once (R21, R28)"
    return max(effects, STRICT_EFFECT if strict else EFFECT) if effect else effects, None
