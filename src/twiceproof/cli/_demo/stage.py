"""What scenes play on: orders sent to the service, its books, its workers, and its store."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from twiceproof.cli._demo.place import Outage, Place
from twiceproof.cli._demo.wire import Fields, Lost, Reply, Sent, Wire

T = TypeVar("T")

ALICE: Final = "demo-alice"
BOB: Final = "demo-bob"
ACCOUNTS: Final = {ALICE: "alice", BOB: "bob"}
POLL: Final = 0.02
LIVELY: Final = 30.0
"""Seconds within which anything that must happen has happened, on however slow a machine."""


@dataclass(frozen=True, slots=True)
class Books:
    """What the service's own books say of an intent."""

    effects: int
    runs: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retried:
    """How a retry ended: its last answer, the refusals before it, and when the last refused one was sent."""

    reply: Reply
    held: tuple[Reply, ...]
    last_held_at: float | None


@dataclass(slots=True)
class Stage:
    """A running service. ``lease`` is the lease of its operations in seconds, ``folder`` is for files of our own."""

    url: str
    place: Place
    log: Path
    folder: Path
    lease: float
    wire: Wire = field(init=False)

    def __post_init__(self) -> None:
        self.wire = Wire(self.url)

    @property
    def store(self) -> str:
        """The URL of the store that keeps the service's keys."""
        return self.place.url

    def order(self, target: str = "/transfers", token: str = ALICE) -> Order:
        """Return a new intent with a new key (C1)."""
        return Order(self, target, token, str(uuid.uuid4()), f"order-{secrets.token_hex(4)}")

    def get(self, target: str) -> dict[str, Any]:
        """Ask the service for a document; raises `Lost` where there is none."""
        reply = self.wire.ask("GET", target)
        if reply.status != 200:
            raise Lost(f"GET {target} was answered with {reply}")
        return reply.document

    def books(self, intent: str | None = None) -> Books:
        """Return what the books say of an intent, or of all."""
        document = self.get("/effects" + (f"?intent={intent}" if intent else ""))
        workers = tuple(pid for one in document["intents"] for pid in one["workers"])
        return Books(document["effects"], document["runs"], workers)

    def workers(self) -> list[int]:
        """Return the process ids of the workers so far, the dead ones too."""
        pids: list[int] = self.get("/workers")["pids"]
        return pids

    def kill(self, pid: int) -> float:
        """End a worker as the kernel does when memory is short: no farewell, no clean-up. Returns the moment."""
        assert pid in self.workers()
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def new_token(self, token: str = ALICE) -> str:
        """Return another token of the same account."""
        reply = self.wire.ask("POST", "/tokens", [("Authorization", f"Bearer {token}")])
        return str(reply.document["token"])

    def revoke(self, token: str) -> None:
        """Make a token worthless."""
        self.wire.ask("DELETE", f"/tokens/{token}", [("Authorization", f"Bearer {token}")])

    def outage(self) -> AbstractContextManager[Outage]:
        """Give what takes the store away; at the end of the block it is back."""
        assert self.place.outage is not None, "the store is not ours to take away"
        return self.place.outage()


@dataclass(frozen=True, slots=True)
class Order:
    """One intent and its key, to be sent as often as a scene likes."""

    stage: Stage
    target: str
    token: str
    key: str
    intent: str
    amount: int = 2500

    def changed(self, **changes: Any) -> Order:
        """Return the same order with other values: another amount, key or token."""
        return replace(self, **changes)

    @property
    def document(self) -> dict[str, Any]:
        """What is asked for."""
        return {"intent": self.intent, "to": "acct_7", "amount": self.amount}

    def send(self, *, delay: float = 0, hold: int = 0, keys: Fields | None = None, body: bytes | None = None) -> Sent:
        """Send it; ``keys`` replaces the key's field, ``delay`` makes the handler slow after its effect."""
        fields = [("Authorization", f"Bearer {self.token}"), ("Content-Type", "application/json")]
        fields += [("Idempotency-Key", self.key)] if keys is None else keys
        if delay:
            fields.append(("Demo-Delay", f"{delay:g}"))
        content = json.dumps(self.document).encode() if body is None else body
        return self.stage.wire.send("POST", self.target, fields, content, hold=hold)

    def ask(self, *, delay: float = 0, keys: Fields | None = None, body: bytes | None = None) -> Reply:
        """Send it and read the answer."""
        return self.send(delay=delay, keys=keys, body=body).reply()

    def books(self) -> Books:
        """Return what the books say of it."""
        return self.stage.books(self.intent)

    def until_running(self, sent: Sent) -> int:
        """Wait until the handler of ``sent`` has had its effect, and return the worker that runs it."""
        never = f"the handler of {self.intent} never ran"
        until(lambda: self.books().runs or sent.answered, never)
        workers = self.books().workers
        if not workers:
            raise Lost(f"{never}; it was answered with {sent.reply()}")
        return workers[-1]

    def retry(self) -> Retried:
        """Send it again and again, as a client would, until the answer is no longer 409 in-progress (C5)."""
        held: list[Reply] = []
        last_held_at = None
        end = time.monotonic() + LIVELY
        while True:
            asked_at = time.monotonic()
            reply = self.ask()
            if reply.code != "in-progress" or asked_at > end:
                return Retried(reply, tuple(held), last_held_at)
            held.append(reply)
            last_held_at = asked_at
            time.sleep(self.stage.lease / 10)


def until(look: Callable[[], T], otherwise: str) -> T:
    """Look until there is something to see, and return it; raises `Lost` where there never is."""
    end = time.monotonic() + LIVELY
    while not (seen := look()):
        if time.monotonic() > end:
            raise Lost(otherwise)
        time.sleep(POLL)
    return seen
