"""The mark on a view of Flask: a function around it that claims before it runs (R49)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from flask import Response, abort, has_request_context, request

from twiceproof.errors import ConfigurationError, NotExecuted
from twiceproof.server._flask_visit import MARK, Visit
from twiceproof.server._lifespan import logger

if TYPE_CHECKING:
    from twiceproof.core._policy import Policy
    from twiceproof.server._wsgi_environ import Environ

View = Callable[..., Any]


class Owner(Protocol):
    """What a mark needs of the door that made it."""

    @property
    def key(self) -> str:
        """Where an environ keeps the visit."""
        ...

    def account(self, environ: Environ) -> str | None:
        """Return the principal of the current request; None where there is nobody."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """What a view carries. ``endpoint`` is the function as its author wrote it, ``wrapper`` what Flask calls."""

    owner: Owner
    policy: Policy
    endpoint: View
    wrapper: View

    @property
    def name(self) -> str:
        """How messages call the view."""
        return name_of(self.endpoint)


def name_of(view: View) -> str:
    """Return the name of a view."""
    return str(getattr(view, "__name__", type(view).__name__))


def make_mark(owner: Owner, view: View, policy: Policy) -> Mark:
    """Wrap a view, in its own colour."""
    given: object = view
    if inspect.isclass(given) or not callable(given):
        raise ConfigurationError(
            f"operation() goes on the function of a view, directly above it, not on {view!r}; a class-based view takes "
            "it in its decorators, or on the method"
        )
    if hasattr(view, MARK):
        raise ConfigurationError(f"{name_of(view)} is marked twice; keep one operation()")
    wrapper = _around_async(owner, view, policy) if _is_async(view) else _around_function(owner, view, policy)
    functools.update_wrapper(wrapper, view)
    mark = Mark(owner, policy, view, wrapper)
    for name, value in {"__name__": name_of(view), "__twiceproof__": policy, MARK: mark}.items():
        setattr(wrapper, name, value)
    return mark


def _around_function(owner: Owner, view: View, policy: Policy) -> View:
    def wrapper(*args: Any, **values: Any) -> Any:
        visit = _enter(owner, view, policy)
        if visit is not None and visit.reply is not None:
            return _blank(visit)
        try:
            return view(*args, **values)
        except Exception as error:
            _note(visit, error)
            raise

    return wrapper


def _around_async(owner: Owner, view: View, policy: Policy) -> View:
    async def wrapper(*args: Any, **values: Any) -> Any:
        visit = _enter(owner, view, policy)  # blocks: Flask gives an async view a loop of its own
        if visit is not None and visit.reply is not None:
            return _blank(visit)
        try:
            return await view(*args, **values)
        except Exception as error:
            _note(visit, error)
            raise

    return wrapper


def _enter(owner: Owner, view: View, policy: Policy) -> Visit | None:
    """Claim. None: the method is not covered (R1)."""
    if not has_request_context():
        raise ConfigurationError(
            f"{name_of(view)} is protected and was called without a request; in a test, call "
            f"{name_of(view)}.__wrapped__ to run it without protection"
        )
    if request.method not in policy.methods:
        return None
    visit: Visit | None = request.environ.get(owner.key)
    if visit is None:
        logger.error(
            "%s is marked as safe to retry, but its request did not come through install(app): it was not run",
            name_of(view),
        )
        abort(500)
    visit.enter(policy, owner.account)
    return visit


def _blank(visit: Visit) -> Response:
    """Return what stands for the reply until the layer puts it in its place."""
    return Response(status=visit.reply.response.status if visit.reply is not None else 500)


def _note(visit: Visit | None, error: Exception) -> None:
    """Remember what the view raised, whatever an error handler makes of it (CONTRACT 5)."""
    if visit is None:
        return
    if isinstance(error, NotExecuted):
        visit.nothing = True
    else:
        visit.failed(error, request.blueprints)


def _is_async(view: View) -> bool:
    plain: Any = view
    while isinstance(plain, functools.partial):
        plain = plain.func
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(getattr(plain, "__call__", None))  # noqa: B004
