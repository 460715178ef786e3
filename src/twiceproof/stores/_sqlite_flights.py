"""Which handlers run in this process under a claim of this file: the company that a verb has."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

_PRUNED_EVERY: Final = 1.0  # seconds


class Flights:
    """The nonces granted here and not yet settled, each until its lease ends.

    On one event loop a verb that runs inline seems always to be alone; the handlers in flight tell that it isn't.
    A claim that is never settled here counts until its lease ran out, so it can't keep others from being inline.
    Safe on any thread: each step is one operation on a dict.
    """

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}
        self._prune_at = 0.0

    def begin(self, nonce: bytes, lease: float) -> None:
        """Note that ``nonce`` was granted for ``lease`` seconds."""
        self._until[nonce] = time.monotonic() + lease

    def prolong(self, nonces: Iterable[bytes], lease: float) -> None:
        """Note that those of ``nonces`` that are in flight go on for ``lease`` seconds from now."""
        until = time.monotonic() + lease
        for nonce in nonces:
            if nonce in self._until:
                self._until[nonce] = until

    def end(self, nonce: bytes) -> None:
        """Forget ``nonce``: it is being settled."""
        self._until.pop(nonce, None)

    def any(self) -> bool:
        """Whether a handler runs here; those that lapsed count for at most a second more."""
        if not self._until:
            return False
        now = time.monotonic()
        if now >= self._prune_at:
            self._prune_at = now + _PRUNED_EVERY
            for nonce, until in list(self._until.items()):
                if until <= now:
                    self._until.pop(nonce, None)
        return bool(self._until)
