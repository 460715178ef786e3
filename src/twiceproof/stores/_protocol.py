"""What every store promises: the verbs, in both colours.

A verb that decides is one atomic statement. A lost race is an answer, never an error. A verb returns or raises
within the store's time-out, or twice that where it had to wait for its turn first: `StoreUnavailable` where nothing was
written, `StoreOutcomeUnknown` where that is not known. Ids and nonces compare by exact bytes, moments by the store's
own clock, read now (R34).

A record past its ``expires_at`` is absent to every verb but `purge`, whether or not it is still there. One in a format
above ours (R17, R53) never expires for us: it is `Found`, never granted or purged, and changed by its own nonce only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from twiceproof.core._record import (
    ClaimAnswer,
    ClaimRef,
    NewRecord,
    Record,
    State,
    UnsettledAnswer,
    WriteAnswer,
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do; the engine refuses a policy that needs more.

    ``durable``: a record outlives the process and the machine's restart. ``shared``: several hosts may use it.
    ``transactional``: it can join the application's transaction. ``notifies``: it tells waiters of a completion.
    """

    durable: bool
    shared: bool = False
    transactional: bool = False
    notifies: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records `scan` returns. ``unsettled`` selects parked and lapsed ones, whatever ``state`` says.

    ``older_than`` is an age since creation in seconds.
    """

    state: State | None = None
    unsettled: bool = False
    operation: str | None = None
    path: str | None = None
    older_than: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of `scan`, oldest first; ``cursor`` continues after it, None where it was the last."""

    records: Sequence[Record]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Purged:
    """How many expired records one step deleted; ``unsettled`` counts those whose outcome stayed unknown."""

    records: int
    unsettled: int = 0


@runtime_checkable
class Store(Protocol):
    """The blocking colour. Its methods may be called from any thread."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        ...

    def open(self) -> None:
        """Make the store ready in this process; a second call changes nothing.

        A verb makes it ready by itself, too. Raises `ConfigurationError` where the records are in a schema of a later
        release; a verb then raises `UnknownFormat`.
        """
        ...

    def close(self) -> None:
        """Let go of every connection and thread; a second call changes nothing, a later verb opens again."""
        ...

    def check(self) -> Sequence[str]:
        """Try the store and leave nothing open.

        Returns one sentence for each thing that an operator should know; raises `ConfigurationError` where it
        can't work at all.
        """
        ...

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """Take the record for ``lease`` seconds, atomically (R21, R22).

        Granted where there is no live record; where it is in flight under this very ``nonce`` (the call is repeated:
        the same token for a whole lease, no attempt more); where it lapsed, nobody reconciles it, and both its
        guarantee and ``new``'s are at-least-once with an equal fingerprint (R27: a new token under the same
        incarnation, one more attempt); where it bears ``after``, the nonce of a live second claim whose hook found that
        nothing had happened, with an equal fingerprint (R28: likewise, and from now on under ``new``'s guarantee).
        `Held` under another's live lease, while waiting, and while reconciled; else `Found`: a completed or parked
        record is not granted to its own nonce either.
        """
        ...

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """Take the second claim beside the token of an unsettled record; it fences nobody (R28).

        `Granted` (with the record's token) where it is parked or lapsed, nobody else reconciles it, and the last
        asking is at least ``every`` seconds ago; `Held` where somebody reconciles it or a lease is live; `Found`
        where it is completed or was asked too recently. ``force`` overrides a live lease, a live second claim and
        ``every``, for operators, and takes a waiting record; without it that one is `Held`. The nonce that has the
        second claim is granted it again: the call is repeated.
        """
        ...

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """Give each claim ``lease`` seconds from now, in one statement, and return those that are fenced (R31).

        A holder may renew after its lapse or its parking, until another token is granted (R42); that ends a second
        claim and makes it in flight again. ``expires_at`` keeps its distance to the end of the lease. A record that
        its own nonce completed, and a waiting one, stay as they are and are not fenced.
        """
        ...

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """Store the answer for ``retention`` seconds (R25, R33).

        Done under the token's nonce, or under the nonce of a live second claim, which then becomes the token's, so
        that the late holder is fenced, with a greater number; also where this nonce completed it before: then the first
        answer stays. Else `Fenced`.
        """
        ...

    def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """Delete an uncompleted record: nothing happened. Under the token's nonce or a live second claim's.

        A completed record is `Fenced`, and so is one that this nonce released before: there is no record any more.
        """
        ...

    def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """Say that the outcome is unknown. The token stays: its holder may still complete (R42).

        Under the token's nonce the record is parked for its keeping time. Under a second claim's nonce (the hook
        doesn't know) that claim alone ends, lapsed or not. The token's holder, when it parks, leaves a second claim as
        it is. A completed record is `Fenced`.
        """
        ...

    def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """Delete a record in whatever state, if it still bears this token's nonce (operators)."""
        ...

    def get(self, id: bytes) -> Record | None:
        """Read a live record."""
        ...

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """Read live records, oldest first, a page at a time; ``cursor`` is the one of the page before."""
        ...

    def purge(self, limit: int) -> Purged:
        """Delete at most ``limit`` records past their ``expires_at`` (R33, R42).

        A store that sweeps by itself tells here of the unsettled records that it forgot since the last purge.
        """
        ...

    def renewer(self) -> Store:
        """Return a blocking store for the engine's own thread, on a connection of its own.

        It is opened, used and closed on that thread. A store that is safe there may return itself.
        """
        ...


@runtime_checkable
class AsyncStore(Protocol):
    """The asynchronous colour of `Store`: the same verbs with the same promises, awaited."""

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        ...

    async def open(self) -> None:
        """See `Store.open`."""
        ...

    async def close(self) -> None:
        """See `Store.close`."""
        ...

    def check(self) -> Sequence[str]:
        """See `Store.check`; blocking, since it runs at construction, before there is a loop."""
        ...

    async def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        """See `Store.claim`."""
        ...

    async def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        """See `Store.claim_unsettled`."""
        ...

    async def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        """See `Store.renew`."""
        ...

    async def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        """See `Store.complete`."""
        ...

    async def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.release`."""
        ...

    async def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        """See `Store.park`."""
        ...

    async def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        """See `Store.forget`."""
        ...

    async def get(self, id: bytes) -> Record | None:
        """See `Store.get`."""
        ...

    async def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See `Store.scan`."""
        ...

    async def purge(self, limit: int) -> Purged:
        """See `Store.purge`."""
        ...

    def renewer(self) -> Store:
        """See `Store.renewer`: a blocking twin for the engine's own thread."""
        ...


@runtime_checkable
class HasSchema(Protocol):
    """What a blocking store has beside its verbs where its records live in a schema (``twiceproof store init``)."""

    def schema(self) -> str:
        """Return the SQL that makes it where there is none yet, for `psql` or a migration; nothing is connected."""
        ...

    def init(self) -> None:
        """Make what is missing of it; a second call, also at the same moment from elsewhere, changes nothing.

        Raises `ConfigurationError` where the records are in a schema of a later release, or where it may not be made.
        """
        ...
