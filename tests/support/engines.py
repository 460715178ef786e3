"""Both colours of the engine behind one blocking bench, so that a promise is tested once and holds for both."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.faulty_store import AsyncFaultyStore, Faults, FaultyStore
from twiceproof import AsyncEngine, Attempt, Engine, Event, Policy, Record, Request, Response
from twiceproof.core._lifecycle import Bypass, Reply
from twiceproof.core._outcome import Outcome
from twiceproof.core._problems import PROBLEMS, REPLAYED
from twiceproof.engine import Run
from twiceproof.stores import Store, open_async_store, open_store
from twiceproof.stores._protocol import Filter
from twiceproof.stores.memory import AsyncMemoryStore, MemoryStore

T = TypeVar("T")
Handler = Callable[[Request, Attempt], Response]
PATIENCE = 20.0
"""How long anything may take before a test calls it stuck."""


class FakeClock:
    """The store's clock, moved by hand."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


class World:
    """What several processes share: the records, their clock, and who saw what."""

    def __init__(
        self,
        store: str = "memory",
        folder: Path | None = None,
        *,
        clock: Callable[[], float] | None = None,
        timeout: float = 2.0,
    ) -> None:
        self.kind, self.folder, self.timeout = store, folder, timeout
        self.clock = FakeClock()
        self.memory = MemoryStore(clock or self.clock)
        self.url = f"sqlite:///{folder}/keys.db"
        if store == "sqlite":
            self.seen: Store = open_store(self.url)
            self.seen.open()
        else:
            self.seen = self.memory

    def store(self, colour: str) -> Any:
        if self.kind == "memory":
            return self.memory if colour == "blocking" else AsyncMemoryStore(self.memory)
        made = open_store if colour == "blocking" else open_async_store
        return made(self.url, timeout=self.timeout)

    def records(self) -> list[Record]:
        return list(self.seen.scan(Filter()).records)

    def record(self) -> Record:
        [record] = self.records()
        return record

    def states(self) -> list[str]:
        return [
            "lapsed" if record.lapsed else str(record.state) for record in sorted(self.records(), key=lambda r: r.id)
        ]

    def close(self) -> None:
        self.seen.close()


class Bench:
    """One engine of one colour, as a process would have it. Every call blocks the calling thread only."""

    def __init__(self, colour: str, world: World | None = None, **options: Any) -> None:
        self.colour = colour
        self.world = world or World()
        self.faults = Faults()
        self.events: list[Event] = []
        self.effects = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        chosen: dict[str, Any] = {
            "accept_volatile": True,
            "purge_every": 0,
            "on_event": self.events.append,
            "drain": 1,
        } | options
        store = self.world.store(colour)
        if colour == "blocking":
            self.engine: Any = Engine(FaultyStore(store, self.faults), **chosen)
        else:
            self.engine = AsyncEngine(AsyncFaultyStore(store, self.faults), **chosen)
            self.loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
            self._thread.start()

    # ------------------------------------------------------------------ requests

    def request(self, key: str | None = "key-1", body: bytes = b'{"amount":1}', path: str = "/orders") -> Request:
        headers = [(b"content-type", b"application/json")]
        if key is not None:
            headers.append((b"idempotency-key", key.encode()))
        return Request("POST", path.encode(), b"", headers, body)

    def work(self, request: Request, attempt: Attempt) -> Response:
        """The handler that tests count the effects of."""
        self.effects += 1
        body = b'{"order":%d}' % self.effects
        return Response(201, [(b"content-type", b"application/json"), (b"location", b"/orders/1")], body)

    def handle(
        self,
        policy: Policy | None = None,
        handler: Handler | None = None,
        principal: str = "alice",
        request: Request | None = None,
        **parts: Any,
    ) -> Response:
        request = request or self.request(**parts)
        policy = policy or Policy()
        handler = handler or self.work
        if self.loop is None:
            return self.engine.handle(request, principal, policy, handler)

        async def inline(request: Request, attempt: Attempt) -> Response:
            return await asyncio.to_thread(handler, request, attempt)

        return self.wait_for(self.engine.handle(request, principal, policy, inline))

    def start(self, *args: Any, **kwargs: Any) -> "Future[Response]":
        """Handle in the background."""
        return in_background(lambda: self.handle(*args, **kwargs))

    def begin(
        self, policy: Policy | None = None, principal: str = "alice", request: Request | None = None, **parts: Any
    ) -> Reply | Bypass | Run:
        made = self.engine.begin(request or self.request(**parts), principal, policy or Policy())
        return made if self.loop is None else self.wait_for(made)

    def run(self, *args: Any, **kwargs: Any) -> Run:
        """Begin, and expect that the handler may run."""
        begun = self.begin(*args, **kwargs)
        assert isinstance(begun, Run), begun
        return begun

    def finish(self, run: Run, outcome: Outcome) -> None:
        done = self.engine.finish(run, outcome)
        if self.loop is not None:
            self.wait_for(done)

    def wait_for(self, made: Coroutine[Any, Any, T]) -> T:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(made, self.loop).result(PATIENCE)

    # ------------------------------------------------------------------ the process

    def open(self) -> None:
        made = self.engine.open()
        if self.loop is not None:
            self.wait_for(made)

    def drain(self) -> None:
        """Close the engine as a shutdown does."""
        made = self.engine.close()
        if self.loop is not None:
            self.wait_for(made)

    def die(self) -> None:
        """Let the process be gone from here on: nothing is renewed, repeated or settled any more."""
        self.engine._keeper.close()
        self.events.clear()

    def close(self) -> None:
        self.die()
        self.drain()
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(PATIENCE)
            self.loop.close()

    # ------------------------------------------------------------------ what was seen

    @property
    def names(self) -> list[str]:
        """The events, each as ``name`` or ``name:code``."""
        return [f"{event.name}:{event.code}" if event.code else event.name for event in self.events]

    def until(self, fact: Callable[[], object], what: str = "it did not happen") -> None:
        until(fact, what)


def until(fact: Callable[[], object], what: str = "it did not happen") -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def in_background(call: Callable[[], T]) -> "Future[T]":
    """Call it on a thread of its own."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def code_of(response: Response) -> str:
    """The problem code of an answer of ours, or nothing."""
    if response.header(b"content-type") != b"application/problem+json":
        return ""
    code: str = json.loads(response.body or b"")["code"]
    assert code in PROBLEMS
    return code


def brief(response: Response) -> tuple[int, str, bool]:
    """Status, code, and whether it is marked as a replay."""
    return response.status, code_of(response), REPLAYED in response.headers


class Gate:
    """A handler that tells that it runs, and waits for permission to end."""

    def __init__(self, response: Response | None = None, error: BaseException | None = None) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.response = response or Response(201, [], b"done")
        self.error = error
        self.attempts: list[Attempt] = []

    def __call__(self, request: Request, attempt: Attempt) -> Response:
        self.attempts.append(attempt)
        self.entered.set()
        assert self.opened.wait(PATIENCE), "the gate was never opened"
        if self.error is not None:
            raise self.error
        return self.response

    @contextmanager
    def running(self, bench: Bench, *args: Any, **kwargs: Any) -> "Iterator[Future[Response]]":
        """Have a request in its handler while the block runs; then let it end, and wait until it is settled."""
        future = bench.start(*args, handler=self, **kwargs)
        try:
            assert self.entered.wait(PATIENCE), "the handler never began"
            yield future
        finally:
            self.opened.set()
            future.exception(PATIENCE)
