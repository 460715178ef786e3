"""The rules, each broken in one place: what `_mutants.py` puts there instead of what ships."""
# ruff: noqa: ARG001  # a variant takes what the function takes in whose place it is put
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._codec import encode
from twiceproof.core._kept import to_replay
from twiceproof.core._messages import Request
from twiceproof.core._outcome import Completed, Outcome, Verdict
from twiceproof.core._policy import Policy
from twiceproof.core._record import (
    ClaimAnswer,
    ClaimRef,
    Found,
    Granted,
    Guarantee,
    Held,
    NewRecord,
    Record,
    State,
    UnsettledAnswer,
    WriteAnswer,
)
from twiceproof.core._scope import Site
from twiceproof.engine._keeper import perform_write
from twiceproof.errors import StoreError
from twiceproof.stores._protocol import Purged, Store
from twiceproof.stores._rows import Row
from twiceproof.stores.memory import MemoryStore
from twiceproof.testing.explorer._people import nonce_of

# what ships, held here so that a variant can go on to it
_claim_unsettled, _complete, _purge = MemoryStore.claim_unsettled, MemoryStore.complete, MemoryStore.purge
_release, _renew, _park = MemoryStore.release, MemoryStore.renew, MemoryStore.park
_renewed, _taken_over, _settled_by = Row.renewed, Row.taken_over, Row.settled_by
_apply, _cleanup, _finish, _write = core._apply, core.cleanup, core._finish, core._write  # noqa: SLF001
_resolve = life.resolve
_KEPT_BRIEFLY = 3600.0


def one_nonce(who: int) -> bytes:
    return nonce_of(0)


def _token_of(store: MemoryStore, id: bytes, nonce: bytes) -> bytes:
    record = store.get(id)
    return nonce if record is None else record.token.nonce


def complete_by_id(store: MemoryStore, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
    return _complete(store, id, _token_of(store, id, nonce), answer, retention)


def release_by_id(store: MemoryStore, id: bytes, nonce: bytes) -> WriteAnswer:
    return _release(store, id, _token_of(store, id, nonce))


def park_by_id(store: MemoryStore, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
    return _park(store, id, _token_of(store, id, nonce), cause)


def withdraw_by_id(store: Store, write: core.Write) -> WriteAnswer:
    record = store.get(write.id)
    if isinstance(write, core.DoRelease) and write.again and record is not None:
        return store.release(write.id, record.token.nonce)
    return perform_write(store, write)


def renew_by_id(store: MemoryStore, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
    for ref in claims:
        row = store._rows.get(ref.id)  # noqa: SLF001
        if row is not None and row.state is State.IN_FLIGHT and row.live(0.0):
            store._rows[ref.id] = row._replace(nonce=ref.nonce)  # noqa: SLF001
    return _renew(store, claims, lease)


def fenced_by_time(row: Row, nonce: bytes, now: float) -> bool:
    return _settled_by(row, nonce, now) and not (row.nonce == nonce and row.lapsed(now))


def _same(row: Row, new: NewRecord) -> bool:
    return row.state is not State.COMPLETED and row.subject.fingerprint == new.fingerprint


def takes_live_leases(row: Row, new: NewRecord, after: bytes | None, now: float) -> bool:
    return _same(row, new) and row.subject.guarantee is new.guarantee is Guarantee.AT_LEAST_ONCE


def takes_whatever_lapsed(row: Row, new: NewRecord, after: bytes | None, now: float) -> bool:
    return _same(row, new) and row.lapsed(now) and not row.reconciling(now)


def takes_by_its_own_word(row: Row, new: NewRecord, after: bytes | None, now: float) -> bool:
    return _same(row, new) and row.lapsed(now) and new.guarantee is Guarantee.AT_LEAST_ONCE


def takes_what_is_asked_about(row: Row, new: NewRecord, after: bytes | None, now: float) -> bool:
    return takes_live_leases(row, new, after, now) and row.lapsed(now)


def takes_on_an_old_verdict(row: Row, new: NewRecord, after: bytes | None, now: float) -> bool:
    return _same(row, new) and after is not None and row.reconcile_nonce == after


def same_number(row: Row, new: NewRecord, lease: float, nonce: bytes, now: float) -> Row:
    return _taken_over(row, new, lease, nonce, now)._replace(number=1)


def kept_from_the_claim(row: Row, lease: float, now: float) -> Row:
    return _renewed(row, lease, now)._replace(expires_at=row.expires_at)


def parked_briefly(row: Row, cause: str, now: float) -> Row:
    return row._replace(state=State.PARKED, cause=cause, lease_until=now, expires_at=now + _KEPT_BRIEFLY)


def purge_of_what_lapsed(store: MemoryStore, limit: int) -> Purged:
    for id, row in list(store._rows.items()):  # noqa: SLF001
        if row.state is State.PARKED:
            del store._rows[id]  # noqa: SLF001
    return _purge(store, limit)


def second_claim_as_token(
    store: MemoryStore, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
) -> UnsettledAnswer:
    got = _claim_unsettled(store, id, lease, nonce, every, force=force)
    if isinstance(got, Granted):
        store._rows[id] = store._rows[id]._replace(nonce=nonce)  # noqa: SLF001
    return got


def held_for_ever(record: Record) -> Held | Found:
    return Found(record) if record.state in {State.COMPLETED, State.PARKED} else Held(record)


def any_payload(got: ClaimAnswer, fingerprint: bytes, request: Request, policy: Policy, site: Site) -> life.Resolution:
    own = fingerprint if isinstance(got, Granted) else got.record.fingerprint
    return _resolve(got, own, request, policy, site)


def held_first(got: ClaimAnswer, fingerprint: bytes, request: Request, policy: Policy, site: Site) -> life.Resolution:
    if isinstance(got, Held):
        return any_payload(got, fingerprint, request, policy, site)
    return _resolve(got, fingerprint, request, policy, site)


def always_waits(got: ClaimAnswer, fingerprint: bytes, request: Request, policy: Policy, site: Site) -> life.Resolution:
    if isinstance(got, Found) and got.record.lapsed:
        return life.Wait(life.refuse("in-progress", site, retry_after=1), got.record.now)
    return _resolve(got, fingerprint, request, policy, site)


def released_where_completing_failed(
    call: core.Call, granted: Granted, outcome: Outcome
) -> Generator[core.Step, Any, None]:
    def change(step: core.Step) -> core.Step:
        if isinstance(step, core.DoLater) and isinstance(step.write, core.DoComplete):
            return core.DoLater(core.DoRelease(step.write.id, step.write.nonce), "released")
        return step

    yield from _changed(_finish(call, granted, outcome), change)


def _changed(
    steps: Generator[core.Step, Any, None], change: Callable[[core.Step], core.Step]
) -> Generator[core.Step, Any, None]:
    try:
        step = next(steps)
        while True:
            try:
                back = yield change(step)
            except StoreError as error:
                step = steps.throw(error)
            else:
                step = steps.send(back)
    except StopIteration:
        return


def answered_from_the_verdict(
    call: core.Call, record: Record, nonce: bytes, verdict: Verdict, unknown: life.Reply
) -> Generator[core.Step, Any, Any]:
    if not isinstance(verdict, Completed):
        return (yield from _apply(call, record, nonce, verdict, unknown))
    yield from _write(core.DoComplete(record.id, nonce, encode(verdict.response), 86_400.0), "")
    return life.Reply(to_replay(verdict.response))


def nothing_withdrawn(claim: core.DoClaim) -> core.DoNote:
    return core.DoNote("forgotten")


def nothing_cleaned_up(step: core.Step) -> core.DoLater | None:
    return None if isinstance(step, core.DoClaim) else _cleanup(step)


def over_at_once(job: core.DoLater, back: WriteAnswer, *, recent: bool) -> bool:
    return True


def nothing_after_a_renewal(parked: core.DoPark | None) -> None:
    return None
