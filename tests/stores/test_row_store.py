"""`RowStore` and `in_threads`: what they promise beyond the contract."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tests.support.row_stores import DictStore
from twiceproof import AsyncEngine, Engine, Policy, Request, Response
from twiceproof.core._record import FORMAT, Fenced, Found, Granted, Token
from twiceproof.errors import ConfigurationError, StoreUnavailable, UnknownFormat
from twiceproof.stores import AsyncStore, Filter, Purged, RowStore, Step, Store, in_threads
from twiceproof.stores._row_codec import decode_row, encode_row
from twiceproof.testing import FakeClock
from twiceproof.testing.store_contract._ground import KEEP, LEASE, RETENTION, kept, new_record

REQUEST = Request("POST", b"/orders", headers=[(b"idempotency-key", b"k-1")], body=b"{}")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock) -> DictStore:
    return DictStore(clock)


class Swapping(DictStore):
    """Compares and swaps; each step is called once in vain, with something else in between."""

    def change(self, id: bytes, step: Step) -> None:
        while True:
            before = self.stored.get(id)
            after = step(before)
            self.between(id)
            with self.lock:
                if self.stored.get(id) is before:
                    if after is None:
                        self.stored.pop(id, None)
                    else:
                        self.stored[id] = after
                    return

    def between(self, id: bytes) -> None:
        """Override: what another process does."""


def test_only_two_methods_must_be_written():
    """The third, the clock, is the host's wall clock unless one says otherwise (R34)."""
    assert RowStore.__abstractmethods__ == {"change", "rows"}
    assert abs(RowStore.now(DictStore(time.time)) - time.time()) < 60


def test_it_forgets_unless_it_says_otherwise():
    """R41: an engine refuses it like the memory store, until its author has thought about it."""
    with pytest.raises(ConfigurationError, match="accept_volatile"):
        Engine(DictStore(time.time))


def test_the_last_call_of_a_step_counts(clock):
    """A store that compares and swaps calls it again, and answers by what it stored."""
    new = new_record()

    class Overtaken(Swapping):
        def between(self, id: bytes) -> None:
            if id not in self.stored:
                other = DictStore(clock)
                other.claim(new, LEASE, b"other")
                self.stored.update(other.stored)

    answer = Overtaken(clock).claim(new, LEASE, b"mine")
    assert type(answer).__name__ == "Held"


def test_what_changes_nothing_is_not_written(store):
    """A held claim, a fenced write and a repeated completion give back the very row that is stored."""
    new = new_record()
    store.claim(new, LEASE, b"n1")
    store.complete(new.id, b"n1", b"answer", RETENTION)
    before = store.stored[new.id]
    store.claim(new, LEASE, b"n2")
    store.complete(new.id, b"n1", b"second", RETENTION)
    store.release(new.id, b"n2")
    store.renew([], LEASE)
    assert store.get(new.id) is not None
    assert store.stored[new.id] is before


def test_the_clock_is_read_once_the_row_is_ours(clock):
    """R34: a claim that waited for its turn gets a whole lease."""

    class Waiting(DictStore):
        def change(self, id: bytes, step: Step) -> None:
            self.clock.advance(50.0)  # type: ignore[attr-defined]  # it is a FakeClock here
            super().change(id, step)

    store = Waiting(clock)
    new = new_record()
    store.claim(new, LEASE, b"n1")
    assert decode_row(store.stored[new.id]).lease_until == clock.now + LEASE


def test_an_unknown_row_is_never_granted_or_purged(store, clock):
    """R17: bytes of another release are a store error to every verb that meets them, and stay as they are."""
    new, other = new_record(), new_record()
    store.claim(other, LEASE, b"n1")
    store.stored[new.id] = b"\x02of a later release"
    clock.advance(KEEP + LEASE * 2)
    assert store.purge(10) == Purged(1, 1)
    for call in (
        lambda: store.claim(new, LEASE, b"n1"),
        lambda: store.complete(new.id, b"n1", b"", RETENTION),
        lambda: store.get(new.id),
        lambda: store.scan(Filter()),
    ):
        with pytest.raises(UnknownFormat):
            call()
    assert store.stored == {new.id: b"\x02of a later release"}


def test_a_record_of_a_later_format_is_found_and_kept(store, clock):
    """R17, R53: in bytes that it can read, it is shown, never granted, changed by its own nonce only, never purged."""
    new = new_record()
    store.claim(new, LEASE, b"n1")
    store.stored[new.id] = encode_row(decode_row(store.stored[new.id])._replace(format=FORMAT + 1))
    clock.advance((KEEP + LEASE) * 2)
    assert type(store.claim(new, LEASE, b"n2")) is Found
    assert store.purge(10) == Purged(0)
    assert store.complete(new.id, b"n2", b"", RETENTION) == Fenced()
    assert kept(store, new.id).format == FORMAT + 1


def test_what_a_purge_saw_expired_is_looked_at_again(clock):
    """R42: a record that its key's next claim made new between the listing and the deletion stays."""
    new = new_record()

    class Claimed(Swapping):
        armed = False

        def between(self, id: bytes) -> None:
            if self.armed:
                self.armed = False
                other = DictStore(clock)
                other.claim(new, LEASE, b"n2")
                self.stored.update(other.stored)

    store = Claimed(clock)
    store.claim(new, LEASE, b"n1")
    clock.advance(KEEP + LEASE * 2)
    store.armed = True
    assert store.purge(10) == Purged(0)
    assert kept(store, new.id).token == Token(1, b"n2")


def test_a_store_that_cannot_even_read_fails_at_construction(clock):
    """R41: with its class and the reason, whether its storage or its author raised it."""

    class Broken(DictStore):
        def change(self, id: bytes, step: Step) -> None:
            raise self.error

        error: Exception = PermissionError(13, "Permission denied")

    store = Broken(clock)
    with pytest.raises(ConfigurationError, match=r"^Broken can't keep records: \[Errno 13\] Permission denied$"):
        Engine(store, accept_volatile=True)
    store.error = StoreUnavailable("no route")
    with pytest.raises(ConfigurationError, match="no route"):
        store.check()


def test_both_engines_take_it(clock):
    """One object; the asynchronous engine through `in_threads`, which the blocking one refuses and the other needs."""
    store = DictStore(clock)
    ran: list[bytes] = []

    def work(request, attempt):
        ran.append(request.body)
        return Response(201, body=b"made")

    async def wait(request, attempt):
        return work(request, attempt)

    async def again() -> Response:
        async with AsyncEngine(in_threads(store), accept_volatile=True) as engine:
            return await engine.handle(REQUEST, principal="a", policy=Policy(), handler=wait)

    with Engine(store, accept_volatile=True) as engine:
        first = engine.handle(REQUEST, principal="a", policy=Policy(), handler=work)
    second = asyncio.run(again())
    assert (first.body, second.body, second.header(b"idempotent-replayed"), ran) == (b"made", b"made", b"true", [b"{}"])
    with pytest.raises(ConfigurationError, match="a blocking Store"):
        Engine(in_threads(store), accept_volatile=True)  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(ConfigurationError, match="an AsyncStore"):
        AsyncEngine(store, accept_volatile=True)  # type: ignore[arg-type]  # the same


def test_threads_keep_a_slow_store_off_the_event_loop(clock):
    """A claim that waits for its row lets the loop go on, and its renewer is the store's own."""
    gate = threading.Event()

    class Slow(DictStore):
        def change(self, id: bytes, step: Step) -> None:
            assert gate.wait(20)
            super().change(id, step)

    async def claimed() -> object:
        claim = asyncio.create_task(asynchronous.claim(new_record(), LEASE, b"n1"))
        await asyncio.sleep(0.01)
        gate.set()  # the loop itself does it
        return await claim

    store = Slow(clock)
    asynchronous = in_threads(store)
    assert type(asyncio.run(claimed())) is Granted
    assert asynchronous.renewer() is store
    assert (isinstance(store, Store), isinstance(asynchronous, AsyncStore)) == (True, True)
