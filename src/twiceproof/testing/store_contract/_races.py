"""What happens when many call at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from twiceproof.core._record import ClaimRef, Done, Fenced, Granted, Held
from twiceproof.stores import Store
from twiceproof.testing.store_contract._ground import (
    AGAIN,
    LEASE,
    RETENTION,
    Advance,
    expect_granted,
    kept,
    new_record,
)

T = TypeVar("T")
CROWD: Final = 16
ROUNDS: Final = 5
LONG: Final = 30.0  # a lease that no slow machine outlives on a real clock


def at_once(*calls: Callable[[], T]) -> list[T]:
    """Make all calls at the same moment, each on a thread of its own, and return their answers in order."""
    gate = threading.Barrier(len(calls))

    def released(call: Callable[[], T]) -> T:
        gate.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(released, calls))


class RacesContract:
    """What every verb that decides promises in a crowd: one wins, and to lose is an answer, never an error."""

    def test_of_many_claims_at_once_one_is_granted(self, store: Store) -> None:
        """R22: exactly one runs; all others are shown the winner's record."""
        for _ in range(ROUNDS):
            new = new_record()
            calls = [partial(store.claim, new, LONG, b"nonce-%d" % n) for n in range(CROWD)]
            answers = at_once(*calls)
            [winner] = [answer for answer in answers if type(answer) is Granted]
            seen = {answer.record.token.nonce for answer in answers if type(answer) is Held}
            assert [type(answer) for answer in answers].count(Held) == CROWD - 1
            assert seen == {winner.token.nonce}

    def test_claims_of_different_keys_do_not_meet(self, store: Store) -> None:
        """R15: a crowd in which each has a key of its own is granted altogether, and every record stays."""
        news = [new_record() for _ in range(CROWD)]
        answers = at_once(*(partial(store.claim, new, LONG, new.id) for new in news))
        assert {type(answer) for answer in answers} == {Granted}
        assert [kept(store, new.id).token.nonce for new in news] == [new.id for new in news]

    def test_of_many_retries_of_a_lapsed_record_one_takes_over(self, store: Store, advance: Advance) -> None:
        """R27: exactly one gets the next token."""
        news = [new_record(AGAIN) for _ in range(ROUNDS)]
        for new in news:
            store.claim(new, LEASE, b"n1")
        advance(LEASE * 1.5)
        for new in news:
            calls = [partial(store.claim, new, LONG, b"nonce-%d" % n) for n in range(CROWD)]
            answers = at_once(*calls)
            [winner] = [answer for answer in answers if type(answer) is Granted]
            assert (winner.attempts, winner.taken_over) == (2, True)
            assert kept(store, new.id).token == winner.token

    def test_of_many_hooks_one_asks(self, store: Store) -> None:
        """R28: exactly one gets the second claim."""
        for _ in range(ROUNDS):
            new = new_record()
            store.claim(new, LONG, b"n1")
            store.park(new.id, b"n1", "exception")
            calls = [partial(store.claim_unsettled, new.id, LONG, b"hook-%d" % n, 0.0) for n in range(CROWD)]
            answers = at_once(*calls)
            assert sorted(type(answer).__name__ for answer in answers) == ["Granted"] + ["Held"] * (CROWD - 1)

    def test_a_late_holder_and_a_take_over_never_both_win(self, store: Store, advance: Advance) -> None:
        """R27, R30, R42: either the late answer is stored and nobody runs again, or its token is fenced."""
        news = [new_record(AGAIN) for _ in range(3 * ROUNDS)]
        first = {new.id: expect_granted(store.claim(new, LEASE, b"n1")).token for new in news}
        advance(LEASE * 1.5)
        for new in news:
            late, retry = at_once(
                partial(store.complete, new.id, b"n1", b"late", RETENTION * LONG),
                partial(store.claim, new, LONG, b"n2"),
            )
            record = kept(store, new.id)
            if late == Done():
                assert (type(retry) is Granted, record.token, record.answer) == (False, first[new.id], b"late")
            else:
                assert late == Fenced()
                token = expect_granted(retry).token
                assert (token.nonce, token.number > first[new.id].number) == (b"n2", True)
                assert (record.token, record.answer) == (token, None)

    def test_a_holder_and_a_verdict_never_both_complete(self, store: Store) -> None:
        """R28: of the late holder's answer and the hook's verdict one stands, and the other is fenced."""
        for _ in range(3 * ROUNDS):
            new = new_record()
            store.claim(new, LONG, b"n1")
            store.park(new.id, b"n1", "exception")
            store.claim_unsettled(new.id, LONG, b"h1", 0.0)
            answers = at_once(
                partial(store.complete, new.id, b"n1", b"mine", RETENTION * LONG),
                partial(store.complete, new.id, b"h1", b"verdict", RETENTION * LONG),
            )
            stands = {b"mine": [Done(), Fenced()], b"verdict": [Fenced(), Done()]}
            assert answers == stands[kept(store, new.id).answer or b""]

    def test_a_renewal_never_undoes_a_completion(self, store: Store) -> None:
        """R31: whichever comes first, the answer stays and nobody is fenced."""
        for _ in range(3 * ROUNDS):
            new = new_record()
            store.claim(new, LONG, b"n1")
            fenced, done = at_once(
                partial(store.renew, [ClaimRef(new.id, b"n1")], LONG),
                partial(store.complete, new.id, b"n1", b"answer", RETENTION * LONG),
            )
            assert (not fenced, done, kept(store, new.id).answer) == (True, Done(), b"answer")

    def test_what_expired_is_purged_once(self, store: Store, advance: Advance) -> None:
        """R33: several that purge at once count each record once between them."""
        news = [new_record() for _ in range(CROWD)]
        for new in news:
            store.claim(new, LONG, b"n1")
            store.complete(new.id, b"n1", b"answer", RETENTION)
        advance(RETENTION * 1.2)
        steps = at_once(*[partial(store.purge, CROWD)] * 4)
        assert (sum(step.records for step in steps), sum(step.unsettled for step in steps)) == (CROWD, 0)
