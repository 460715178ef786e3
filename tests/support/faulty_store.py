"""A store that fails on command, in both colours: down, reply lost, slow, or with something between two steps."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from twiceproof.core._record import ClaimAnswer, ClaimRef, NewRecord, Record, UnsettledAnswer, WriteAnswer
from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores import AsyncStore, Store
from twiceproof.stores._protocol import Capabilities, Filter, Page, Purged


@dataclass
class Fault:
    """What happens at one call of a verb. ``acts``: the verb takes place, and then its reply is lost."""

    error: BaseException | None = None
    acts: bool = False
    sleep: float = 0.0
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


DOWN = Fault(StoreUnavailable("down"))
LOST = Fault(StoreOutcomeUnknown("lost"))
ACTED_AND_LOST = Fault(StoreOutcomeUnknown("lost"), acts=True)
BROKEN = Fault(RuntimeError("a bug in the store"))
FINE = Fault()


class Faults:
    """The script of both colours, and what was called.

    A verb of the engine's thread is called ``background.<verb>``. ``now`` fails every call of a verb until it is
    removed; ``next`` is consumed call by call and comes first.
    """

    def __init__(self) -> None:
        self.now: dict[str, Fault] = {}
        self.next: dict[str, list[Fault]] = {}
        self.calls: list[str] = []
        self.refs: list[int] = []

    def take(self, verb: str) -> Fault:
        self.calls.append(verb)
        script = self.next.get(verb)
        return script.pop(0) if script else self.now.get(verb, FINE)

    def count(self) -> Counter[str]:
        return Counter(self.calls)

    def foreground(self) -> list[str]:
        """The calls on behalf of a request, in order."""
        return [call for call in self.calls if not call.startswith("background.") and call not in ("open", "close")]


class FaultyStore:
    """The blocking colour, over a store of it."""

    def __init__(self, inner: Store, faults: Faults, side: str = "") -> None:
        self.inner = inner
        self.faults = faults
        self._side = side

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def _do(self, verb: str, *args: Any) -> Any:
        fault = self.faults.take(self._side + verb)
        if fault.before is not None:
            fault.before()
        if fault.sleep:
            time.sleep(fault.sleep)
        if fault.error is not None and not fault.acts:
            raise fault.error
        back = getattr(self.inner, verb)(*args)
        if fault.after is not None:
            fault.after()
        if fault.error is not None:
            raise fault.error
        return back

    def open(self) -> None:
        self._do("open")

    def close(self) -> None:
        self._do("close")

    def check(self) -> Sequence[str]:
        return self.inner.check()

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        return self._do("claim", new, lease, nonce, after)

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        return self._do("claim_unsettled", id, lease, nonce, every)

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        self.faults.refs.append(len(claims))
        return self._do("renew", claims, lease)

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        return self._do("complete", id, nonce, answer, retention)

    def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        return self._do("release", id, nonce)

    def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        return self._do("park", id, nonce, cause)

    def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        return self._do("forget", id, nonce)

    def get(self, id: bytes) -> Record | None:
        return self.inner.get(id)

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return self.inner.scan(filter, cursor, limit)

    def purge(self, limit: int) -> Purged:
        return self._do("purge", limit)

    def renewer(self) -> Store:
        return FaultyStore(self.inner.renewer(), self.faults, "background.")


class AsyncFaultyStore:
    """The asynchronous colour."""

    def __init__(self, inner: AsyncStore, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def _do(self, verb: str, *args: Any) -> Any:
        fault = self.faults.take(verb)
        if fault.before is not None:
            await asyncio.to_thread(fault.before)
        if fault.sleep:
            await asyncio.sleep(fault.sleep)
        if fault.error is not None and not fault.acts:
            raise fault.error
        back = await getattr(self.inner, verb)(*args)
        if fault.after is not None:
            await asyncio.to_thread(fault.after)
        if fault.error is not None:
            raise fault.error
        return back

    async def open(self) -> None:
        await self._do("open")

    async def close(self) -> None:
        await self._do("close")

    def check(self) -> Sequence[str]:
        return self.inner.check()

    async def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None = None) -> ClaimAnswer:
        return await self._do("claim", new, lease, nonce, after)

    async def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False
    ) -> UnsettledAnswer:
        return await self._do("claim_unsettled", id, lease, nonce, every)

    async def renew(self, claims: Sequence[ClaimRef], lease: float) -> Sequence[ClaimRef]:
        return await self._do("renew", claims, lease)

    async def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> WriteAnswer:
        return await self._do("complete", id, nonce, answer, retention)

    async def release(self, id: bytes, nonce: bytes) -> WriteAnswer:
        return await self._do("release", id, nonce)

    async def park(self, id: bytes, nonce: bytes, cause: str) -> WriteAnswer:
        return await self._do("park", id, nonce, cause)

    async def forget(self, id: bytes, nonce: bytes) -> WriteAnswer:
        return await self._do("forget", id, nonce)

    async def get(self, id: bytes) -> Record | None:
        return await self.inner.get(id)

    async def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return await self.inner.scan(filter, cursor, limit)

    async def purge(self, limit: int) -> Purged:
        return await self._do("purge", limit)

    def renewer(self) -> Store:
        return FaultyStore(self.inner.renewer(), self.faults, "background.")
