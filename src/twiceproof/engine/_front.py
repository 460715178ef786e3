"""What both colours of the engine share: settings, admission, the making of a call, and the thread's life."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, Unpack

from twiceproof.core import _lifecycle as life
from twiceproof.core._engine import Call, make_call
from twiceproof.engine._keeper import Keeper
from twiceproof.engine._options import EngineOptions, check_store, logger, make_settings
from twiceproof.stores import AsyncStore, Store

if TYPE_CHECKING:
    from twiceproof.core._messages import Headers, Request
    from twiceproof.core._policy import Policy

AnyStore = TypeVar("AnyStore", Store, AsyncStore)

NONCE_BYTES: Final = 16


class Front(ABC, Generic[AnyStore]):
    """Answers what needs neither store nor handler."""

    asynchronous: ClassVar[bool]

    def __init__(self, store: AnyStore, **options: Unpack[EngineOptions]) -> None:
        check_store(store, asynchronous=self.asynchronous)
        # R41: a store that can't work fails here, and nothing stays open; some know only then whether they forget
        self.notices = tuple(store.check())
        self.settings = make_settings(store, self.notices, **options)
        self.store: AnyStore = store
        if store.capabilities.durable:  # of one that may forget, it was accepted
            for notice in self.notices:
                logger.warning("%s", notice)
        self._keeper = self._new_keeper()
        self._opening = threading.Lock()
        _ENGINES.add(self)
        _close_at_exit(self)

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
        if not principal or not isinstance(principal, str):  # R12
            msg = f"principal must name the account that the request acts for, not {principal!r}"
            raise ValueError(msg)
        return make_call(
            request,
            key,
            principal,
            policy,
            self.settings.site,
            os.urandom(NONCE_BYTES),
            heard=self.settings.on_event is not None,
        )

    def _new_keeper(self) -> Keeper:
        return Keeper(self.store.renewer, self.settings)

    def _ready_keeper(self) -> None:
        """Replace a keeper that was closed, once, whoever comes first."""
        with self._opening:
            if self._keeper.closed:
                self._keeper = self._new_keeper()

    @abstractmethod
    def forget_opening(self) -> None:
        """Open again at the next request."""

    @abstractmethod
    def at_exit(self) -> None:
        """Finish at the end of the interpreter what `close` did not (R41)."""

    def after_fork(self) -> None:
        """Start anew in a child process: threads don't come along, and a lock may have been taken (R41)."""
        self._opening = threading.Lock()
        self._keeper = self._new_keeper()
        self.forget_opening()


_ENGINES: Final[weakref.WeakSet[Front[Any]]] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _close_at_exit(engine: Front[Any]) -> None:
    """Close at the end of the interpreter, unless the engine is gone by then."""
    alive = weakref.ref(engine)

    def close() -> None:
        found = alive()
        if found is not None:
            found.at_exit()

    atexit.register(close)
    gone = weakref.finalize(engine, atexit.unregister, close)
    gone.atexit = False  # at the end of the interpreter it would come before what it takes back
