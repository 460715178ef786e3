"""How a claim ends: completed, released or parked."""

from __future__ import annotations

import pytest

from twiceproof.core._record import Done, Fenced, Found, Granted, State, Token
from twiceproof.stores import Store
from twiceproof.testing.store_contract._ground import (
    AGAIN,
    KEEP,
    LEASE,
    RETENTION,
    Advance,
    expect_found,
    expect_granted,
    kept,
    near,
    new_record,
    timeless,
)


class SettlingContract:
    """What complete, release and park promise."""

    @pytest.mark.parametrize("answer", [b"", b"\x00\xff" * 512, b"x" * (1 << 20)], ids=["empty", "binary", "1 MiB"])
    def test_a_completed_record_answers_byte_for_byte(self, store: Store, answer: bytes) -> None:
        """R25: the answer is found as it was stored."""
        new = new_record()
        granted = expect_granted(store.claim(new, LEASE, b"n1"))
        assert store.complete(new.id, b"n1", answer, RETENTION) == Done()
        found = store.claim(new, LEASE, b"n2")
        assert type(found) is Found
        assert (found.record.state, found.record.answer) == (State.COMPLETED, answer)
        assert found.record.completed_at == near(found.record.now)
        assert found.record.expires_at == near(found.record.now + RETENTION)
        assert found.record.token == granted.token

    def test_completing_again_is_done_and_changes_nothing(self, store: Store) -> None:
        """R48: the same nonce hears Done again; the first answer stays. Another's nonce is fenced."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.complete(new.id, b"n1", b"first", RETENTION)
        assert store.complete(new.id, b"n1", b"second", RETENTION) == Done()
        assert store.complete(new.id, b"n2", b"third", RETENTION) == Fenced()
        assert kept(store, new.id).answer == b"first"

    def test_a_late_holder_completes_after_its_lapse_and_its_parking(self, store: Store, advance: Advance) -> None:
        """R42: until another token is granted, its answer settles the record."""
        lapsed, parked = new_record(), new_record()
        for new in (lapsed, parked):
            store.claim(new, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        advance(LEASE * 3)
        for new in (lapsed, parked):
            assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()
            record = kept(store, new.id)
            assert (record.state, record.cause, record.answer) == (State.COMPLETED, None, b"answer")

    def test_only_the_token_settles(self, store: Store) -> None:
        """R30: another nonce, and any nonce on an absent record, is fenced and changes nothing."""
        new, absent = new_record(), new_record()
        store.claim(new, LEASE, b"n1")
        before = kept(store, new.id)
        for id in (new.id, absent.id):
            assert store.complete(id, b"n2", b"answer", RETENTION) == Fenced()
            assert store.release(id, b"n2") == Fenced()
            assert store.park(id, b"n2", "exception") == Fenced()
            assert store.forget(id, b"n2") == Fenced()
        assert timeless(kept(store, new.id)) == timeless(before)
        assert store.get(absent.id) is None

    def test_nonces_and_ids_compare_by_exact_bytes(self, store: Store) -> None:
        """R30: case, NUL bytes and trailing blanks make another key."""
        upper = new_record(id=b"Key\x00A")
        store.claim(upper, LEASE, b"N\x001")
        for id in (b"key\x00a", b"Key", b"Key\x00A "):
            assert store.get(id) is None
        for nonce in (b"n\x001", b"N", b"N\x001 "):
            assert store.complete(upper.id, nonce, b"answer", RETENTION) == Fenced()
        assert store.complete(upper.id, b"N\x001", b"answer", RETENTION) == Done()

    def test_a_released_key_is_new(self, store: Store) -> None:
        """Nothing happened: the next claim is a first one, of another incarnation."""
        new = new_record()
        first = expect_granted(store.claim(new, LEASE, b"n1"))
        assert store.release(new.id, b"n1") == Done()
        assert store.get(new.id) is None
        assert store.release(new.id, b"n1") == Fenced()
        second = expect_granted(store.claim(new, LEASE, b"n2"))
        assert second == Granted(Token(second.token.number, b"n2"), second.incarnation)
        assert second.incarnation != first.incarnation

    def test_a_completed_record_is_not_released_or_parked(self, store: Store) -> None:
        """R25: what was answered stays answered, for its own token too."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.complete(new.id, b"n1", b"answer", RETENTION)
        assert store.release(new.id, b"n1") == Fenced()
        assert store.park(new.id, b"n1", "exception") == Fenced()
        assert kept(store, new.id).answer == b"answer"

    def test_a_parked_record_is_unsettled_and_kept(self, store: Store, advance: Advance) -> None:
        """R28, R42: nobody runs it, its cause is told, and it is kept for its keeping time from the parking."""
        new = new_record(AGAIN)
        granted = expect_granted(store.claim(new, LEASE, b"n1"))
        advance(LEASE / 2)
        assert store.park(new.id, b"n1", "exception") == Done()
        record = expect_found(store.claim(new, LEASE, b"n2"))
        assert (record.state, record.cause) == (State.PARKED, "exception")
        assert record.unsettled
        assert record.expires_at == near(record.now + KEEP)
        assert record.token == granted.token

    def test_a_late_holder_releases_after_its_lapse_and_its_parking(self, store: Store, advance: Advance) -> None:
        """R42: nothing happened, says its holder: the key is free."""
        lapsed, parked = new_record(), new_record()
        for new in (lapsed, parked):
            store.claim(new, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        advance(LEASE * 2)
        for new in (lapsed, parked):
            assert store.release(new.id, b"n1") == Done()
            assert store.get(new.id) is None
