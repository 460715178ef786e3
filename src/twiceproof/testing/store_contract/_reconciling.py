"""The second claim beside the token."""

from __future__ import annotations

from dataclasses import replace

from twiceproof.core._record import Absent, ClaimRef, Done, Fenced, Granted, State
from twiceproof.stores import Store
from twiceproof.testing.store_contract._ground import (
    AGAIN,
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
)


class ReconcilingContract:
    """What the second claim promises (R28)."""

    def test_the_second_claim_is_for_unsettled_records(self, store: Store, advance: Advance) -> None:
        """R28: absent, held, found; granted beside the token where parked or lapsed."""
        live, done, parked, lapsed = (new_record() for _ in range(4))
        tokens = {new.id: expect_granted(store.claim(new, LEASE, b"n1")).token for new in (done, parked, lapsed)}
        store.complete(done.id, b"n1", b"answer", RETENTION)
        store.park(parked.id, b"n1", "exception")
        advance(LEASE * 1.5)
        store.claim(live, LEASE, b"n1")
        assert store.claim_unsettled(new_record().id, LEASE, b"h1", 3.0) == Absent()
        expect_held(store.claim_unsettled(live.id, LEASE, b"h1", 3.0))
        expect_found(store.claim_unsettled(done.id, LEASE, b"h1", 3.0))
        for new in (parked, lapsed):
            answer = expect_granted(store.claim_unsettled(new.id, LEASE, b"h1", 3.0))
            assert (answer.token, answer.attempts) == (tokens[new.id], 1)
            record = kept(store, new.id)
            assert (record.reconcile_nonce, record.token.nonce) == (b"h1", b"n1")
            assert record.reconcile_until == near(record.now + LEASE)
            assert record.reconcile_asked_at == near(record.now)

    def test_one_asks_at_a_time_and_not_too_often(self, store: Store, advance: Advance) -> None:
        """R28: others are held meanwhile; after a *don't know* it is asked again at most every so often."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.park(new.id, b"n1", "exception")
        expect_granted(store.claim_unsettled(new.id, LEASE, b"h1", 3.0))
        expect_held(store.claim_unsettled(new.id, LEASE, b"h2", 0.0))
        expect_held(store.claim(new, LEASE, b"n2"))
        expect_granted(store.claim_unsettled(new.id, LEASE, b"h1", 3.0))  # the same call again
        assert store.park(new.id, b"h1", "ignored") == Done()
        record = expect_found(store.claim_unsettled(new.id, LEASE, b"h2", 3.0))
        assert (record.state, record.cause) == (State.PARKED, "exception")
        advance(3.5)
        expect_granted(store.claim_unsettled(new.id, LEASE, b"h2", 3.0))

    def test_a_lapsed_second_claim_settles_nothing(self, store: Store, advance: Advance) -> None:
        """R28: once its lease ran out it may neither complete, release nor grant; another may ask."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.park(new.id, b"n1", "exception")
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        advance(LEASE * 1.5)
        assert store.complete(new.id, b"h1", b"answer", RETENTION) == Fenced()
        assert store.release(new.id, b"h1") == Fenced()
        expect_found(store.claim(new, LEASE, b"n2", after=b"h1"))
        expect_granted(store.claim_unsettled(new.id, LEASE, b"h2", 0.0))
        assert store.park(new.id, b"h1", "ignored") == Fenced()

    def test_a_verdict_of_completed_fences_the_late_holder(self, store: Store) -> None:
        """R28: the second claim's nonce becomes the token's, with a greater number."""
        new = new_record()
        first = expect_granted(store.claim(new, LEASE, b"n1")).token
        store.park(new.id, b"n1", "exception")
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Done()
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Done()
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()
        record = kept(store, new.id)
        assert (record.answer, record.token.nonce) == (b"verdict", b"h1")
        assert record.token.number > first.number
        assert (record.reconcile_nonce, record.reconcile_until) == (None, None)

    def test_the_holders_own_answer_stands_against_the_verdict(self, store: Store, advance: Advance) -> None:
        """R28: the second claim fences nobody; if the holder completes meanwhile, the verdict is fenced."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert store.complete(new.id, b"n1", b"mine", RETENTION) == Done()
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Fenced()
        assert store.release(new.id, b"h1") == Fenced()
        assert store.park(new.id, b"h1", "ignored") == Fenced()
        expect_found(store.claim(new, LEASE, b"n2", after=b"h1"))
        assert kept(store, new.id).answer == b"mine"

    def test_nothing_happened_grants_a_new_token(self, store: Store, advance: Advance) -> None:
        """R28: under the same incarnation, with the caller's guarantee; from then on the old token is fenced."""
        new = new_record(AGAIN)
        first = expect_granted(store.claim(new, LEASE, b"n1"))
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        answer = expect_granted(store.claim(replace(new, guarantee=ONCE), LEASE, b"n2", after=b"h1"))
        assert answer == Granted(answer.token, first.incarnation, attempts=2, taken_over=True)
        assert answer.token.number > first.token.number
        record = kept(store, new.id)
        assert (record.state, record.guarantee) == (State.IN_FLIGHT, ONCE)
        assert (record.reconcile_nonce, record.reconcile_until, record.reconcile_asked_at) == (None, None, None)
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Fenced()
        assert store.complete(new.id, b"n2", b"answer", RETENTION) == Done()

    def test_nothing_happened_is_only_for_who_asked_and_for_the_same_payload(self, store: Store) -> None:
        """R24, R28: another's second claim, or another fingerprint, grants nothing."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.park(new.id, b"n1", "exception")
        expect_found(store.claim(new, LEASE, b"n2", after=b"h1"))
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        expect_held(store.claim(new, LEASE, b"n2", after=b"h2"))
        expect_held(store.claim(new, LEASE, b"n2", after=b"n1"))
        expect_held(store.claim(replace(new, fingerprint=b"other"), LEASE, b"n2", after=b"h1"))

    def test_a_second_claim_keeps_a_lapsed_record_from_being_taken_over(self, store: Store, advance: Advance) -> None:
        """R27: at-least-once waits for the verdict."""
        new = new_record(AGAIN)
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        expect_held(store.claim(new, LEASE, b"n2"))
        store.park(new.id, b"h1", "ignored")
        expect_granted(store.claim(new, LEASE, b"n2"))

    def test_the_second_claim_may_release(self, store: Store) -> None:
        """R28: an operator's *nothing happened*: the key is free."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        store.park(new.id, b"n1", "exception")
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert store.release(new.id, b"h1") == Done()
        assert store.get(new.id) is None
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()

    def test_a_holder_that_renews_ends_the_second_claim(self, store: Store, advance: Advance) -> None:
        """R42: it is in flight again; the verdict is fenced."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, 5 * LEASE, b"h1", 0.0)
        assert list(store.renew([ClaimRef(new.id, b"n1")], LEASE)) == []
        assert kept(store, new.id).reconcile_nonce is None
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Fenced()

    def test_a_holder_that_parks_leaves_the_second_claim(self, store: Store, advance: Advance) -> None:
        """R28: the hook goes on and its verdict counts."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        store.claim_unsettled(new.id, LEASE, b"h1", 0.0)
        assert store.park(new.id, b"n1", "exception") == Done()
        expect_held(store.claim(new, LEASE, b"n2"))
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Done()

    def test_an_operator_may_force_the_second_claim(self, store: Store) -> None:
        """R28: over a live lease, a live second claim and the pause between askings; never over an answer."""
        new = new_record()
        store.claim(new, LEASE, b"n1")
        expect_granted(store.claim_unsettled(new.id, LEASE, b"h1", 9.0, force=True))
        expect_granted(store.claim_unsettled(new.id, LEASE, b"h2", 9.0, force=True))
        assert store.complete(new.id, b"h1", b"verdict", RETENTION) == Fenced()
        assert store.complete(new.id, b"h2", b"verdict", RETENTION) == Done()
        expect_found(store.claim_unsettled(new.id, LEASE, b"h3", 9.0, force=True))
