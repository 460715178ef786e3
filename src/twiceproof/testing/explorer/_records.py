"""What the store holds: the shipped memory store, one call at a time, with the moment of every look as zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, assert_never

from twiceproof.core import _engine as core
from twiceproof.core._record import ClaimRef, State
from twiceproof.engine._keeper import perform_write
from twiceproof.stores._rows import Row
from twiceproof.stores.memory import MemoryStore
from twiceproof.testing.explorer._frozen import Numbered, translated
from twiceproof.testing.explorer._invariants import broken_by_act, broken_by_time
from twiceproof.testing.explorer._paths import Asked, Force, Paths, Renew
from twiceproof.testing.explorer._people import KEEP, LEASE, ME, OPERATOR, OTHER, RETENTION, nonce_of

ABSENT: Final = 0


@dataclass(slots=True, eq=False)
class Act:
    """What a call came to: the answer as the caller is told, the record after it, and what it broke, if anything."""

    answer: int
    record: int
    broken: str | None


class Records:
    """Every record that can come about, and what each call makes of each.

    A record is kept as the memory store's row, its moments counted from now, with what no later answer depends on
    dropped: when it was made, how long ago it lapsed, how many attempts there were.
    """

    def __init__(self, id: bytes, people: int, paths: Paths) -> None:
        self.id = id
        self._nonces = [*map(nonce_of, range(people)), OPERATOR]
        self.distinct = len(set(self._nonces)) == len(self._nonces)
        self._paths = paths
        self._rows: Numbered[Row | None] = Numbered()
        self._rows.of(None, "absent")
        self.steps: Numbered[Asked] = Numbered()
        self._acts: dict[tuple[int, int, int], Act] = {}
        self._later: dict[tuple[int, float], int] = {}
        self._roles: dict[int, tuple[int, ...]] = {}
        self._orders: dict[tuple[int, tuple[int, ...]], int] = {}

    def row(self, number: int) -> Row | None:
        """Return a record, or None where there is none."""
        return self._rows.values[number]

    def number(self, row: Row | None) -> int:
        """Return the number of a record."""
        return ABSENT if row is None else self._rows.of(row)

    def owner(self, nonce: bytes | None) -> int:
        """Return whose nonce this is; one past the requests for the operator, -1 for nobody."""
        return -1 if nonce is None else next((who for who, own in enumerate(self._nonces) if nonce.endswith(own)), -1)

    def holder(self, record: int) -> int:
        """Return whose token a live record bears, -1 where there is none."""
        row = self._rows.values[record]
        return -1 if row is None or not row.live(0) else self.owner(row.nonce)

    def claimant(self, record: int) -> int:
        """Return whose claim a live record in flight is, -1 where it is none."""
        row = self._rows.values[record]
        return self.holder(record) if row is not None and row.state is State.IN_FLIGHT else -1

    def act(self, record: int, who: int, step: int) -> Act:
        """Do one call on the shipped store."""
        key = record, who, step
        found = self._acts.get(key)
        if found is None:
            found = self._acts[key] = self._act(self._rows.values[record], who, self.steps.values[step])
        return found

    def _act(self, before: Row | None, who: int, step: Asked) -> Act:
        mine = self._nonces[who]
        asked = translated(step, lambda text: text.replace(ME, mine))
        store = MemoryStore.restored((0, () if before is None else ((self.id, before),)), _now)
        answer = _perform(store, asked, mine)
        after = self._row(store)
        broken = broken_by_act(before, after, asked, mine, answer)
        if broken is None and after is not None and after != before:
            broken = broken_by_time(self.id, after)
        return Act(self._paths.answer(translated(answer, self._told(mine))), self.number(after), broken)

    def _told(self, mine: bytes) -> Any:
        others = [nonce for nonce in self._nonces if nonce != mine]

        def told(text: bytes) -> bytes:
            """Tell a request of its own nonce and of *another's*: which other is nothing that it may act on."""
            for other in others:
                text = text.replace(other, OTHER)
            return text.replace(mine, ME)

        return told

    def as_told(self, text: bytes, who: int) -> bytes:
        """Return bytes of a record as a request is told of them."""
        told: bytes = self._told(self._nonces[who])(text)
        return told

    def purged(self, record: int) -> int:
        """Return the record after a purge."""
        row = self._rows.values[record]
        if row is None:
            return record
        store = MemoryStore.restored((0, ((self.id, row),)), _now)
        store.purge(10)
        return self.number(self._row(store))

    def after(self, record: int, seconds: float) -> int:
        """Return the record when so much time has passed."""
        key = record, seconds
        found = self._later.get(key)
        if found is None:
            row = self._rows.values[record]
            found = self._later[key] = self.number(None if row is None else _rebased(row, seconds))
        return found

    def live(self, record: int) -> bool:
        """Whether there is a record that has not expired."""
        row = self._rows.values[record]
        return row is not None and row.live(0)

    def reordered(self, record: int, order: tuple[int, ...]) -> int:
        """Return the record where request ``order[k]`` is now called ``k``."""
        key = record, order
        found = self._orders.get(key)
        if found is None:
            row = self._rows.values[record]
            found = self._orders[key] = self.number(None if row is None else self._renamed(row, order))
        return found

    def roles(self, record: int) -> tuple[int, ...]:
        """Return what each request is to a record: alike requests with the same role may swap their names."""
        found = self._roles.get(record)
        if found is None:
            row = self._rows.values[record]
            found = self._roles[record] = tuple(0 if row is None else _role(row, own) for own in self._nonces[:-1])
        return found

    def _renamed(self, row: Row, order: tuple[int, ...]) -> Row:
        names = {self._nonces[old]: self._nonces[new] for new, old in enumerate(order)}

        def renamed(text: bytes | None) -> Any:
            if text is not None:
                for old, new in names.items():
                    if old in text:
                        return text.replace(old, new)
            return text

        return row._replace(
            nonce=renamed(row.nonce),
            reconcile_nonce=renamed(row.reconcile_nonce),
            answer=renamed(row.answer),
        )

    def _row(self, store: MemoryStore) -> Row | None:
        rows = store.snapshot()[1]
        return _rebased(rows[0][1], 0.0) if rows else None


def _role(row: Row, nonce: bytes) -> int:
    asking = row.reconcile_nonce is not None and row.reconcile_nonce.endswith(nonce)
    answered = row.answer is not None and nonce in row.answer
    return row.nonce.endswith(nonce) + 2 * asking + 4 * answered


def _now() -> float:
    return 0.0


def _perform(store: MemoryStore, step: Asked, mine: bytes) -> object:
    match step:
        case core.DoClaim():
            return store.claim(step.new, step.lease, step.nonce, step.after)
        case core.DoClaimUnsettled():
            return store.claim_unsettled(step.id, step.lease, step.nonce, step.every)
        case core.DoComplete() | core.DoRelease() | core.DoPark():
            return perform_write(store, step)
        case Renew():
            return bool(store.renew([ClaimRef(step.id, mine)], LEASE))
        case Force():
            return store.claim_unsettled(step.id, LEASE, mine, 0.0, force=True)
        case _:
            assert_never(step)


def _rebased(row: Row, passed: float) -> Row:
    """Return a row with its moments counted from ``passed`` seconds later, and what is over merged (R34)."""
    asked, until = row.reconcile_asked_at, row.reconcile_until
    lease, expires = row.lease_until - passed, row.expires_at - passed
    if expires <= 0:
        lease = expires = 0.0
    elif row.state is State.COMPLETED:
        lease, expires = 0.0, row.expires_at  # it either still answers or has expired
    elif lease < 0:
        lease, expires = 0.0, expires - lease  # the same for its keeping time
    return row._replace(
        subject=row.subject._replace(created_at=0.0, incarnation=b""),
        number=row.number if row.state is not State.COMPLETED else 1,
        attempts=1,
        lease_until=lease,
        expires_at=expires,
        granted_at=0.0,
        completed_at=None if row.completed_at is None else 0.0,
        reconcile_until=None if until is None else max(0.0, until - passed),
        reconcile_asked_at=None if asked is None or asked - passed <= -LEASE else asked - passed,
    )


LONG: Final = {True: RETENTION + 1, False: KEEP + 2 * LEASE}
"""After so long a completed record has expired, and one that is not."""
