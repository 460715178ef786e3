"""What the memory store promises beyond the contract."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from twiceproof.core._record import FORMAT, Done, Fenced, Found, Granted, Held, State, Token
from twiceproof.errors import ConfigurationError, StoreFull
from twiceproof.stores import Purged
from twiceproof.stores.memory import AsyncMemoryStore, MemoryStore
from twiceproof.testing import FakeClock
from twiceproof.testing.store_contract._ground import AGAIN, KEEP, LEASE, RETENTION, kept, new_record


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def fill(store: MemoryStore, count: int) -> list[bytes]:
    """Claim ``count`` new keys, and return their ids."""
    ids = []
    for _ in range(count):
        new = new_record()
        assert type(store.claim(new, LEASE, b"n1")) is Granted
        ids.append(new.id)
    return ids


def test_a_full_store_refuses_and_evicts_nothing(clock):
    """R42: live records stay, whatever comes; their own verbs go on."""
    store = MemoryStore(clock, max_records=3)
    ids = fill(store, 3)
    with pytest.raises(StoreFull, match="3 live records"):
        store.claim(new_record(), LEASE, b"n2")
    assert [kept(store, id).state for id in ids] == [State.IN_FLIGHT] * 3
    assert type(store.claim(new_record(id=ids[0]), LEASE, b"n2")) is Held
    assert store.complete(ids[0], b"n1", b"answer", RETENTION) == Done()
    clock.advance(RETENTION * 0.9)
    with pytest.raises(StoreFull):
        store.claim(new_record(), LEASE, b"n2")


def test_a_full_store_makes_room_from_what_expired(clock):
    """R33: expired records are swept before anybody is refused."""
    store = MemoryStore(clock, max_records=3)
    ids = fill(store, 3)
    store.complete(ids[1], b"n1", b"answer", RETENTION)
    clock.advance(RETENTION * 1.1)
    assert type(store.claim(new_record(), LEASE, b"n2")) is Granted
    assert store.get(ids[0]) is not None
    assert store.get(ids[2]) is not None


def test_an_expired_key_needs_no_room_of_its_own(clock):
    """A key that is claimed again takes its own place."""
    store = MemoryStore(clock, max_records=1)
    [id] = fill(store, 1)
    store.complete(id, b"n1", b"answer", RETENTION)
    clock.advance(RETENTION * 1.1)
    assert type(store.claim(new_record(id=id), LEASE, b"n2")) is Granted


def test_many_keys_of_short_retention_stay_bounded(clock):
    """B37: unique keys that expire are swept by later claims, without any purge; so is the index of expiries."""
    store = MemoryStore(clock)
    most = 0
    for number in range(200_000):
        new = new_record(id=number.to_bytes(4, "big"))
        store.claim(new, LEASE, b"n1")
        store.complete(new.id, b"n1", b"", 0.1)
        clock.advance(0.001)
        most = max(most, len(store._rows), len(store._expiries) // 4)
    assert most < 1_000


def test_renewals_do_not_grow_the_index(clock):
    """R31: an endless handler is renewed for ever in bounded memory."""
    store = MemoryStore(clock)
    new = new_record()
    store.claim(new, LEASE, b"n1")
    for _ in range(5_000):
        store.claim(new, LEASE, b"n1")
    assert len(store._expiries) < 2_000
    clock.advance(KEEP + LEASE * 2)
    assert store.purge(10) == Purged(1, 1)


@pytest.mark.parametrize("verb", ["release", "forget"])
def test_keys_that_are_let_go_of_do_not_grow_the_index(clock, verb):
    """R37: a service that only ever refuses keeps nothing of its keys, although none of them has expired."""
    store = MemoryStore(clock)
    for number in range(5_000):
        new = new_record(id=number.to_bytes(4, "big"))
        store.claim(new, LEASE, b"n1")
        assert getattr(store, verb)(new.id, b"n1") == Done()
    assert len(store._expiries) < 2_000


def test_what_claims_swept_is_told_by_the_next_purge(clock):
    """R42: an unsettled key that is forgotten is told of, whoever swept it."""
    store = MemoryStore(clock)
    fill(store, 2)
    clock.advance(KEEP + LEASE * 2)
    fill(store, 2)
    assert store.purge(10) == Purged(0, 2)
    assert store.purge(10) == Purged(0, 0)


def test_snapshots_are_equal_and_hashed_by_state(clock):
    """The explorer merges states: the same history gives the same value, in any order of ids."""
    first, second = MemoryStore(clock), MemoryStore(clock)
    one, two = new_record(), new_record()
    for store, order in ((first, (one, two)), (second, (two, one))):
        for new in order:
            store.claim(new, LEASE, b"n1")
    assert first.snapshot() == second.snapshot()
    assert hash(first.snapshot()) == hash(second.snapshot())
    before = first.snapshot()
    first.park(one.id, b"n1", "exception")
    assert first.snapshot() != before
    assert before == second.snapshot()


def test_a_restored_store_goes_on_from_the_snapshot(clock):
    """It answers as the first did, and the first is untouched by what it does."""
    store = MemoryStore(clock)
    gone, new = new_record(), new_record(AGAIN)
    store.claim(gone, LEASE, b"n1")
    clock.advance(KEEP + LEASE * 2)
    store.claim(new, LEASE, b"n1")  # sweeps the other
    twin = MemoryStore.restored(store.snapshot(), clock, max_records=1)
    clock.advance(LEASE * 2)
    assert twin.claim(new, LEASE, b"n2") == Granted(Token(2, b"n2"), b"n1", attempts=2, taken_over=True)
    with pytest.raises(StoreFull):
        twin.claim(new_record(), LEASE, b"n3")
    clock.advance(KEEP + LEASE)
    assert twin.purge(10) == Purged(1, 2)
    assert store.complete(new.id, b"n1", b"answer", RETENTION) == Fenced()
    assert store.purge(10) == Purged(1, 2)


def test_a_record_of_a_later_release_is_never_granted_or_deleted(clock):
    """R17, R53: whatever its moments say, it is found as it is, and left alone but by its own token."""
    store = MemoryStore(clock)
    new = new_record(AGAIN)
    store.claim(new, LEASE, b"n1")
    forgotten, [(id, row)] = store.snapshot()
    later = MemoryStore.restored((forgotten, ((id, row._replace(format=FORMAT + 1)),)), clock)
    assert type(later.claim(new, LEASE, b"n2")) is Found
    clock.advance(LEASE + KEEP * 2)
    assert type(later.claim(new, LEASE, b"n2")) is Found
    assert type(later.claim(new, LEASE, b"n1")) is Found
    assert type(later.claim_unsettled(new.id, LEASE, b"h1", 0.0, force=True)) is Found
    assert later.purge(10) == Purged(0, 0)
    assert kept(later, new.id).format == FORMAT + 1
    assert later.complete(new.id, b"n2", b"answer", RETENTION) == Fenced()
    assert later.complete(new.id, b"n1", b"answer", RETENTION) == Done()
    assert kept(later, new.id).format == FORMAT + 1


def test_a_waiting_record_is_held():
    """R23: between two attempts nobody else runs it."""
    clock = FakeClock()
    store = MemoryStore(clock)
    new = new_record(AGAIN)
    store.claim(new, LEASE, b"n1")
    forgotten, [(id, row)] = store.snapshot()
    waiting = MemoryStore.restored((forgotten, ((id, row._replace(state=State.WAITING)),)), clock)
    clock.advance(LEASE * 2)
    assert type(waiting.claim(new, LEASE, b"n2")) is Held
    assert type(waiting.claim_unsettled(new.id, LEASE, b"h1", 0.0)) is Held
    assert waiting.renew([], LEASE) == []


def test_two_colours_over_one_store_share_their_records():
    """`AsyncMemoryStore(store)` is a shell: tests may look at its records with the blocking one."""
    store = MemoryStore()
    assert AsyncMemoryStore(store).renewer() is store
    assert store.renewer() is store


@pytest.mark.parametrize("bound", [0, -1])
def test_a_store_without_room_is_refused(bound):
    """A bound of nothing is a mistake of the set-up."""
    with pytest.raises(ConfigurationError, match="max_records"):
        MemoryStore(max_records=bound)


def test_it_says_that_it_forgets():
    """The engine refuses policies that need more, and the operator is told."""
    assert MemoryStore().capabilities.durable is False
    assert AsyncMemoryStore().capabilities.durable is False
    [note] = AsyncMemoryStore().check()
    assert "forgets" in note


def test_its_default_clock_does_not_jump():
    """R34: monotonic, so that a step of the wall clock moves no lease."""
    store = MemoryStore()
    new = new_record()
    store.claim(new, LEASE, b"n1")
    assert kept(store, new.id).now < 1e9


def test_ten_thousand_verbs_from_many_threads_leave_nothing_behind():
    """B38: no hang, no lost record, no lock left held."""
    store = MemoryStore()
    new = new_record()
    wins = []

    def work(number: int) -> None:
        for turn in range(150):
            nonce = b"%d-%d" % (number, turn)
            if type(store.claim(new, 30.0, nonce)) is Granted:
                wins.append(nonce)
                assert store.release(new.id, nonce) == Done()

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(work, range(64)))
    assert wins
    assert store.snapshot() == (0, ())
    assert threading.active_count() < 64


def test_a_new_record_may_change_after_the_claim():
    """What was claimed was copied: the caller's object is the caller's."""
    store = MemoryStore()
    new = new_record()
    store.claim(new, LEASE, b"n1")
    path, id = new.path, new.id
    new.path = "/elsewhere"
    assert kept(store, id).path == path
    assert replace(new, path=path).path == path
