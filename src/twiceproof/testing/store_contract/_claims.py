"""What a claim promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twiceproof.core._record import ClaimRef, Done, Fenced, Granted, Guarantee, Record, State, Token
from twiceproof.stores import Store
from twiceproof.testing.store_contract._ground import (
    AGAIN,
    KEEP,
    LEASE,
    ONCE,
    RETENTION,
    Advance,
    expect_found,
    expect_granted,
    expect_held,
    kept,
    near,
    new_record,
    timeless,
)


class ClaimContract:
    """What a claim promises."""

    def test_an_absent_record_is_granted(self, store: Store) -> None:
        """R21: the claim of an absent key is granted, as the first attempt of a new incarnation."""
        answer = expect_granted(store.claim(new_record(), LEASE, b"n1"))
        assert answer == Granted(answer.token, answer.incarnation, attempts=1, taken_over=False, forgot=False)
        assert answer.token.nonce == b"n1"
        assert answer.token.number >= 1
        assert answer.incarnation

    def test_a_granted_record_reads_as_it_was_claimed(self, store: Store) -> None:
        """R54: everything that was given is kept, byte for byte, and the moments follow from the lease."""
        new = new_record()
        granted = expect_granted(store.claim(new, LEASE, b"\x00nonce\xff"))
        record = kept(store, new.id)
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
            token=Token(granted.token.number, b"\x00nonce\xff"),
            lease_until=near(record.now + LEASE),
            attempts=1,
            created_at=near(record.now),
            granted_at=near(record.now),
            expires_at=near(record.now + LEASE + KEEP),
            now=record.now,
        )

    def test_a_live_claim_of_another_is_held(self, store: Store) -> None:
        """R23: whoever comes second is shown the record, and writes nothing."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        before = kept(store, new.id)
        record = expect_held(store.claim(new, LEASE * 9, b"n2"))
        assert timeless(record) == timeless(before)
        assert timeless(kept(store, new.id)) == timeless(before)

    def test_another_fingerprint_is_shown_the_record_and_changes_nothing(self, store: Store, advance: Advance) -> None:
        """R24: a live record is never taken for another payload, in flight or lapsed."""
        new = new_record(AGAIN)
        store.claim(new, LEASE, b"n1")
        other = replace(new, fingerprint=b"other")
        expect_held(store.claim(other, LEASE, b"n2"))
        advance(LEASE * 1.5)
        record = expect_found(store.claim(other, LEASE, b"n2"))
        assert record.fingerprint == b"\x01fingerprint"
        assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()
        expect_found(store.claim(other, LEASE, b"n2"))

    def test_the_same_call_again_finds_its_own_grant(self, store: Store, advance: Advance) -> None:
        """R48: a claim whose reply was lost is repeated with its nonce: the same token, a whole lease, no attempt."""
        new = new_record()
        first = expect_granted(store.claim(new, LEASE, b"n1"))
        advance(LEASE * 0.6)
        assert store.claim(new, LEASE, b"n1") == first
        advance(LEASE * 0.6)
        expect_held(store.claim(new, LEASE, b"n2"))
        advance(LEASE)
        assert store.claim(new, LEASE, b"n1") == first
        assert kept(store, new.id).attempts == 1

    def test_the_same_call_does_not_run_again_what_it_settled(self, store: Store) -> None:
        """R25, R28: the nonce of a completed or parked record grants nothing."""
        done, parked = new_record(), new_record()
        store.claim(done, LEASE, b"n1")
        store.complete(done.id, b"n1", b"answer", RETENTION)
        expect_found(store.claim(done, LEASE, b"n1"))
        store.claim(parked, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        expect_found(store.claim(parked, LEASE, b"n1"))

    def test_a_lapsed_at_least_once_record_is_taken_over_by_one(self, store: Store, advance: Advance) -> None:
        """R27: one retry gets a new token, with a greater number; the next is held; the old token is fenced."""
        new = new_record(AGAIN)
        first = expect_granted(store.claim(new, LEASE, b"n1"))
        advance(LEASE * 1.5)
        second = expect_granted(store.claim(new, LEASE, b"n2"))
        assert second == Granted(second.token, first.incarnation, attempts=2, taken_over=True)
        assert second.token.number > first.token.number
        expect_held(store.claim(new, LEASE, b"n3"))
        record = kept(store, new.id)
        assert (record.attempts, record.token.nonce) == (2, b"n2")
        assert record.granted_at == near(record.created_at + LEASE * 1.5)
        assert list(store.renew([ClaimRef(new.id, b"n1")], LEASE)) == [ClaimRef(new.id, b"n1")]
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()
        assert store.release(new.id, b"n1") == Fenced()
        assert store.park(new.id, b"n1", "exception") == Fenced()
        assert timeless(kept(store, new.id)) == timeless(record)

    def test_a_lease_lapses_at_its_end_and_not_before(self, store: Store, advance: Advance) -> None:
        """R27: stealable if and only if the lease's end is past, whatever lease the contender asks for."""
        new = new_record(AGAIN)
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 0.7)
        expect_held(store.claim(new, LEASE / 100, b"n2"))
        advance(LEASE * 0.35)
        expect_granted(store.claim(new, LEASE / 100, b"n2"))

    @pytest.mark.parametrize(("first", "second"), [(ONCE, ONCE), (ONCE, AGAIN), (AGAIN, ONCE)])
    def test_a_lapsed_record_is_not_taken_over_unless_both_say_so(
        self, store: Store, advance: Advance, first: Guarantee, second: Guarantee
    ) -> None:
        """R28: a deploy that changes the guarantee must not run an old effect again."""
        new = new_record(first)
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        record = expect_found(store.claim(replace(new, guarantee=second), LEASE, b"n2"))
        assert record.lapsed
        assert record.token.nonce == b"n1"
