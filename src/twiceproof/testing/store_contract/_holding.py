"""What a lease, the store's clock and an open store promise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from twiceproof.core._record import ClaimRef, Done, State
from twiceproof.stores import Filter, Purged, Store
from twiceproof.testing.store_contract._ground import (
    KEEP,
    LEASE,
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


class HoldingContract:
    """What a holder and its renewals are promised."""

    def test_renewing_prolongs_the_lease_and_tells_who_is_fenced(self, store: Store, advance: Advance) -> None:
        """R30, R31: each claim gets a whole lease from now; another's nonce and an absent id are returned."""
        mine, others = new_record(), new_record()
        store.claim(mine, LEASE, b"n1")
        store.claim(others, LEASE, b"n2")
        advance(LEASE * 0.7)
        wrong, absent = ClaimRef(others.id, b"n1"), ClaimRef(new_record().id, b"n1")
        assert list(store.renew([wrong, ClaimRef(mine.id, b"n1"), absent], LEASE)) == [wrong, absent]
        advance(LEASE * 0.7)
        expect_held(store.claim(mine, LEASE, b"n3"))
        expect_found(store.claim(others, LEASE, b"n3"))
        record = kept(store, mine.id)
        assert record.expires_at - record.lease_until == near(KEEP)

    def test_renewing_nothing_and_much_works(self, store: Store) -> None:
        """R31: one call for all claims of a process, however many."""
        assert list(store.renew([], LEASE)) == []
        news = [new_record() for _ in range(120)]
        for new in news:
            store.claim(new, LEASE, b"n1")
        refs = [ClaimRef(new.id, b"n1") for new in news]
        absent = [ClaimRef(new_record().id, b"n1") for _ in range(120)]
        assert list(store.renew(refs + absent, LEASE)) == absent

    def test_a_holder_renews_after_its_lapse_and_its_parking(self, store: Store, advance: Advance) -> None:
        """R42: the token decides, never the time: it is in flight again, and may be settled."""
        lapsed, parked = new_record(), new_record()
        for new in (lapsed, parked):
            store.claim(new, LEASE, b"n1")
        store.park(parked.id, b"n1", "exception")
        advance(LEASE * 1.5)
        assert list(store.renew([ClaimRef(lapsed.id, b"n1"), ClaimRef(parked.id, b"n1")], LEASE)) == []
        for new in (lapsed, parked):
            record = expect_held(store.claim(new, LEASE, b"n2"))
            assert (record.state, record.cause) == (State.IN_FLIGHT, None)
            assert record.expires_at == near(record.now + LEASE + KEEP)
            assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()

    def test_renewing_what_is_completed_changes_nothing(self, store: Store) -> None:
        """R31: a renewal that crosses its own completion is not fenced, and prolongs no retention."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.complete(new.id, b"n1", b"answer", RETENTION)
        before = kept(store, new.id)
        assert list(store.renew([ClaimRef(new.id, b"n1")], LEASE * 50)) == []
        assert timeless(kept(store, new.id)) == timeless(before)

    def test_a_record_handed_out_never_changes(self, store: Store) -> None:
        """What was read is a picture: a later write doesn't touch it."""
        new = new_record()
        token = expect_granted(store.claim(new, LEASE, b"n1")).token
        read, held = kept(store, new.id), expect_held(store.claim(new, LEASE, b"n2"))
        store.park(new.id, b"n1", "exception")
        store.complete(new.id, b"n1", b"answer", RETENTION)
        for record in (read, held):
            assert (record.state, record.answer, record.token) == (State.IN_FLIGHT, None, token)

    def test_every_record_carries_the_stores_now(self, store: Store, advance: Advance) -> None:
        """R34: ages are told by the store's clock, read when it answered."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        before = kept(store, new.id).now
        advance(LEASE / 2)
        moments = [
            kept(store, new.id).now,
            expect_held(store.claim(new, LEASE, b"n2")).now,
            expect_held(store.claim_unsettled(new.id, LEASE, b"h1", 0.0)).now,
            store.scan(Filter()).records[0].now,
        ]
        assert moments == [near(before + LEASE / 2)] * 4
        assert min(moments) > before

    def test_open_close_and_check_may_be_repeated(self, store: Store) -> None:
        """Opening an open store, closing a closed one and checking at any time change no record."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.open()
        store.close()
        store.close()
        assert all(note.endswith(".") for note in store.check())
        store.open()
        expect_held(store.claim(new, LEASE, b"n2"))

    def test_the_renewer_renews_and_purges_on_its_own_thread(self, store: Store) -> None:
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
        record = kept(store, new.id)
        assert record.lease_until == near(record.now + LEASE * 3)
        assert store.complete(new.id, b"n1", b"answer", RETENTION) == Done()
