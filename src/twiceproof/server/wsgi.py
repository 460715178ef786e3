"""The door for any WSGI application (PEP 3333)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, Unpack

from twiceproof.core._lifecycle import Bypass, Reply
from twiceproof.core._messages import Request
from twiceproof.core._policy import Policy
from twiceproof.core._problems import unauthorized
from twiceproof.core._routes import Policies, Routes
from twiceproof.core._scope import anonymous, by_authorization
from twiceproof.engine import Attempt, Engine, Run
from twiceproof.engine._options import EngineOptions, check_policy
from twiceproof.errors import ConfigurationError, TwiceproofWarning
from twiceproof.server._body import BadBody
from twiceproof.server._lifespan import logger
from twiceproof.server._principal import check_principal
from twiceproof.server._setup import check_names
from twiceproof.server._wsgi_body import read_body
from twiceproof.server._wsgi_environ import Environ, key_fields, make_request, octets, own_path, send_response
from twiceproof.server._wsgi_exchange import Exchange

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

    from twiceproof.core._lifecycle import Keyed
    from twiceproof.stores import Store

__all__ = ["IdempotencyMiddleware", "Policy", "anonymous", "by_authorization"]

DEFAULT: Final = Policy()
"""Every POST and PATCH, the key optional, at most once."""
OUTSIDE_US: Final = frozenset({"CORS", "CORSMiddleware", "GzipMiddleware", "GZipMiddleware", "CompressMiddleware"})
"""What belongs outside this middleware (R49)."""
_INNER: Final = ("app", "wsgi_app", "application", "__self__")
"""Where middleware keeps what it wraps; a bound method such as ``flask_app.wsgi_app`` its object."""


class IdempotencyMiddleware:
    """Makes the covered operations of a WSGI application safe to retry.

    ``principal`` is a plain callable that takes the environ and returns the account (or None: 401),
    `by_authorization`, or `anonymous`. ``policy`` is one `Policy` or a table, see `Routes`. The other options are
    `EngineOptions`. It stands inside authentication and outside validation (R49). The engine opens at the first
    covered request of a process, so it may be made before the server forks, and closes at the end of the process
    (R41). Raises `ConfigurationError` at start-up.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        store: str | Store,
        principal: Callable[..., Any] | None = None,
        policy: Policies = DEFAULT,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.app = app
        self.principal = check_plain(check_principal(principal))
        self.routes = Routes(policy)
        for each in self.routes.policies.values():
            if each is not None:
                check_policy(each, asynchronous=False)
        check_names(options)
        self.engine = Engine(store, **options)
        _warn_about_order(app)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request; what is not covered goes straight through (R52)."""
        method: str = environ["REQUEST_METHOD"]
        if method in self.routes.methods:
            policy = self.routes.match(method, own_path(environ)) if self.routes.table else self.routes.rest
            if policy is not None:
                admitted = self.engine.admit(method, key_fields(environ, policy), policy)
                if not isinstance(admitted, Bypass):
                    return self._covered(environ, start_response, policy, admitted)
                environ["twiceproof"] = Attempt()
        return self.app(environ, start_response)

    def _covered(
        self, environ: Environ, start_response: StartResponse, policy: Policy, admitted: Keyed | Reply
    ) -> Iterable[bytes]:
        if isinstance(admitted, Reply):
            return send_response(environ, start_response, admitted.response)
        principal = self._resolve(environ)
        if not principal:
            return send_response(environ, start_response, unauthorized())
        body = read_body(environ, policy.max_request_bytes)
        if isinstance(body, BadBody):
            return send_response(environ, start_response, self.engine.refuse(body.code).response)
        attempt = environ["twiceproof"] = Attempt(admitted.key)
        request = make_request(environ, body)
        del body
        begun = self.engine.begin(request, principal, policy, key=admitted.key, attempt=attempt)
        if isinstance(begun, Reply):
            return send_response(environ, start_response, begun.response)
        exchange = Exchange(self.engine, environ, start_response)
        if isinstance(begun, Run):
            exchange.claimed(begun)
            begun.call.request = Request(request.method, request.raw_path)  # R11: the copy is dropped
        else:
            exchange.unprotected = begun.unprotected
        del request
        return exchange.run_app(self.app)

    def _resolve(self, environ: Environ) -> str | None:
        """Return the principal, or None: 401, never the anonymous space (R12)."""
        if self.principal is anonymous:
            return anonymous(())
        if self.principal is by_authorization:
            return authorized(environ)
        found: object = self.principal(environ)
        if found is not None and not isinstance(found, str):
            raise TypeError(f"principal= must return a str, or None for nobody, not {type(found).__name__}")
        return found


def authorized(environ: Environ) -> str | None:
    """Return the principal of `by_authorization`; a scheme that can't name one is nobody, and the log says why."""
    try:
        return by_authorization([(b"authorization", octets(environ.get("HTTP_AUTHORIZATION", "")))])
    except ConfigurationError as error:
        logger.error("%s", error)  # the sentence is enough
        return None


def check_plain(principal: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a resolver of the other colour: those that wait have the engine's (R12)."""
    if iscoroutinefunction(principal) or iscoroutinefunction(getattr(principal, "__call__", None)):  # noqa: B004
        raise ConfigurationError("principal= is an async function, but this door is blocking; give it a plain function")
    return principal


def _warn_about_order(app: object) -> None:
    """Warn of what stands inside and belongs outside, and of an application that has its own door (R49)."""
    for inner in chain_of(app):
        names = {base.__name__ for base in type(inner).__mro__}
        if "Flask" in names:
            warnings.warn(
                f"the middleware around a {type(inner).__name__} object answers replays before the authentication "
                f"inside it; use twiceproof.server.flask",
                TwiceproofWarning,
                stacklevel=3,
            )
            return
        for name in sorted(names & OUTSIDE_US):
            warnings.warn(
                f"{name} stands inside the idempotency middleware, so replays lack what it adds; put it outside",
                TwiceproofWarning,
                stacklevel=3,
            )


def chain_of(app: object) -> Iterable[object]:
    """Yield an application and what it wraps, outermost first, by the names that middleware commonly uses."""
    seen: set[int] = set()
    inner: object | None = app
    while inner is not None and id(inner) not in seen:  # a chain may bite its tail
        seen.add(id(inner))
        yield inner
        inner = next((found for name in _INNER if (found := getattr(inner, name, None)) is not None), None)
