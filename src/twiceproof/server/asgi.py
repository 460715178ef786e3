"""The door for any ASGI application."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Unpack

from twiceproof.core._lifecycle import Bypass, Reply
from twiceproof.core._messages import Request
from twiceproof.core._path import encode_path
from twiceproof.core._policy import Policy
from twiceproof.core._problems import unauthorized
from twiceproof.core._routes import Policies, Routes
from twiceproof.core._scope import anonymous, by_authorization
from twiceproof.engine import AsyncEngine, Attempt, Run
from twiceproof.engine._options import EngineOptions
from twiceproof.errors import ConfigurationError, TwiceproofWarning
from twiceproof.server._body import BadBody, Gone, read_body
from twiceproof.server._exchange import App, Exchange, Receive, Scope, Send, send_response
from twiceproof.server._lifespan import logger, serve_lifespan
from twiceproof.server._principal import check_principal
from twiceproof.server._setup import check_names, tell_no_raw_path

if TYPE_CHECKING:
    from twiceproof.core._lifecycle import Keyed
    from twiceproof.core._messages import Headers
    from twiceproof.stores import AsyncStore

__all__ = ["IdempotencyMiddleware", "Policy", "anonymous", "by_authorization"]

DEFAULT: Final = Policy()
"""Every POST and PATCH, the key optional, at most once."""
OUTSIDE_US: Final = frozenset(
    {"CORSMiddleware", "GZipMiddleware", "BrotliMiddleware", "ZstdMiddleware", "CompressMiddleware"}
)
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
        policy: Policies = DEFAULT,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.app = app
        self.principal = check_principal(principal)
        self.routes = Routes(policy)
        check_names(options)
        self.engine = AsyncEngine(store, **options)
        _warn_about_order(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; what is not covered goes straight through (R52)."""
        if scope["type"] == "http":
            method: str = scope["method"]
            if method in self.routes.methods:
                policy = self.routes.match(method, own_path(scope)) if self.routes.table else self.routes.rest
                if policy is not None:
                    headers: Headers = scope["headers"]
                    if not isinstance(headers, list | tuple):
                        headers = scope["headers"] = list(headers)  # ASGI promises an iterable, good for one look
                    admitted = self.engine.admit(method, headers, policy)
                    if not isinstance(admitted, Bypass):
                        await self._covered(scope, receive, send, policy, admitted)
                        return
                    scope["twiceproof"] = Attempt()
        elif scope["type"] == "lifespan":
            await serve_lifespan(self.engine, self.app, scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _covered(
        self, scope: Scope, receive: Receive, send: Send, policy: Policy, admitted: Keyed | Reply
    ) -> None:
        if isinstance(admitted, Reply):
            await send_response(send, admitted.response)
            return
        principal = "anonymous" if self.principal is anonymous else await self._resolve(scope)
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
        left = exchange.watch() if policy.wait else None
        try:
            begun = await self.engine.begin(
                request, principal, policy, key=admitted.key, attempt=attempt, left=left.event if left else None
            )
        finally:
            if left is not None:
                left.stop()
        if isinstance(begun, Reply):
            await send_response(send, begun.response)
            return
        exchange.body = body
        del body
        request.body = b""  # R11: the copy is dropped
        if isinstance(begun, Run):
            exchange.run = begun
        else:
            exchange.unprotected = begun.unprotected
        await exchange.run_app(self.app, scope)

    async def _resolve(self, scope: Scope) -> str | None:
        """Return the principal, or None: 401, never the anonymous space (R12)."""
        if self.principal is by_authorization:
            try:
                return by_authorization(scope["headers"])
            except ConfigurationError as error:
                logger.error("%s", error)  # the sentence is enough
                return None
        found = self.principal(scope)
        if isawaitable(found):
            found = await found
        if found is not None and not isinstance(found, str):
            raise TypeError(f"principal= must return a str, or None for nobody, not {type(found).__name__}")
        return found


def make_request(scope: Scope, body: bytes) -> Request:
    """Return the neutral request of an HTTP scope (R16: the raw path, the mount prefix included)."""
    path = scope.get("raw_path") or raw_path(scope)
    return Request(scope["method"], path, scope.get("query_string", b""), scope["headers"], body)


def raw_path(scope: Scope) -> bytes:
    """Return the path as sent, perhaps with the query; re-encoded where the server has none (R16)."""
    raw: bytes | None = scope.get("raw_path")
    if raw:
        return raw
    tell_no_raw_path()
    return encode_path(scope["path"])


def own_path(scope: Scope) -> bytes:
    """Return the path below the mount prefix, for the policy table: spelled from what the application routes by."""
    path: str = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root + "/"):
        path = path[len(root) :]
    return encode_path(path)


def _warn_about_order(app: object) -> None:
    """Warn of what stands inside and belongs outside, and of an application that has its own door (R49)."""
    inner: object | None = app
    for _ in range(100):  # a chain may bite its tail
        if inner is None:
            return
        names = {base.__name__ for base in type(inner).__mro__}
        door = "fastapi" if "FastAPI" in names else "asgi, given to Middleware(...)" if "Starlette" in names else ""
        if door:
            warnings.warn(
                f"the middleware around a {type(inner).__name__} object answers replays before the authentication "
                f"inside it; use twiceproof.server.{door}",
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
