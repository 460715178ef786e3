"""What both colours of the engine share: settings, admission, and the making of a call. No I/O but the check."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

from twiceproof.core import _lifecycle as life
from twiceproof.core._engine import Call, make_call
from twiceproof.core._policy import Policy
from twiceproof.engine._options import EngineOptions, make_settings

if TYPE_CHECKING:
    from twiceproof.core._messages import Headers, Request
    from twiceproof.stores import AsyncStore, Store

AnyStore = TypeVar("AnyStore", "Store", "AsyncStore")

NONCE_BYTES = 16


class Front(Generic[AnyStore]):
    """Answers what needs neither store nor handler."""

    def __init__(self, store: AnyStore, **options: Unpack[EngineOptions]) -> None:
        self.settings = make_settings(store, **options)
        self.store: AnyStore = store
        self.notices = tuple(store.check())  # R41: a store that can't work fails here, and nothing stays open

    def admit(self, method: str, headers: Headers, policy: Policy) -> life.Bypass | life.Reply | life.Keyed:
        """Decide on the head of a request, before its body is read (R1-R9)."""
        answer = life.admit(method, headers, policy, self.settings.site)
        if isinstance(answer, life.Reply):
            self.settings.emit("refused", answer.code)
        return answer

    def refuse(self, code: str) -> life.Reply:
        """Return one of our refusals, for what a door finds out by itself (R11, R52)."""
        self.settings.emit("refused", code)
        return life.refuse(code, self.settings.site)

    def _call(self, request: Request, key: str, principal: str, policy: Policy) -> Call:
        return make_call(request, key, principal, policy, self.settings.site, os.urandom(NONCE_BYTES))
