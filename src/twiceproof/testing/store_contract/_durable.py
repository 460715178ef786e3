"""What a store promises whose records outlive the object, the process and the machine's restart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twiceproof.core._record import ClaimRef, Done, Fenced, Granted, State
from twiceproof.stores import Store
from twiceproof.testing.store_contract._ground import (
    AGAIN,
    LEASE,
    RETENTION,
    Advance,
    all_records,
    expect_found,
    expect_granted,
    expect_held,
    kept,
    new_record,
    timeless,
)
from twiceproof.testing.store_contract._races import CROWD, LONG, ROUNDS, at_once

Another = Callable[[], Store]


class DurableContract:
    """What several stores over the same records promise together, as the processes of a service have them."""

    def test_records_outlive_the_store_that_wrote_them(self, store: Store, another: Another) -> None:
        """R21, R25: what was in flight is still held, and what was completed answers byte for byte."""
        flying, done = new_record(), new_record()
        tokens = [expect_granted(store.claim(new, LONG, b"n1")).token for new in (flying, done)]
        store.complete(done.id, b"n1", b"\x00answer\xff", RETENTION * LONG)
        before = all_records(store)
        store.close()
        after = another()
        assert list(map(timeless, all_records(after))) == list(map(timeless, before))
        held, found = expect_held(after.claim(flying, LONG, b"n2")), expect_found(after.claim(done, LONG, b"n2"))
        assert [held.token, found.token] == tokens
        assert found.answer == b"\x00answer\xff"

    def test_a_write_is_seen_by_every_store_at_once(self, store: Store, another: Another) -> None:
        """R22: nobody decides on what it remembers; a key that one store released is free in all."""
        other = another()
        new = new_record()
        store.claim(new, LONG, b"n1")
        expect_held(other.claim(new, LONG, b"n2"))
        store.park(new.id, b"n1", "exception")
        assert kept(other, new.id).state is State.PARKED
        other.release(new.id, b"n1")
        assert store.get(new.id) is None
        assert expect_granted(store.claim(new, LONG, b"n3")).token == kept(other, new.id).token

    def test_a_token_is_fenced_in_every_store(self, store: Store, another: Another, advance: Advance) -> None:
        """R27, R30: what one store took over can't be completed or renewed through another."""
        other = another()
        new = new_record(AGAIN)
        store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        expect_granted(other.claim(new, LONG, b"n2"))
        assert list(store.renew([ClaimRef(new.id, b"n1")], LONG)) == [ClaimRef(new.id, b"n1")]
        assert store.complete(new.id, b"n1", b"late", RETENTION) == Fenced()
        assert store.complete(new.id, b"n2", b"answer", RETENTION * LONG) == Done()
        assert kept(other, new.id).answer == b"answer"

    def test_of_many_claims_through_several_stores_one_is_granted(self, store: Store, another: Another) -> None:
        """R22: over any number of processes."""
        stores = [store, *(another() for _ in range(3))]
        for _ in range(ROUNDS):
            new = new_record()
            calls = [partial(stores[n % len(stores)].claim, new, LONG, b"nonce-%d" % n) for n in range(CROWD)]
            assert [type(answer) for answer in at_once(*calls)].count(Granted) == 1
