"""The door for any ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Unpack

from twiceproof.core._lifecycle import Bypass, Reply
from twiceproof.core._messages import Request
from twiceproof.core._path import encode_path
from twiceproof.core._policy import Policy
from twiceproof.core._problems import unauthorized
from twiceproof.core._routes import Policies, Routes
from twiceproof.core._scope import anonymous, by_authorization
from twiceproof.engine import AsyncEngine, Attempt, Run
from twiceproof.engine._options import EngineOptions, logger
from twiceproof.errors import ConfigurationError, TwiceproofWarning
from twiceproof.server._body import BadBody, Gone, read_body
from twiceproof.server._exchange import App, Exchange, Message, Receive, Scope, Send, send_response
from twiceproof.server._principal import check_principal

if TYPE_CHECKING:
    from twiceproof.core._lifecycle import Keyed
    from twiceproof.stores import AsyncStore

Principal = Callable[[Scope], str | None | Awaitable[str | None]]

__all__ = ["IdempotencyMiddleware", "Policy", "anonymous", "by_authorization"]

OUTSIDE_US = frozenset({"CORSMiddleware", "GZipMiddleware", "BrotliMiddleware", "ZstdMiddleware", "CompressMiddleware"})
"""What belongs outside this middleware (R49)."""


class IdempotencyMiddleware:
    """Makes the covered operations of an ASGI application safe to retry.

    ``principal`` is a callable that takes the scope and returns the account (or None: 401), `by_authorization`, or
    `anonymous`. ``policy`` is one `Policy` or a table, see `Routes`. The other options are `EngineOptions`. It stands
    inside authentication and outside validation (R49). Raises `ConfigurationError` at start-up.
    """

    def __init__(
        self,
        app: App,
        *,
        store: str | AsyncStore,
        principal: Callable[..., Any] | None = None,
        policy: Policies = Policy(),  # noqa: B008  # frozen
        **options: Unpack[EngineOptions],
    ) -> None:
        self.app = app
        self.principal = check_principal(principal)
        self.routes = Routes(policy)
        self.engine = AsyncEngine(store, **options)
        _warn_about_order(app)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one connection; what is not covered goes straight through (R52)."""
        if scope["type"] == "http":
            method: str = scope["method"]
            if method in self.routes.methods:
                policy = self.routes.match(method, own_path(scope))
                if policy is not None:
                    admitted = self.engine.admit(method, scope["headers"], policy)
                    if not isinstance(admitted, Bypass):
                        return self._covered(scope, receive, send, policy, admitted)
                    scope["twiceproof"] = Attempt()
        elif scope["type"] == "lifespan":
            return serve_lifespan(self.engine, self.app, scope, receive, send)
        return self.app(scope, receive, send)

    async def _covered(
        self, scope: Scope, receive: Receive, send: Send, policy: Policy, admitted: Keyed | Reply
    ) -> None:
        if isinstance(admitted, Reply):
            await send_response(send, admitted.response)
            return
        principal = await self._resolve(scope)
        if not principal:
            await send_response(send, unauthorized())
            return
        body = await read_body(receive, scope["headers"], policy.max_request_bytes)
        if isinstance(body, BadBody):
            await send_response(send, self.engine.refuse(body.code).response)
            return
        if isinstance(body, Gone):
            return
        exchange = Exchange(self.engine, receive, send)
        attempt = scope["twiceproof"] = Attempt(admitted.key)
        request = make_request(scope, body)
        begun = await begin(self.engine, exchange, request, principal, policy, admitted.key, attempt, receive)
        if isinstance(begun, Reply):
            await send_response(send, begun.response)
            return
        exchange.body = body
        del body
        if isinstance(begun, Run):
            exchange.run = begun
            begun.call.request = Request(request.method, request.raw_path)  # R11: the copy is dropped
        else:
            exchange.unprotected = begun.unprotected
        del request
        await exchange.run_app(self.app, scope)

    async def _resolve(self, scope: Scope) -> str | None:
        """Return the principal, or None: 401, never the anonymous space (R12)."""
        if self.principal is anonymous:
            return anonymous(())
        if self.principal is by_authorization:
            try:
                return by_authorization(scope["headers"])
            except ConfigurationError as error:
                logger.error("%s", error)  # noqa: TRY400  # the sentence is enough
                return None
        found = self.principal(scope)
        return await found if isawaitable(found) else found


async def begin(  # noqa: PLR0913  # one call of the engine, and the two things that a wait needs
    engine: AsyncEngine,
    exchange: Exchange,
    request: Request,
    principal: str,
    policy: Policy,
    key: str,
    attempt: Attempt,
    receive: Receive,
) -> Reply | Bypass | Run:
    """Begin; while a duplicate waits, watch whether its client leaves (R23)."""
    if not policy.wait:
        return await engine.begin(request, principal, policy, key=key, attempt=attempt)
    left = asyncio.Event()

    async def watch() -> None:
        exchange.gone = await receive()
        left.set()

    watcher = asyncio.ensure_future(watch())
    try:
        return await engine.begin(request, principal, policy, key=key, attempt=attempt, left=left)
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


def make_request(scope: Scope, body: bytes) -> Request:
    """Return the neutral request of an HTTP scope (R16: the raw path, the mount prefix included)."""
    return Request(scope["method"], raw_path(scope), scope.get("query_string", b""), scope["headers"], body)


def raw_path(scope: Scope) -> bytes:
    """Return the path as sent, cut at the query; re-encoded where the server has none (R16)."""
    raw: bytes | None = scope.get("raw_path")
    return raw.partition(b"?")[0] if raw else encode_path(scope["path"])


def own_path(scope: Scope) -> bytes:
    """Return the path below the mount prefix, for the policy table."""
    path = raw_path(scope)
    prefix = encode_path(scope.get("root_path", "")).rstrip(b"/")
    if prefix and path.startswith(prefix + b"/"):
        return path[len(prefix) :]
    return path


async def serve_lifespan(engine: AsyncEngine, app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Open the engine before the application starts, and close it after it has stopped (R41)."""

    async def opening() -> Message:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await engine.open()
        return message

    async def closing(message: Message) -> None:
        if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            await engine.close()
        await send(message)

    await app(scope, opening, closing)


def _warn_about_order(app: object) -> None:
    """Warn of what stands inside and belongs outside, and of an application that has its own door (R49)."""
    seen = 0
    inner: object | None = app
    while inner is not None and seen < 100:  # noqa: PLR2004  # a chain that bites its tail
        names = {base.__name__ for base in type(inner).__mro__}
        door = "fastapi" if "FastAPI" in names else "asgi, given to Middleware(...)" if "Starlette" in names else ""
        if door:
            warnings.warn(
                f"the middleware around a {type(inner).__name__} object answers replays before the authentication inside "
                f"it; use twiceproof.server.{door}",
                TwiceproofWarning,
                stacklevel=3,
            )
        stack = getattr(inner, "user_middleware", ())
        inside = names | {getattr(item, "cls", type(None)).__name__ for item in stack}
        for name in sorted(inside & OUTSIDE_US):
            warnings.warn(
                f"{name} stands inside the idempotency middleware, so replays lack what it adds; put it outside",
                TwiceproofWarning,
                stacklevel=3,
            )
        inner = getattr(inner, "app", None)
        seen += 1
