"""What every store promises, as tests: subclass `StoreContract` and give it a ``store``.

Durations are short and every wait goes through ``advance``, so that a store on a real clock can be held to the same
promises by sleeping. A store on a clock of its own overrides ``advance`` and takes no time at all.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from twiceproof.core._record import (
    Absent,
    ClaimAnswer,
    ClaimRef,
    Done,
    Fenced,
    Found,
    Granted,
    Guarantee,
    Held,
    NewRecord,
    Record,
    State,
    Token,
    UnsettledAnswer,
    WriteAnswer,
)
from twiceproof.stores import AsyncStore, Capabilities, Filter, Page, Purged, Store

LEASE = 1.0
KEEP = 10.0
RETENTION = 5.0
ONCE = Guarantee.AT_MOST_ONCE
AGAIN = Guarantee.AT_LEAST_ONCE

_numbers = itertools.count(1)


def new_record(guarantee: Guarantee = ONCE, **changes: Any) -> NewRecord:
    """Return a record of an id that no other has."""
    number = next(_numbers)
    record = NewRecord(
        id=number.to_bytes(32, "big"),
        namespace="tests",
        principal=b"\x00principal\xff",
        operation="POST /orders",
        path=f"/orders/{number}",
        key=b"key-digest",
        fingerprint=b"\x01fingerprint",
        guarantee=guarantee,
        keep=KEEP,
    )
    return replace(record, **changes)


class FakeClock:
    """A clock that moves when told to."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Driven:
    """An asynchronous store as a blocking one: its event loop runs on a thread of its own."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def stop(self) -> None:
        """Close the store and end its loop."""
        self.close()
        self._wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    def open(self) -> None:
        self._wait(self._store.open())

    def close(self) -> None:
        self._wait(self._store.close())

    def check(self) -> Sequence[str]:
        return self._store.check()

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        return self._wait(self._store.claim(new, lease, nonce, after))

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        return self._wait(self._store.claim_unsettled(id, lease, nonce, every, force=force))

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        return self._wait(self._store.renew(claims, lease))

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        return self._wait(self._store.complete(id, nonce, answer, retention))

    def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        return self._wait(self._store.release(id, nonce))

    def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        return self._wait(self._store.park(id, nonce, cause))

    def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        return self._wait(self._store.forget(id, nonce))

    def get(self, id: bytes) -> Record | None:
        return self._wait(self._store.get(id))

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return self._wait(self._store.scan(filter, cursor, limit))

    def purge(self, limit: int) -> Purged:
        return self._wait(self._store.purge(limit))

    def renewer(self) -> Store:
        return self._store.renewer()


def near(moment: float) -> Any:
    """Equal but for the rounding of a clock."""
    return pytest.approx(moment, abs=0.3)


def kept(store: Store, id: bytes) -> Record:
    """Return the live record, which must be there."""
    record = store.get(id)
    assert record is not None
    return record


def all_records(store: Store, filter: Filter | None = None, limit: int = 2) -> list[Record]:
    """Scan to the end."""
    records: list[Record] = []
    cursor = None
    while True:
        page = store.scan(filter or Filter(), cursor, limit)
        assert len(page.records) <= limit
        records += page.records
        cursor = page.cursor
        if cursor is None:
            return records


class StoreContract:
    """The promises. Each test begins with an empty, open store."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        """Override: an empty, open store, closed afterwards."""
        raise NotImplementedError

    @pytest.fixture
    def advance(self) -> Callable[[float], None]:
        """Let time pass on the store's clock. Override where that can be done without waiting."""
        return time.sleep

    # ---- claim -------------------------------------------------------------------------------------------------------

    def test_an_absent_record_is_granted(self, store):
        """R21: the claim of an absent key is granted, as the first attempt of a new incarnation."""
        answer = store.claim(new_record(), LEASE, b"n1")
        assert answer == Granted(Token(1, b"n1"), answer.incarnation, attempts=1, taken_over=False, forgot=False)
        assert answer.incarnation

    def test_a_granted_record_reads_as_it_was_claimed(self, store):
        """R54: everything that was given is kept, byte for byte, and the moments follow from the lease."""
        new = new_record()
        granted = store.claim(new, LEASE, b"\x00nonce\xff")
        record = store.get(new.id)
        assert record == Record(
            id=new.id,
            namespace="tests",
            principal=b"\x00principal\xff",
            operation="POST /orders",
            path=new.path,
            key=b"key-digest",
            fingerprint=b"\x01fingerprint",
            guarantee=ONCE,
            incarnation=granted.incarnation,
            state=State.IN_FLIGHT,
            token=Token(1, b"\x00nonce\xff"),
            lease_until=near(record.now + LEASE),
            attempts=1,
            created_at=near(record.now),
            granted_at=near(record.now),
            expires_at=near(record.now + LEASE + KEEP),
            now=record.now,
        )

    def test_a_live_claim_of_another_is_held(self, store):
        """R23: whoever comes second is shown the record, and writes nothing."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        before = store.get(new.id)
        answer = store.claim(new, LEASE * 9, b"n2")
        assert type(answer) is Held
        assert replace(answer.record, now=0) == replace(before, now=0)
        assert replace(store.get(new.id), now=0) == replace(before, now=0)

    def test_another_fingerprint_is_shown_the_record_and_changes_nothing(self, store, advance):
        """R24: a live record is never taken for another payload, in flight or lapsed."""
        new = new_record(AGAIN)
        store.claim(new, LEASE, b"n1")
        other = replace(new, fingerprint=b"other")
        assert type(store.claim(other, LEASE, b"n2")) is Held
        advance(LEASE * 1.5)
        answer = store.claim(other, LEASE, b"n2")
        assert type(answer) is Found
        assert answer.record.fingerprint == b"\x01fingerprint"
        assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()
        assert type(store.claim(other, LEASE, b"n2")) is Found

    def test_the_same_call_again_finds_its_own_grant(self, store, advance):
        """R48: a claim whose reply was lost is repeated with its nonce: the same token, a whole lease, no attempt."""
        new = new_record()
        first = store.claim(new, LEASE, b"n1")
        advance(LEASE * 0.6)
        assert store.claim(new, LEASE, b"n1") == first
        advance(LEASE * 0.6)
        assert type(store.claim(new, LEASE, b"n2")) is Held
        advance(LEASE)
        assert store.claim(new, LEASE, b"n1") == first
        assert store.get(new.id).attempts == 1

    def test_the_same_call_does_not_run_again_what_it_settled(self, store):
        """R25, R28: the nonce of a completed or parked record grants nothing."""
        done, parked = new_record(), new_record()
        store.claim(done, LEASE, b"n1")
        store.complete(done.id, b"n1", b"answer", RETENTION)
        assert type(store.claim(done, LEASE, b"n1")) is Found
        store.claim(parked, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        assert type(store.claim(parked, LEASE, b"n1")) is Found

    def test_a_lapsed_at_least_once_record_is_taken_over_by_one(self, store, advance):
        """R27: one retry gets a new token under the same incarnation; the next is held; the old token is fenced."""
        new = new_record(AGAIN)
        first = store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        assert store.claim(new, LEASE, b"n2") == Granted(
            Token(2, b"n2"), first.incarnation, attempts=2, taken_over=True
        )
        assert type(store.claim(new, LEASE, b"n3")) is Held
        record = store.get(new.id)
        assert (record.attempts, record.token.nonce) == (2, b"n2")
        assert record.granted_at == near(record.created_at + LEASE * 1.5)
        assert store.renew([ClaimRef(new.id, b"n1")], LEASE) == [ClaimRef(new.id, b"n1")]
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()
        assert store.release(new.id, b"n1") == Fenced()
        assert store.park(new.id, b"n1", "exception") == Fenced()
        assert replace(store.get(new.id), now=0) == replace(record, now=0)

    def test_a_lease_lapses_at_its_end_and_not_before(self, store, advance):
        """R27: stealable if and only if the lease's end is past, whatever lease the contender asks for."""
        new = new_record(AGAIN)
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 0.7)
        assert type(store.claim(new, LEASE / 100, b"n2")) is Held
        advance(LEASE * 0.35)
        assert type(store.claim(new, LEASE / 100, b"n2")) is Granted

    @pytest.mark.parametrize(("first", "second"), [(ONCE, ONCE), (ONCE, AGAIN), (AGAIN, ONCE)])
    def test_a_lapsed_record_is_not_taken_over_unless_both_say_so(self, store, advance, first, second):
        """R28: a deploy that changes the guarantee must not run an old effect again."""
        new = new_record(first)
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        answer = store.claim(replace(new, guarantee=second), LEASE, b"n2")
        assert type(answer) is Found
        assert answer.record.lapsed
        assert answer.record.token.nonce == b"n1"

    def test_of_many_claims_at_once_one_is_granted(self, store):
        """R22: exactly one runs; all others are shown the winner's record."""
        for _ in range(5):
            new = new_record()
            gate = threading.Barrier(16)

            def claim(number: int, new: NewRecord = new, gate: threading.Barrier = gate) -> ClaimAnswer:
                gate.wait()
                return store.claim(new, 30.0, b"nonce-%d" % number)

            with ThreadPoolExecutor(16) as pool:
                answers: list[Any] = list(pool.map(claim, range(16)))
            [winner] = [answer for answer in answers if type(answer) is Granted]
            losers = [answer for answer in answers if answer is not winner]
            assert {type(answer) for answer in losers} == {Held}
            assert {answer.record.token.nonce for answer in losers} == {winner.token.nonce}

    # ---- renew -------------------------------------------------------------------------------------------------------

    def test_renewing_prolongs_the_lease_and_tells_who_is_fenced(self, store, advance):
        """R30, R31: each claim gets a whole lease from now; another's nonce and an absent id are returned."""
        mine, others = new_record(), new_record()
        store.claim(mine, LEASE, b"n1")
        store.claim(others, LEASE, b"n2")
        advance(LEASE * 0.7)
        wrong, absent = ClaimRef(others.id, b"n1"), ClaimRef(new_record().id, b"n1")
        assert list(store.renew([wrong, ClaimRef(mine.id, b"n1"), absent], LEASE)) == [wrong, absent]
        advance(LEASE * 0.7)
        assert type(store.claim(mine, LEASE, b"n3")) is Held
        assert type(store.claim(others, LEASE, b"n3")) is Found
        record = store.get(mine.id)
        assert record.expires_at - record.lease_until == near(KEEP)

    def test_renewing_nothing_and_much_works(self, store):
        """R31: one call for all claims of a process, however many."""
        assert list(store.renew([], LEASE)) == []
        news = [new_record() for _ in range(120)]
        for new in news:
            store.claim(new, LEASE, b"n1")
        refs = [ClaimRef(new.id, b"n1") for new in news]
        absent = [ClaimRef(new_record().id, b"n1") for _ in range(120)]
        assert list(store.renew(refs + absent, LEASE)) == absent

    def test_a_holder_renews_after_its_lapse_and_its_parking(self, store, advance):
        """R42: the token decides, never the time: it is in flight again, and may be settled."""
        lapsed, parked = new_record(), new_record()
        for new in (lapsed, parked):
            store.claim(new, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        advance(LEASE * 1.5)
        assert list(store.renew([ClaimRef(lapsed.id, b"n1"), ClaimRef(parked.id, b"n1")], LEASE)) == []
        for new in (lapsed, parked):
            answer = store.claim(new, LEASE, b"n2")
            assert type(answer) is Held
            assert (answer.record.state, answer.record.cause) == (State.IN_FLIGHT, None)
            assert answer.record.expires_at == near(answer.record.now + LEASE + KEEP)
            assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()

    def test_renewing_what_is_completed_changes_nothing(self, store):
        """R31: a renewal that crosses its own completion is not fenced, and prolongs no retention."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.complete(new.id, b"n1", b"answer", RETENTION)
        before = store.get(new.id)
        assert list(store.renew([ClaimRef(new.id, b"n1")], LEASE * 50)) == []
        assert replace(store.get(new.id), now=before.now) == before

    # ---- complete ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("answer", [b"", b"\x00\xff" * 512, b"x" * (1 << 20)], ids=["empty", "binary", "1 MiB"])
    def test_a_completed_record_answers_byte_for_byte(self, store, answer):
        """R25: the answer is found as it was stored."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        assert store.complete(new.id, b"n1", answer, RETENTION) == Done()
        found = store.claim(new, LEASE, b"n2")
        assert type(found) is Found
        assert (found.record.state, found.record.answer) == (State.COMPLETED, answer)
        assert found.record.completed_at == near(found.record.now)
        assert found.record.expires_at == near(found.record.now + RETENTION)
        assert found.record.token == Token(1, b"n1")

    def test_completing_again_is_done_and_changes_nothing(self, store):
        """R48: the same nonce hears Done again; the first answer stays. Another's nonce is fenced."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.complete(new.id, b"n1", b"first", RETENTION)
        assert store.complete(new.id, b"n1", b"second", RETENTION) == Done()
        assert store.complete(new.id, b"n2", b"third", RETENTION) == Fenced()
        assert store.get(new.id).answer == b"first"

    def test_a_late_holder_completes_after_its_lapse_and_its_parking(self, store, advance):
        """R42: until another token is granted, its answer settles the record."""
        lapsed, parked = new_record(), new_record()
        for new in (lapsed, parked):
            store.claim(new, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        advance(LEASE * 3)
        for new in (lapsed, parked):
            assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()
            record = store.get(new.id)
            assert (record.state, record.cause, record.answer) == (State.COMPLETED, None, b"answer")

    def test_only_the_token_settles(self, store):
        """R30: another nonce, and any nonce on an absent record, is fenced and changes nothing."""
        new, absent = new_record(), new_record()
        store.claim(new, LEASE, b"n1")
        before = store.get(new.id)
        for id in (new.id, absent.id):
            assert store.complete(id, b"n2", b"answer", RETENTION) == Fenced()
            assert store.release(id, b"n2") == Fenced()
            assert store.park(id, b"n2", "exception") == Fenced()
            assert store.forget(id, b"n2") == Fenced()
        assert replace(store.get(new.id), now=before.now) == before
        assert store.get(absent.id) is None

    def test_nonces_and_ids_compare_by_exact_bytes(self, store):
        """R30: case, NUL bytes and trailing blanks make another key."""
        upper = new_record(id=b"Key\x00A")
        store.claim(upper, LEASE, b"N\x001")
        for id in (b"key\x00a", b"Key", b"Key\x00A "):
            assert store.get(id) is None
        for nonce in (b"n\x001", b"N", b"N\x001 "):
            assert store.complete(upper.id, nonce, b"answer", RETENTION) == Fenced()
        assert store.complete(upper.id, b"N\x001", b"answer", RETENTION) == Done()

    # ---- release and park --------------------------------------------------------------------------------------------

    def test_a_released_key_is_new(self, store):
        """Nothing happened: the next claim is a first one, of another incarnation."""
        new = new_record()
        first = store.claim(new, LEASE, b"n1")
        assert store.release(new.id, b"n1") == Done()
        assert store.get(new.id) is None
        assert store.release(new.id, b"n1") == Fenced()
        second = store.claim(new, LEASE, b"n2")
        assert second == Granted(Token(1, b"n2"), second.incarnation)
        assert second.incarnation != first.incarnation

    def test_a_completed_record_is_not_released_or_parked(self, store):
        """R25: what was answered stays answered, for its own token too."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.complete(new.id, b"n1", b"answer", RETENTION)
        assert store.release(new.id, b"n1") == Fenced()
        assert store.park(new.id, b"n1", "exception") == Fenced()
        assert store.get(new.id).answer == b"answer"

    def test_a_parked_record_is_unsettled_and_kept(self, store, advance):
        """R28, R42: nobody runs it, its cause is told, and it is kept for its keeping time from the parking."""
        new = new_record(AGAIN)
        store.claim(new, LEASE, b"n1")
        advance(LEASE / 2)
        assert store.park(new.id, b"n1", "exception") == Done()
        answer = store.claim(new, LEASE, b"n2")
        assert type(answer) is Found
        assert (answer.record.state, answer.record.cause) == (State.PARKED, "exception")
        assert answer.record.unsettled
        assert answer.record.expires_at == near(answer.record.now + KEEP)
        assert answer.record.token == Token(1, b"n1")

    def test_a_late_holder_releases_after_its_lapse_and_its_parking(self, store, advance):
        """R42: nothing happened, says its holder: the key is free."""
        lapsed, parked = new_record(), new_record()
        for new in (lapsed, parked):
            store.claim(new, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        advance(LEASE * 2)
        for new in (lapsed, parked):
            assert store.release(new.id, b"n1") == Done()
            assert store.get(new.id) is None

    # ---- the second claim --------------------------------------------------------------------------------------------

    def test_the_second_claim_is_for_unsettled_records(self, store, advance):
        """R28: absent, held, found; granted beside the token where parked or lapsed."""
        live, done, parked, lapsed = (new_record() for _ in range(4))
        for new in (done, parked, lapsed):
            store.claim(new, LEASE, b"n1")
        store.complete(done.id, b"n1", b"answer", RETENTION)
        store.park(parked.id, b"n1", "exception")
        advance(LEASE * 1.5)
        store.claim(live, LEASE, b"n1")
        assert store.claim_unsettled(new_record().id, LEASE, b"h1", 3.0) == Absent()
        assert type(store.claim_unsettled(live.id, LEASE, b"h1", 3.0)) is Held
        assert type(store.claim_unsettled(done.id, LEASE, b"h1", 3.0)) is Found
        for new in (parked, lapsed):
            answer = store.claim_unsettled(new.id, LEASE, b"h1", 3.0)
            assert type(answer) is Granted
            assert (answer.token, answer.attempts) == (Token(1, b"n1"), 1)
            record = store.get(new.id)
            assert (record.reconcile_nonce, record.token.nonce) == (b"h1", b"n1")
            assert record.reconcile_until == near(record.now + LEASE)
            assert record.reconcile_asked_at == near(record.now)

    def test_one_asks_at_a_time_and_not_too_often(self, store, advance):
        """R28: others are held meanwhile; after a *don't know* it is asked again at most every so often."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.park(new.id, b"n1", "exception")
        assert type(store.claim_unsettled(new.id, LEASE, b"h1", 3.0)) is Granted
        assert type(store.claim_unsettled(new.id, LEASE, b"h2", 0.0)) is Held
        assert type(store.claim(new, LEASE, b"n2")) is Held
        assert type(store.claim_unsettled(new.id, LEASE, b"h1", 3.0)) is Granted  # the same call again
        assert store.park(new.id, b"h1", "ignored") == Done()
        answer = store.claim_unsettled(new.id, LEASE, b"h2", 3.0)
        assert type(answer) is Found
        assert (answer.record.state, answer.record.cause) == (State.PARKED, "exception")
        advance(3.5)
        assert type(store.claim_unsettled(new.id, LEASE, b"h2", 3.0)) is Granted

    def test_a_lapsed_second_claim_settles_nothing(self, store, advance):
        """R28: once its lease ran out it may neither complete, release nor grant; another may ask."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.park(new.id, b"n1", "exception")
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        advance(LEASE * 1.5)
        assert store.complete(new.id, b"h1", b"answer", RETENTION) == Fenced()
        assert store.release(new.id, b"h1") == Fenced()
        assert type(store.claim(new, LEASE, b"n2", after=b"h1")) is Found
        assert type(store.claim_unsettled(new.id, LEASE, b"h2", 0.0)) is Granted
        assert store.park(new.id, b"h1", "ignored") == Fenced()

    def test_a_verdict_of_completed_fences_the_late_holder(self, store):
        """R28: the second claim's nonce becomes the token's, with a greater number."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.park(new.id, b"n1", "exception")
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Done()
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Done()
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()
        record = store.get(new.id)
        assert (record.answer, record.token) == (b"verdict", Token(2, b"h1"))
        assert (record.reconcile_nonce, record.reconcile_until) == (None, None)

    def test_the_holders_own_answer_stands_against_the_verdict(self, store, advance):
        """R28: the second claim fences nobody; if the holder completes meanwhile, the verdict is fenced."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert store.complete(new.id, b"n1", b"mine", RETENTION) == Done()
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Fenced()
        assert store.release(new.id, b"h1") == Fenced()
        assert store.park(new.id, b"h1", "ignored") == Fenced()
        assert type(store.claim(new, LEASE, b"n2", after=b"h1")) is Found
        assert store.get(new.id).answer == b"mine"

    def test_nothing_happened_grants_a_new_token(self, store, advance):
        """R28: under the same incarnation, with the caller's guarantee; from then on the old token is fenced."""
        new = new_record(AGAIN)
        first = store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        answer = store.claim(replace(new, guarantee=ONCE), LEASE, b"n2", after=b"h1")
        assert answer == Granted(Token(2, b"n2"), first.incarnation, attempts=2, taken_over=True)
        record = store.get(new.id)
        assert (record.state, record.guarantee) == (State.IN_FLIGHT, ONCE)
        assert (record.reconcile_nonce, record.reconcile_until, record.reconcile_asked_at) == (None, None, None)
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Fenced()
        assert store.complete(new.id, b"n2", b"answer", RETENTION) == Done()

    def test_nothing_happened_is_only_for_who_asked_and_for_the_same_payload(self, store):
        """R24, R28: another's second claim, or another fingerprint, grants nothing."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.park(new.id, b"n1", "exception")
        assert type(store.claim(new, LEASE, b"n2", after=b"h1")) is Found
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert type(store.claim(new, LEASE, b"n2", after=b"h2")) is Held
        assert type(store.claim(new, LEASE, b"n2", after=b"n1")) is Held
        assert type(store.claim(replace(new, fingerprint=b"other"), LEASE, b"n2", after=b"h1")) is Held

    def test_a_second_claim_keeps_a_lapsed_record_from_being_taken_over(self, store, advance):
        """R27: at-least-once waits for the verdict."""
        new = new_record(AGAIN)
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert type(store.claim(new, LEASE, b"n2")) is Held
        store.park(new.id, b"h1", "ignored")
        assert type(store.claim(new, LEASE, b"n2")) is Granted

    def test_the_second_claim_may_release(self, store):
        """R28: an operator's *nothing happened*: the key is free."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.park(new.id, b"n1", "exception")
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert store.release(new.id, b"h1") == Done()
        assert store.get(new.id) is None
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()

    def test_a_holder_that_renews_ends_the_second_claim(self, store, advance):
        """R42: it is in flight again; the verdict is fenced."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, 5 * LEASE, b"h1", 0.0)
        assert list(store.renew([ClaimRef(new.id, b"n1")], LEASE)) == []
        assert store.get(new.id).reconcile_nonce is None
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Fenced()

    def test_a_holder_that_parks_leaves_the_second_claim(self, store, advance):
        """R28: the hook goes on and its verdict counts."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert store.park(new.id, b"n1", "exception") == Done()
        assert type(store.claim(new, LEASE, b"n2")) is Held
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Done()

    def test_an_operator_may_force_the_second_claim(self, store):
        """R28: over a live lease, a live second claim and the pause between askings; never over an answer."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        assert type(store.claim_unsettled(new.id, LEASE, b"h1", 9.0, force=True)) is Granted
        assert type(store.claim_unsettled(new.id, LEASE, b"h2", 9.0, force=True)) is Granted
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Fenced()
        assert store.complete(new.id, b"h2", b"verdict", RETENTION) == Done()
        assert type(store.claim_unsettled(new.id, LEASE, b"h3", 9.0, force=True)) is Found

    # ---- expiry ------------------------------------------------------------------------------------------------------

    def test_a_completed_record_expires_after_its_retention(self, store, advance):
        """R33: counted from the completion; then the key is new."""
        new = new_record()
        first = store.claim(new, LEASE, b"n1")
        advance(LEASE)
        store.complete(new.id, b"n1", b"answer", RETENTION)
        advance(RETENTION * 0.9)
        assert type(store.claim(new, LEASE, b"n2")) is Found
        advance(RETENTION * 0.2)
        assert store.get(new.id) is None
        assert store.complete(new.id, b"n1", b"answer", RETENTION) == Fenced()
        again = store.claim(replace(new, fingerprint=b"other"), LEASE, b"n2")
        assert again == Granted(Token(1, b"n2"), again.incarnation, forgot=False)
        assert again.incarnation != first.incarnation
        record = store.get(new.id)
        assert (record.answer, record.completed_at, record.fingerprint) == (None, None, b"other")
        assert record.created_at == near(record.now)

    @pytest.mark.parametrize("parked", [False, True], ids=["lapsed", "parked"])
    def test_an_unsettled_record_is_kept_then_forgotten_with_notice(self, store, advance, parked):
        """R42: no claim, purge or asking ends it before its keeping time; then the key is new, and that is told."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        if parked:
            advance(LEASE)
            store.park(new.id, b"n1", "exception")
        advance(KEEP * 0.9)
        assert store.purge(100) == Purged(0, 0)
        assert type(store.claim(new, LEASE, b"n2")) is Found
        advance(KEEP * 0.1 + LEASE * 1.1)
        assert store.claim_unsettled(new.id, LEASE, b"h1", 0.0, force=True) == Absent()
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()
        assert list(store.renew([ClaimRef(new.id, b"n1")], LEASE)) == [ClaimRef(new.id, b"n1")]
        assert store.park(new.id, b"n1", "late") == Fenced()
        assert store.release(new.id, b"n1") == Fenced()
        assert store.forget(new.id, b"n1") == Fenced()
        answer = store.claim(new, LEASE, b"n2")
        assert answer == Granted(Token(1, b"n2"), answer.incarnation, forgot=True)

    def test_purge_deletes_what_expired_a_step_at_a_time(self, store, advance):
        """R33: at most so many at once, nothing that is live, and it says how many outcomes stayed unknown."""
        done = [new_record() for _ in range(3)]
        unsettled, live = new_record(), new_record()
        for new in (*done, unsettled):
            store.claim(new, LEASE, b"n1")
        for new in done:
            store.complete(new.id, b"n1", b"answer", RETENTION)
        advance(KEEP + LEASE * 1.5)
        store.claim(live, LEASE, b"n1")
        steps = [store.purge(2) for _ in range(4)]
        assert sum(step.records for step in steps) <= 4
        assert max(step.records for step in steps) <= 2
        assert sum(step.unsettled for step in steps) == 1
        assert steps[-1] == Purged(0, 0)
        assert [record.id for record in all_records(store)] == [live.id]
        assert store.claim(unsettled, LEASE, b"n2").forgot is False

    # ---- operators ---------------------------------------------------------------------------------------------------

    def test_forget_deletes_in_any_state_under_the_token(self, store):
        """Operators: in flight, parked and completed alike; never a record that changed hands."""
        flying, parked, done = new_record(), new_record(), new_record()
        for new in (flying, parked, done):
            store.claim(new, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        store.complete(done.id, b"n1", b"answer", RETENTION)
        for new in (flying, parked, done):
            assert store.forget(new.id, b"n2") == Fenced()
            assert store.forget(new.id, b"n1") == Done()
            assert store.get(new.id) is None
        assert store.forget(done.id, b"n1") == Fenced()

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    def test_scan_pages_through_all_records_oldest_first(self, store, advance, limit):
        """Each live record once, whatever the page's size; the last page has no cursor."""
        news = [new_record() for _ in range(7)]
        for new in (news[3], *news[:3], *news[4:]):
            store.claim(new, LEASE, b"n1")
            advance(0.01)
        expected = [new.id for new in (news[3], *news[:3], *news[4:])]
        assert [record.id for record in all_records(store, limit=limit)] == expected
        assert store.scan(Filter(), None, 7).cursor is None

    def test_scan_goes_on_where_records_were_deleted(self, store, advance):
        """A cursor holds though its record is gone."""
        news = [new_record() for _ in range(4)]
        for new in news:
            store.claim(new, LEASE, b"n1")
            advance(0.01)
        page = store.scan(Filter(), None, 2)
        store.forget(news[1].id, b"n1")
        assert [record.id for record in store.scan(Filter(), page.cursor, 2).records] == [new.id for new in news[2:]]

    def test_a_key_that_became_new_is_young(self, store, advance):
        """Oldest first is by creation: an expired record that is claimed again goes to the end."""
        first, second = new_record(), new_record()
        store.claim(first, LEASE, b"n1")
        store.complete(first.id, b"n1", b"answer", LEASE)
        advance(LEASE / 2)
        store.claim(second, LEASE, b"n1")
        advance(LEASE)
        store.claim(first, LEASE, b"n2")
        assert [record.id for record in all_records(store, limit=1)] == [second.id, first.id]

    def test_scan_filters(self, store, advance):
        """By state, unsettled (parked and lapsed), operation, path and age; expired records never."""
        lapsed, parked, done, gone = new_record(), new_record(), new_record(), new_record()
        flying = new_record(operation="POST /refunds", path="/refunds")
        for new in (lapsed, parked, done, gone):
            store.claim(new, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        store.complete(done.id, b"n1", b"answer", RETENTION)
        store.complete(gone.id, b"n1", b"answer", LEASE)
        advance(LEASE * 1.5)
        store.claim(flying, LEASE, b"n1")

        def ids(**criteria: Any) -> set[bytes]:
            return {record.id for record in all_records(store, Filter(**criteria))}

        assert ids() == {lapsed.id, parked.id, done.id, flying.id}
        assert ids(state=State.COMPLETED) == {done.id}
        assert ids(state=State.IN_FLIGHT) == {lapsed.id, flying.id}
        assert ids(unsettled=True) == {lapsed.id, parked.id}
        assert ids(unsettled=True, state=State.COMPLETED) == {lapsed.id, parked.id}
        assert ids(operation="POST /refunds") == {flying.id}
        assert ids(path=done.path) == {done.id}
        assert ids(path=done.path, state=State.PARKED) == set()
        assert ids(older_than=LEASE) == {lapsed.id, parked.id, done.id}
        assert ids(older_than=LEASE * 9) == set()

    @pytest.mark.parametrize("cursor", ["", "nonsense", "é", "AAAA", "f_gAAAAAAAA=", "' OR 1=1 --"])
    def test_a_cursor_that_no_page_carried_is_refused(self, store, cursor):
        """An operator's typo is a sentence, not an odd page."""
        with pytest.raises(ValueError, match="cursor is not one that scan returned"):
            store.scan(Filter(), cursor)

    def test_a_page_of_nothing_is_refused(self, store):
        """A limit below one would page for ever."""
        with pytest.raises(ValueError, match="at least 1"):
            store.scan(Filter(), None, 0)

    def test_an_empty_store_has_one_empty_page(self, store):
        """Nothing to scan, purge or get."""
        assert store.scan(Filter()) == Page([], None)
        assert store.purge(10) == Purged(0, 0)
        assert store.get(b"absent") is None

    # ---- around ------------------------------------------------------------------------------------------------------

    def test_a_record_handed_out_never_changes(self, store):
        """What was read is a picture: a later write doesn't touch it."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        read, held = store.get(new.id), store.claim(new, LEASE, b"n2").record
        store.park(new.id, b"n1", "exception")
        store.complete(new.id, b"n1", b"answer", RETENTION)
        for record in (read, held):
            assert (record.state, record.answer, record.token) == (State.IN_FLIGHT, None, Token(1, b"n1"))

    def test_every_record_carries_the_stores_now(self, store, advance):
        """R34: ages are told by the store's clock, read when it answered."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        before = store.get(new.id).now
        advance(LEASE / 2)
        moments = [
            store.get(new.id).now,
            store.claim(new, LEASE, b"n2").record.now,
            store.claim_unsettled(new.id, LEASE, b"h1", 0.0).record.now,
            store.scan(Filter()).records[0].now,
        ]
        assert moments == [near(before + LEASE / 2)] * 4
        assert min(moments) > before

    def test_open_close_and_check_may_be_repeated(self, store):
        """Opening an open store, closing a closed one and checking at any time change no record."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.open()
        store.close()
        store.close()
        assert all(note.endswith(".") for note in store.check())
        store.open()
        assert type(store.claim(new, LEASE, b"n2")) is Held

    def test_the_renewer_renews_and_purges_on_its_own_thread(self, store):
        """R31: a blocking store over the same records, opened, used and closed elsewhere; the store stays open."""
        new = new_record()
        store.claim(new, LEASE, b"n1")

        def renew() -> list[Any]:
            renewer = store.renewer()
            renewer.open()
            fenced = renewer.renew([ClaimRef(new.id, b"n1"), ClaimRef(new.id, b"n2")], LEASE * 3)
            purged = renewer.purge(10)
            renewer.close()
            return [*fenced, purged]

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(renew).result() == [ClaimRef(new.id, b"n2"), Purged(0, 0)]
        record = store.get(new.id)
        assert record.lease_until == near(record.now + LEASE * 3)
        assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()
