"""The door for FastAPI: a replay comes after authentication and validation, and before the handler.

::

    idempotency = Idempotency(store="sqlite:///keys.db", principal=current_user)
    idempotency.install(app)


    @app.post("/transfers", status_code=201)
    @idempotency.operation(required=True)
    async def create_transfer(transfer: Transfer) -> Receipt: ...

A dependency that commits belongs to the handler's run, so it must end before the answer is sent:
``Depends(session, scope="function")``. One that ends later may fail after the answer was recorded (R51).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast, overload
from uuid import UUID

try:
    from fastapi import FastAPI, Request, params
    from starlette.middleware import Middleware
except ImportError as error:  # pragma: no cover
    raise ImportError("twiceproof.server.fastapi needs FastAPI: pip install 'twiceproof[fastapi]'") from error

from twiceproof.core._policy import Policy, make_policy
from twiceproof.core._scope import anonymous, by_authorization
from twiceproof.engine import AsyncEngine, Attempt
from twiceproof.engine._options import EngineOptions
from twiceproof.errors import ConfigurationError, TwiceproofWarning
from twiceproof.server._fastapi_mark import Mark, make_mark
from twiceproof.server._fastapi_visit import MARK, Visit
from twiceproof.server._lifespan import logger, serve_lifespan
from twiceproof.server._principal import check_principal
from twiceproof.server.asgi import OUTSIDE_US

if TYPE_CHECKING:
    from twiceproof.server._exchange import App, Receive, Scope, Send
    from twiceproof.stores import AsyncStore

__all__ = ["Idempotency", "Policy", "anonymous", "by_authorization"]

AnyEndpoint = TypeVar("AnyEndpoint", bound=Callable[..., Any])
Account = str | int | UUID | None


DEFAULT: Final = Policy()


class Idempotency:
    """Makes the marked operations of a FastAPI application safe to retry.

    ``principal`` is a dependency that returns the account a request acts for (`current_user`, or ``Security(...)``),
    `by_authorization`, or `anonymous`; there is no default (R12). An account is a str, int or UUID, the same over
    token refreshes; None or ``""`` is answered 401. Where the dependency returns something else, ``account`` takes
    the account from it: ``account=lambda user: user.id``.

    ``policy`` holds the defaults of all operations; ``operation`` changes them for one. The other options are
    `EngineOptions`. Raises `ConfigurationError` with one sentence that says what to change.
    """

    def __init__(
        self,
        *,
        store: str | AsyncStore,
        principal: Callable[..., Any] | params.Depends | None = None,
        account: Callable[[Any], Account] | None = None,
        policy: Policy = DEFAULT,
        **options: Unpack[EngineOptions],
    ) -> None:
        if isinstance(principal, params.Depends):
            self._principal, given = check_principal(principal.dependency), principal
        else:
            self._principal = check_principal(principal)
            given = params.Depends(self._principal)
        plain = self._principal is anonymous or self._principal is by_authorization
        if account is not None and (plain or not callable(account)):
            raise ConfigurationError("account= takes the account from what the dependency of principal= returns")
        if not isinstance(policy, Policy):
            raise ConfigurationError(f"policy must be a Policy with the defaults of all operations, not {policy!r}")
        self.dependency = None if plain else given
        self.key: Final = f"twiceproof.visit.{id(self):x}"
        self.engine = AsyncEngine(store, **options)
        self.marks: list[Mark] = []
        self.methods: set[str] = set()
        self._account = account
        self._policy = policy

    def install(self, app: FastAPI) -> None:
        """Put the part that sees requests and answers into an application, innermost of its middleware (R49).

        Call it once per application, before it starts; several applications may share one `Idempotency`. The engine
        opens with the application's lifespan, else at the first request, and closes with it (R41).
        """
        if not isinstance(app, FastAPI):
            raise ConfigurationError(f"install takes the FastAPI application, not {app!r}")
        if app.middleware_stack is not None:
            raise ConfigurationError("install was called after the application has started; call it before")
        if _place(app, self) is not None:
            raise ConfigurationError("install was called twice on this application; call it once")
        app.user_middleware.append(Middleware(_Layer, door=self, owner=app))

    @overload
    def operation(self, endpoint: AnyEndpoint, /) -> AnyEndpoint: ...

    @overload
    def operation(self, endpoint: None = None, /, **options: Any) -> Callable[[AnyEndpoint], AnyEndpoint]: ...

    def operation(
        self, endpoint: AnyEndpoint | None = None, /, **options: Any
    ) -> AnyEndpoint | Callable[[AnyEndpoint], AnyEndpoint]:
        """Mark the endpoint below as an operation that is safe to retry; the options are those of `Policy`.

        It stands below the route's own decorator: ``@app.post(...)`` registers what it finds. The resolved policy is
        ``endpoint.__twiceproof__``, and the function as written ``endpoint.__wrapped__``. An exception handler of
        the application may answer `NotExecuted`; without one it becomes the framework's 500.
        """
        policy = self._policy
        if options:
            defaults = {field.name: getattr(policy, field.name) for field in dataclasses.fields(Policy)}
            policy = make_policy({**defaults, **options})

        def decorate(endpoint: AnyEndpoint) -> AnyEndpoint:
            mark = make_mark(self, endpoint, policy)
            self.marks.append(mark)
            self.methods.update(policy.methods)
            return cast("AnyEndpoint", mark.wrapper)

        return decorate if endpoint is None else decorate(endpoint)

    async def attempt(self, request: Request) -> Attempt:
        """Return the `Attempt` of this request: a dependency, ``Depends(idempotency.attempt)``."""
        attempt: Attempt | None = request.scope.get("twiceproof")
        return attempt or Attempt()

    def account(self, scope: Scope, found: object) -> str | None:
        """Return the principal of a request, given what the dependency found; None where there is nobody (R12)."""
        if self._principal is anonymous:
            return anonymous(())
        if self._principal is by_authorization:
            try:
                return by_authorization(scope["headers"])
            except ConfigurationError as error:
                logger.error("%s", error)  # the sentence is enough
                return None
        if self._account is not None and found is not None:
            found = self._account(found)
        if isinstance(found, str):
            return found
        if found is None:
            return None
        if isinstance(found, int | UUID) and not isinstance(found, bool):
            return str(found)
        raise ConfigurationError(
            f"the principal dependency returned a {type(found).__name__}; let it return a stable account id (str, int "
            "or UUID), or say account=lambda user: user.id"
        )


class _Layer:
    """The innermost middleware of an application."""

    def __init__(self, app: App, *, door: Idempotency, owner: FastAPI) -> None:
        self.app = app
        self._door = door
        self._owner = owner
        self._checked = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; a request whose method no mark covers goes straight through (R1, R52)."""
        kind = scope["type"]
        if kind == "http":
            if not self._checked:
                self._check()
            if scope["method"] in self._door.methods:
                if not isinstance(scope["headers"], list | tuple):
                    scope["headers"] = list(scope["headers"])  # ASGI promises an iterable, good for one look
                visit = scope[self._door.key] = Visit(self._door, self._door.engine, scope, receive, send)
                await visit.serve(self.app)
                return
        elif kind == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check()
        except (ConfigurationError, TwiceproofWarning) as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await serve_lifespan(self._door.engine, self.app, scope, receive, send)

    def _check(self) -> None:
        """Look once, when all routes are there, for marks that protect nothing and middleware in the wrong place."""
        door, used = self._door, set[int]()
        place = _place(self._owner, door)
        _warn_about_order(_names(self._owner.user_middleware[place + 1 :]) if place is not None else ())
        routes = list(_walk(door, self._owner.routes))
        for route, inside in routes:
            endpoint = getattr(route, "endpoint", None)
            mark: Mark | None = getattr(endpoint, MARK, None)
            if mark is None or mark.owner is not door:
                continue
            used.add(id(mark.endpoint))
            methods: set[str] = getattr(route, "methods", None) or set()
            if methods.isdisjoint(mark.policy.methods):
                _warn(
                    f"{mark.name} is marked, but none of its methods ({', '.join(sorted(methods)) or 'no HTTP'}) is "
                    f"covered, so it is not protected; add them to methods= or take the mark away"
                )
            _warn_about_order(inside)
        written = {id(mark.endpoint): mark for mark in door.marks if id(mark.endpoint) not in used}
        for route, _ in routes:
            mark = written.get(id(getattr(route, "endpoint", None)))
            if mark is not None:
                raise ConfigurationError(
                    f"{mark.name} is not protected: its route was given the function without the mark; put "
                    f"operation() directly below the route's own decorator, next to the function"
                )
        self._checked = True


def _place(app: FastAPI, door: Idempotency) -> int | None:
    """Return where in an application's middleware a door stands."""
    for at, item in enumerate(app.user_middleware):
        if cast("object", item.cls) is _Layer and item.kwargs.get("door") is door:
            return at
    return None


def _walk(
    door: Idempotency, routes: Iterable[Any], inside: tuple[str, ...] = ()
) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield every route, also of included routers and mounted applications, and the middleware between it and us."""
    for route in routes:
        router = getattr(route, "original_router", None)
        if router is not None:
            yield from _walk(door, router.routes, inside)
        elif hasattr(route, "endpoint"):
            yield route, inside
        else:
            mounted = getattr(route, "app", None)
            stack = getattr(mounted, "user_middleware", ())
            place = _place(mounted, door) if isinstance(mounted, FastAPI) else None
            names = (*inside, *_names(stack)) if place is None else _names(stack[place + 1 :])
            yield from _walk(door, getattr(route, "routes", None) or (), names)


def _names(stack: Iterable[Any]) -> tuple[str, ...]:
    return tuple(getattr(item.cls, "__name__", "") for item in stack)


def _warn_about_order(inside: Iterable[str]) -> None:
    for name in inside:
        if name in OUTSIDE_US:
            _warn(f"{name} stands inside the idempotency layer, so replays lack what it adds; put it outside (R49)")


def _warn(message: str) -> None:
    warnings.warn(message, TwiceproofWarning, stacklevel=2)
