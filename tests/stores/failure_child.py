"""A worker of test_failures.py that dies or is stopped.

``python -m tests.stores.failure_child URL GUARANTEE MOMENT EFFECTS``

It handles one request, key ``the-key``, and dies by SIGKILL at MOMENT: ``claimed`` (granted, the handler not begun),
``before`` and ``after`` the handler's effect, ``completed`` (the answer is stored and not sent). At ``sleep`` it says
``effect`` after its effect and goes on when it reads a line; then it says how its late write was answered.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from twiceproof import Attempt, Engine, Policy, Request, Response
from twiceproof.core._record import Guarantee
from twiceproof.stores import open_store

LEASE: Final = 1.0


def request() -> Request:
    """Return the request that everybody sends."""
    return Request("POST", b"/transfers", b"", ((b"idempotency-key", b"the-key"),), b"the payload")


def policy(guarantee: str) -> Policy:
    """Return the policy of the operation."""
    return Policy(guarantee=Guarantee(guarantee), lease=LEASE)


def die() -> None:
    """Die as a process dies that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """A store whose verb ``at`` succeeds and is the last thing that its process does."""

    def __init__(self, store: Any, at: str) -> None:
        self._store = store
        self._at = at

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name != self._at:
            return verb

        def last(*arguments: Any) -> None:
            verb(*arguments)
            die()

        return last

    def claim(self, *arguments: Any) -> Any:
        """Be seen as a store of the blocking colour."""
        return self.__getattr__("claim")(*arguments)


def main(url: str, guarantee: str, moment: str, effects: str) -> None:
    """Handle the one request."""
    at = {"claimed": "claim", "completed": "complete"}.get(moment, "")
    store: Any = open_store(url)
    engine = Engine(
        Dying(store, at) if at else store, namespace="failures", on_event=lambda event: print(event.name, flush=True)
    )

    def handler(_: Request, attempt: Attempt) -> Response:
        if moment == "before":
            die()
        with Path(effects).open("a") as file:
            file.write("effect\n")
        if moment == "after":
            die()
        print("effect", flush=True)
        sys.stdin.readline()
        return Response(201, (), b"by the first")

    answer = engine.handle(request(), "acct_1", policy(guarantee), handler)
    print(answer.status, bytes(answer.body or b"").decode(), flush=True)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
