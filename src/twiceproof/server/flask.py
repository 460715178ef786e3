"""The door for Flask: a replay comes after authentication, and before the view.

::

    idempotency = Idempotency(store="sqlite:///keys.db", principal=lambda: g.user.id)
    idempotency.install(app)


    @app.post("/transfers")
    @login_required
    @idempotency.operation(required=True)
    def create_transfer(): ...

It stands next to the function: decorators above it, and ``before_request``, authenticate before the claim (R49).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast, overload
from uuid import UUID

try:
    from flask import Flask, g, got_request_exception, has_request_context, request
except ImportError as error:  # pragma: no cover
    raise ImportError("twiceproof.server.flask needs Flask: pip install 'twiceproof[flask]'") from error

from twiceproof.core._lifecycle import field_names
from twiceproof.core._policy import Policy, make_policy
from twiceproof.core._scope import anonymous, by_authorization
from twiceproof.engine import Attempt, Engine
from twiceproof.engine._options import EngineOptions, check_policy
from twiceproof.errors import ConfigurationError, TwiceproofWarning
from twiceproof.server._flask_mark import Mark, make_mark
from twiceproof.server._flask_visit import MARK, Visit
from twiceproof.server._principal import check_principal
from twiceproof.server._wsgi_environ import key_variables
from twiceproof.server.wsgi import authorized, check_plain

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

    from twiceproof.server._wsgi_environ import Environ
    from twiceproof.stores import Store

__all__ = ["Idempotency", "Policy", "anonymous", "by_authorization"]

AnyView = TypeVar("AnyView", bound=Callable[..., Any])
Account = str | int | UUID | None

EXTENSION: Final = "twiceproof"
"""Where an application lists the doors that are installed in it."""
DEFAULT: Final = Policy()
_INNER: Final = ("app", "wsgi_app", "application")


class Idempotency:
    """Makes the marked operations of a Flask application safe to retry.

    ``principal`` is a plain function without arguments that returns the account the current request acts for, from
    `flask.g`, `flask.session` or `flask.request`; or `by_authorization`, or `anonymous`; there is no default (R12). An
    account is a str, int or UUID, the same over token refreshes; None or ``""`` is answered 401. Where the function
    returns something else, ``account`` takes the account from it: ``account=lambda user: user.id``.

    ``policy`` holds the defaults of all operations; ``operation`` changes them for one. The other options are
    `EngineOptions`. Raises `ConfigurationError` with one sentence that says what to change.
    """

    def __init__(
        self,
        *,
        store: str | Store,
        principal: Callable[..., Any] | None = None,
        account: Callable[[Any], Account] | None = None,
        policy: Policy = DEFAULT,
        **options: Unpack[EngineOptions],
    ) -> None:
        self._principal = check_plain(check_principal(principal))
        plain = self._principal is anonymous or self._principal is by_authorization
        if account is not None and (plain or not callable(account)):
            raise ConfigurationError("account= takes the account from what the function of principal= returns")
        if not isinstance(policy, Policy):
            raise ConfigurationError(f"policy must be a Policy with the defaults of all operations, not {policy!r}")
        self.key: Final = f"twiceproof.visit.{id(self):x}"
        self.engine = Engine(store, **options)
        self.marks: list[Mark] = []
        self.methods: set[str] = set()
        self.key_variables: set[str] = set()
        self._account = account
        self._policy = policy
        self._apps: list[Flask] = []

    def install(self, app: Flask) -> None:
        """Put the part that sees requests and answers into an application, innermost of its middleware (R49).

        Call it once per application, before it serves; several applications may share one `Idempotency`. The engine
        opens at the first request of a process, so it may be made before the server forks, and closes at the end of
        the process (R41).
        """
        if not isinstance(app, Flask):
            raise ConfigurationError(f"install takes the Flask application, not {app!r}")
        if getattr(app, "_got_first_request", False):
            raise ConfigurationError("install was called after the application has served a request; call it before")
        doors: list[Idempotency] = app.extensions.setdefault(EXTENSION, [])
        if self in doors:
            raise ConfigurationError("install was called twice on this application; call it once")
        _put_innermost(app, self)
        doors.append(self)
        self._apps.append(app)
        app.before_request_funcs.setdefault(None, []).insert(0, self._show_attempt)
        got_request_exception.connect(self._note_unhandled, app)

    init_app = install
    """The name that Flask's extensions use."""

    @overload
    def operation(self, view: AnyView, /) -> AnyView: ...

    @overload
    def operation(self, view: None = None, /, **options: Any) -> Callable[[AnyView], AnyView]: ...

    def operation(self, view: AnyView | None = None, /, **options: Any) -> AnyView | Callable[[AnyView], AnyView]:
        """Mark the view below as an operation that is safe to retry; the options are those of `Policy`.

        It stands next to the function, below the route and below what authenticates. In a `MethodView` it marks one
        method, or all of them from the class's ``decorators``. The resolved policy is ``view.__twiceproof__``, and
        the function as written ``view.__wrapped__``.
        """
        policy = self._policy
        if options:
            defaults = {field.name: getattr(policy, field.name) for field in dataclasses.fields(Policy)}
            policy = make_policy({**defaults, **options})
        check_policy(policy, asynchronous=False)

        def decorate(view: AnyView) -> AnyView:
            mark = make_mark(self, view, policy)
            for app in self._apps:
                _check_order(app.view_functions.values(), [mark])
            self.marks.append(mark)
            self.methods.update(policy.methods)
            self.key_variables.update(variable for variable, _ in key_variables(field_names(policy)))
            return cast("AnyView", mark.wrapper)

        return decorate if view is None else decorate(view)

    @property
    def attempt(self) -> Attempt:
        """The `Attempt` of the current request, which is ``g.twiceproof`` too."""
        attempt: Attempt | None = request.environ.get(EXTENSION) if has_request_context() else None
        return attempt or Attempt()

    def account(self, environ: Environ) -> str | None:
        """Return the principal of the current request; None where there is nobody (R12)."""
        if self._principal is anonymous:
            return anonymous(())
        if self._principal is by_authorization:
            return authorized(environ)
        found: object = self._principal()
        if self._account is not None and found is not None:
            found = self._account(found)
        if found is None or isinstance(found, str):
            return found
        if isinstance(found, int | UUID) and not isinstance(found, bool):
            return str(found)
        raise ConfigurationError(
            f"the function of principal= returned a {type(found).__name__}; let it return a stable account id (str, "
            "int or UUID), or say account=lambda user: user.id"
        )

    def _show_attempt(self) -> None:
        g.twiceproof = self.attempt

    def _note_unhandled(self, _: object, **__: object) -> None:
        """Learn of an error that no handler answered, also one from a hook after the view (CONTRACT 5)."""
        visit: Visit | None = request.environ.get(self.key) if has_request_context() else None
        if visit is not None:
            visit.raised = True


class _Layer:
    """The innermost WSGI middleware of an application."""

    def __init__(self, app: WSGIApplication, door: Idempotency, owner: Flask) -> None:
        self.app = app
        self.door = door
        self._owner = owner
        self._checked = False

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request; one whose method no mark covers goes straight through (R1, R52)."""
        if not self._checked:
            self._check()
        if environ["REQUEST_METHOD"] not in self.door.methods:
            return self.app(environ, start_response)
        visit = environ[self.door.key] = Visit(self.door, environ, start_response)
        return visit.run_app(self.app)

    def _check(self) -> None:
        """Look once, when all views are there, for marks that protect nothing and hooks in the wrong place."""
        _check_order(self._owner.view_functions.values(), self.door.marks)
        for rule in self._owner.url_map.iter_rules():
            mark: Mark | None = getattr(self._owner.view_functions.get(rule.endpoint), MARK, None)
            methods = rule.methods or set()
            if mark is not None and mark.owner is self.door and methods.isdisjoint(mark.policy.methods):
                _warn(
                    f"{mark.name} is marked, but none of its methods ({', '.join(sorted(methods))}) is covered, so it "
                    f"is not protected; add them to methods= or take the mark away"
                )
        for hook in (hook for hooks in self._owner.after_request_funcs.values() for hook in hooks):
            if type(getattr(hook, "__self__", None)).__name__ == "Compress":
                _warn("Compress works inside the idempotency layer, so replays are compressed as the first answer was")
        self._checked = True


def _put_innermost(app: Flask, door: Idempotency) -> None:
    """Wrap the application itself, inside of middleware that is already around it."""
    holder: object = app
    name = "wsgi_app"
    for _ in range(100):  # a chain may bite its tail
        held: Any = getattr(holder, name)
        if getattr(held, "__self__", None) is app or isinstance(held, _Layer):
            setattr(holder, name, _Layer(held, door, app))
            return
        inner = next((each for each in _INNER if getattr(held, each, None) is not None), None)
        if inner is None:
            break
        holder, name = held, inner
    _warn(
        f"{type(app.wsgi_app).__name__} stands inside the idempotency layer; call install before app.wsgi_app is "
        "wrapped, so that what it adds is added to replays too"
    )
    app.wsgi_app = _Layer(app.wsgi_app, door, app)  # type: ignore[method-assign]


def _check_order(views: Iterable[Any], marks: Iterable[Mark]) -> None:
    """Refuse a route that was given the function without the mark that stands on it."""
    registered = {id(view) for view in views}
    for mark in marks:
        if id(mark.endpoint) in registered and id(mark.wrapper) not in registered:
            raise ConfigurationError(
                f"{mark.name} is not protected: its route was given the function without the mark; put operation() "
                f"next to the function, below the route's own decorator"
            )


def _warn(message: str) -> None:
    warnings.warn(message, TwiceproofWarning, stacklevel=3)
