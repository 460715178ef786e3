"""How long records stay, and how operators see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from twiceproof.core._record import Absent, ClaimRef, Done, Fenced, Granted, State, Token
from twiceproof.stores import Filter, Page, Purged, Store
from twiceproof.testing.store_contract._ground import (
    KEEP,
    LEASE,
    RETENTION,
    Advance,
    all_records,
    expect_found,
    expect_granted,
    kept,
    near,
    new_record,
)


class KeepingContract:
    """What expiry, purge, forget and scan promise."""

    def test_a_completed_record_expires_after_its_retention(self, store: Store, advance: Advance) -> None:
        """R33: counted from the completion; then the key is new."""
        new = new_record()
        first = expect_granted(store.claim(new, LEASE, b"n1"))
        advance(LEASE)
        store.complete(new.id, b"n1", b"answer", RETENTION)
        advance(RETENTION * 0.9)
        expect_found(store.claim(new, LEASE, b"n2"))
        advance(RETENTION * 0.2)
        assert store.get(new.id) is None
        assert store.complete(new.id, b"n1", b"answer", RETENTION) == Fenced()
        again = expect_granted(store.claim(replace(new, fingerprint=b"other"), LEASE, b"n2"))
        assert again == Granted(Token(again.token.number, b"n2"), again.incarnation, forgot=False)
        assert again.incarnation != first.incarnation
        record = kept(store, new.id)
        assert (record.answer, record.completed_at, record.fingerprint) == (None, None, b"other")
        assert record.created_at == near(record.now)

    @pytest.mark.parametrize("parked", [False, True], ids=["lapsed", "parked"])
    def test_an_unsettled_record_is_kept_then_forgotten_with_notice(
        self,
        store: Store,
        advance: Advance,
        parked: bool,  # noqa: FBT001  # given by name below
    ) -> None:
        """R42: no claim, purge or asking ends it before its keeping time; then the key is new, and that is told."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        if parked:
            advance(LEASE)
            store.park(new.id, b"n1", "exception")
        advance(KEEP * 0.9)
        assert store.purge(100) == Purged(0, 0)
        expect_found(store.claim(new, LEASE, b"n2"))
        advance(KEEP * 0.1 + LEASE * 1.1)
        assert store.claim_unsettled(new.id, LEASE, b"h1", 0.0, force=True) == Absent()
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()
        assert list(store.renew([ClaimRef(new.id, b"n1")], LEASE)) == [ClaimRef(new.id, b"n1")]
        assert store.park(new.id, b"n1", "late") == Fenced()
        assert store.release(new.id, b"n1") == Fenced()
        assert store.forget(new.id, b"n1") == Fenced()
        answer = expect_granted(store.claim(new, LEASE, b"n2"))
        assert answer == Granted(Token(answer.token.number, b"n2"), answer.incarnation, forgot=True)

    def test_purge_deletes_what_expired_a_step_at_a_time(self, store: Store, advance: Advance) -> None:
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
        assert expect_granted(store.claim(unsettled, LEASE, b"n2")).forgot is False

    def test_forget_deletes_in_any_state_under_the_token(self, store: Store) -> None:
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
    def test_scan_pages_through_all_records_oldest_first(self, store: Store, advance: Advance, limit: int) -> None:
        """Each live record once, whatever the page's size; the last page has no cursor."""
        news = [new_record() for _ in range(7)]
        for new in (news[3], *news[:3], *news[4:]):
            store.claim(new, LEASE, b"n1")
            advance(0.01)
        expected = [new.id for new in (news[3], *news[:3], *news[4:])]
        assert [record.id for record in all_records(store, limit=limit)] == expected
        assert store.scan(Filter(), None, 7).cursor is None

    def test_scan_goes_on_where_records_were_deleted(self, store: Store, advance: Advance) -> None:
        """A cursor holds though its record is gone."""
        news = [new_record() for _ in range(4)]
        for new in news:
            store.claim(new, LEASE, b"n1")
            advance(0.01)
        page = store.scan(Filter(), None, 2)
        store.forget(news[1].id, b"n1")
        assert [record.id for record in store.scan(Filter(), page.cursor, 2).records] == [new.id for new in news[2:]]

    def test_a_key_that_became_new_is_young(self, store: Store, advance: Advance) -> None:
        """Oldest first is by creation: an expired record that is claimed again goes to the end."""
        first, second = new_record(), new_record()
        store.claim(first, LEASE, b"n1")
        store.complete(first.id, b"n1", b"answer", LEASE)
        advance(LEASE / 2)
        store.claim(second, LEASE, b"n1")
        advance(LEASE)
        store.claim(first, LEASE, b"n2")
        assert [record.id for record in all_records(store, limit=1)] == [second.id, first.id]

    def test_scan_filters(self, store: Store, advance: Advance) -> None:
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
    def test_a_cursor_that_no_page_carried_is_refused(self, store: Store, cursor: str) -> None:
        """An operator's typo is a sentence, not an odd page."""
        with pytest.raises(ValueError, match="cursor is not one that scan returned"):
            store.scan(Filter(), cursor)

    def test_a_page_of_nothing_is_refused(self, store: Store) -> None:
        """A limit below one would page for ever."""
        with pytest.raises(ValueError, match="at least 1"):
            store.scan(Filter(), None, 0)

    def test_an_empty_store_has_one_empty_page(self, store: Store) -> None:
        """Nothing to scan, purge or get."""
        assert store.scan(Filter()) == Page([], None)
        assert store.purge(10) == Purged(0, 0)
        assert store.get(b"absent") is None
