"""Find what protects an application: our doors in its middleware, our marks on its routes, and what has neither."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from twiceproof.cli._explain_text import Setting
from twiceproof.core._path import encode_path
from twiceproof.core._policy import Policy
from twiceproof.core._routes import Routes
from twiceproof.core._scope import anonymous, by_authorization
from twiceproof.engine import AsyncEngine, Engine
from twiceproof.server import wsgi
from twiceproof.server.asgi import IdempotencyMiddleware

SHOULD_BE_COVERED: Final = ("PATCH", "POST")  # R1
DEEPEST: Final = 100  # wrappers around an application; a chain may bite its tail
MARK: Final = "__twiceproof_mark__"  # of FastAPI's and Flask's door; by name, since neither may be installed
INSTALLED: Final = "twiceproof"  # where a Flask application lists its doors
INNER: Final = ("app", "wsgi_app", "application", "__self__")  # where wrappers keep what they wrap
CONVERTER: Final = re.compile(r"<(?:[^<>]*:)?([^<>]*)>")  # a variable part of a rule of Flask's


@dataclass(frozen=True, slots=True)
class Store:
    """Where the records of an operation are."""

    name: str
    durable: bool
    shared: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One covered operation."""

    method: str
    path: str
    endpoint: str | None
    policy: Policy
    setting: Setting
    store: Store


@dataclass(frozen=True, slots=True)
class Unprotected:
    """A route that could be covered, and is not."""

    method: str
    path: str
    endpoint: str | None


@dataclass(slots=True)
class Door:
    """One `IdempotencyMiddleware`; paths are matched below ``prefix``. ``opaque``: it also covers what we can't see."""

    middleware: IdempotencyMiddleware | wsgi.IdempotencyMiddleware
    prefix: str
    used: set[str] = field(default_factory=set)
    opaque: bool = False

    def match(self, method: str, path: str) -> Policy | None:
        """Return the policy of a route, and remember which row of the table it was."""
        own = encode_path(path.removeprefix(self.prefix) or "/")
        for name, policy in self.middleware.routes.policies.items():
            if policy is not None and name != "*" and Routes({name: policy}).match(method, own) is not None:
                self.used.add(name)
        return self.middleware.routes.match(method, own)


@dataclass(slots=True)
class Findings:
    """What an application's operations are promised, and what is wrong."""

    operations: list[Operation] = field(default_factory=list)
    unprotected: list[Unprotected] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    doors: list[Door] = field(default_factory=list)
    installed: dict[int, Any] = field(default_factory=dict)
    endpoints: set[int] = field(default_factory=set)

    @property
    def any(self) -> bool:
        """Whether there is anything of ours at all."""
        return bool(self.doors or self.installed or self.operations)

    def cover(self, method: str, path: str, endpoint: str | None, policy: Policy, door: object) -> None:
        """Add an operation that ``door`` covers."""
        engine = door.middleware.engine if isinstance(door, Door) else _engine(door)
        owner = door.middleware if isinstance(door, Door) else door
        capabilities = engine.store.capabilities
        store = Store(_store_name(engine), capabilities.durable, capabilities.shared, tuple(engine.notices))
        bare, framework = ("wsgi", "flask") if isinstance(engine, Engine) else ("asgi", "fastapi")
        setting = Setting(
            bare if isinstance(door, Door) else framework,
            engine.settings.site.namespace,
            _principal_name(owner),
            capabilities.durable,
        )
        self.operations.append(Operation(method, path, endpoint, policy, setting, store))


def find(app: object) -> Findings:
    """Walk through an application, whatever wraps it and whatever it mounts."""
    findings = Findings()
    _walk(findings, app, "", ())
    for door in findings.doors:
        _rows_without_routes(findings, door)
    for owner in findings.installed.values():
        _marks_without_routes(findings, owner)
    return findings


def _walk(findings: Findings, app: object, prefix: str, around: tuple[Door, ...]) -> None:
    own: list[Door] = []
    for inner in _chain(app):
        if isinstance(inner, IdempotencyMiddleware | wsgi.IdempotencyMiddleware):
            own.append(Door(inner, prefix))
            continue
        for place, mounted in _mounts(inner).items():
            _walk(findings, mounted, prefix + place, (*around, *own))
        if hasattr(inner, "url_map") and hasattr(inner, "view_functions"):
            own += [Door(each, prefix) for each in _chain(inner.wsgi_app, inner) if _is_ours(each)]
            findings.doors += own
            _rules(findings, inner, prefix, (*around, *own))
            return
        for item in getattr(inner, "user_middleware", ()):
            door = item.kwargs.get("door")
            if isinstance(item.cls, type) and issubclass(item.cls, IdempotencyMiddleware):
                own.append(Door(item.cls(_nothing, *item.args, **item.kwargs), prefix))
            elif isinstance(getattr(door, "engine", None), AsyncEngine):
                findings.installed[id(door)] = door
        routes: Any = getattr(inner, "routes", None)
        if isinstance(routes, Iterable):
            findings.doors += own
            _routes(findings, _flat(routes), prefix, (*around, *own))
            return
    findings.doors += own
    for door in (*around, *own):
        door.opaque = True


def _chain(app: object, end: object = None) -> Iterator[Any]:
    """Yield an application and what it wraps, outermost first, up to ``end``."""
    for _ in range(DEEPEST):
        if app is end or app is None:
            return
        yield app
        app = next((inner for name in INNER if (inner := getattr(app, name, None)) is not None), None)


def _mounts(app: object) -> Mapping[str, object]:
    """Return what Werkzeug's dispatcher mounts beside its main application."""
    mounts: object = getattr(app, "mounts", None)
    return cast("Mapping[str, object]", mounts) if isinstance(mounts, Mapping) else {}


def _rules(findings: Findings, app: Any, prefix: str, around: tuple[Door, ...]) -> None:
    """Go through the rules of a Flask application."""
    for door in app.extensions.get(INSTALLED, ()):
        findings.installed[id(door)] = door
    for rule in app.url_map.iter_rules():
        view = app.view_functions.get(rule.endpoint)
        findings.endpoints.add(id(view))
        methods: set[str] = rule.methods or set()
        for method in sorted(methods - {"HEAD", "OPTIONS"}):
            handler = getattr(getattr(view, "view_class", None), method.lower(), None)
            marked = handler if hasattr(handler, MARK) and not hasattr(view, MARK) else view
            _route(findings, method, prefix + CONVERTER.sub(r"{\1}", rule.rule), marked, around)


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    """Return the routes; those of routers that FastAPI includes lazily with the paths they have in the end."""
    iterate = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    return routes if iterate is None else iterate(routes)


def _routes(findings: Findings, routes: Iterable[Any], prefix: str, around: tuple[Door, ...]) -> None:
    for route in routes:
        path = prefix + (getattr(route, "path", None) or "")
        endpoint = getattr(route, "endpoint", None)
        if endpoint is None:
            if getattr(route, "app", None) is not None:  # mounted
                _walk(findings, route.app, path, around)
            continue
        findings.endpoints.add(id(endpoint))
        if "WebSocket" in type(getattr(route, "original_route", route)).__name__:
            continue
        own = [Door(each, prefix) for each in _chain(getattr(route, "app", None)) if _is_ours(each)]
        findings.doors += own
        for method in _methods(route, endpoint):
            _route(findings, method, path, endpoint, (*around, *own))


def _is_ours(app: object) -> bool:
    return isinstance(app, IdempotencyMiddleware | wsgi.IdempotencyMiddleware)


def _methods(route: Any, endpoint: Any) -> list[str]:
    """Return the methods of a route; a class of handlers has those it defines, an application as endpoint all."""
    methods: Iterable[str] | None = getattr(route, "methods", None)
    if methods is not None:
        return sorted(methods)
    if isinstance(endpoint, type) and hasattr(endpoint, "dispatch"):
        return [method for method in ("DELETE", "PATCH", "POST", "PUT") if hasattr(endpoint, method.lower())]
    return list(SHOULD_BE_COVERED)


def _route(findings: Findings, method: str, path: str, endpoint: Any, around: tuple[Door, ...]) -> None:
    name: str | None = getattr(endpoint, "__qualname__", None)
    covering = [(door, policy) for door in around if (policy := door.match(method, path)) is not None]
    marked = getattr(endpoint, "__twiceproof__", None)
    owner = getattr(getattr(endpoint, MARK, None), "owner", None)
    if isinstance(marked, Policy) and owner is not None and method in marked.methods:
        findings.cover(method, path, name, marked, owner)
        if id(owner) not in findings.installed:
            findings.problems.append(f"{method} {path} is marked, but install(app) was not called: it answers 500.")
        if covering:
            findings.problems.append(f"{method} {path} is marked, and a middleware covers it too; keep one of them.")
        return
    if not covering:
        if method in SHOULD_BE_COVERED:
            findings.unprotected.append(Unprotected(method, path, name))
        return
    door, policy = covering[0]
    findings.cover(method, path, name, policy, door)
    if len(covering) > 1:
        findings.problems.append(f"{method} {path} is covered by {len(covering)} middlewares; keep one of them.")


def _rows_without_routes(findings: Findings, door: Door) -> None:
    """Add the rows of a policy table for which no route was seen."""
    for name, policy in door.middleware.routes.policies.items():
        if policy is None or name in door.used:
            continue
        method, _, path = name.partition(" ")
        if name == "*":
            if door.opaque:
                for each in policy.methods:
                    findings.cover(each, f"{door.prefix}/*", None, policy, door)
            continue
        findings.cover(method, door.prefix + path, None, policy, door)
        if not door.opaque:
            findings.problems.append(f"The policy table names {name}, but no route has that path.")


def _marks_without_routes(findings: Findings, owner: Any) -> None:
    """Tell of functions that were registered without the mark that stands on them: the wrong order of decorators."""
    for mark in getattr(owner, "marks", ()):
        if id(mark.endpoint) in findings.endpoints and id(mark.wrapper) not in findings.endpoints:
            findings.problems.append(
                f"{mark.name} is marked, but its route was given the function without the mark; put operation() "
                "directly below the route's own decorator."
            )


def _engine(door: Any) -> AsyncEngine | Engine:
    engine: AsyncEngine | Engine = door.engine
    return engine


def _store_name(engine: AsyncEngine | Engine) -> str:
    """Return what the store calls itself, and where it is if it says so."""
    store = engine.store
    if type(store).__str__ is object.__str__:
        return type(store).__name__.removeprefix("Async").removesuffix("Store").lower()
    return str(store)


def _principal_name(door: object) -> str:
    resolver = getattr(door, "principal", None) or getattr(door, "_principal", None)
    if resolver is anonymous:
        return "anonymous"
    if resolver is by_authorization:
        return "by_authorization"
    name = getattr(resolver, "__qualname__", type(resolver).__name__)
    return f"{getattr(resolver, '__module__', '?')}.{name}"


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Stand in for the application: the middleware is made to be read only."""
