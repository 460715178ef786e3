"""The mark on an endpoint of FastAPI: a function around it that claims before it runs (R49)."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, get_args, get_origin

from fastapi import HTTPException, Request, params
from fastapi.responses import Response

from twiceproof.errors import ConfigurationError, NotExecuted
from twiceproof.server._fastapi_thread import in_thread
from twiceproof.server._fastapi_visit import MARK, Visit
from twiceproof.server._lifespan import logger

if TYPE_CHECKING:
    from twiceproof.core._policy import Policy
    from twiceproof.server._exchange import Scope

Endpoint = Callable[..., Any]

_END: Final = object()


class Owner(Protocol):
    """What a mark needs of the door that made it."""

    @property
    def key(self) -> str:
        """Where a scope keeps the visit."""
        ...

    @property
    def dependency(self) -> params.Depends | None:
        """What finds out who asks, where a dependency does."""
        ...

    def account(self, scope: Scope, found: object) -> str | None:
        """Return the principal of a request, given what the dependency found; None where there is nobody."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """What an endpoint carries. ``endpoint`` is the function as its author wrote it, ``wrapper`` what FastAPI calls."""

    owner: object
    policy: Policy
    endpoint: Endpoint
    wrapper: Endpoint
    streams: bool

    @property
    def name(self) -> str:
        """How messages call the endpoint."""
        return name_of(self.endpoint)


def name_of(endpoint: Endpoint) -> str:
    """Return the name that the framework gives to an endpoint."""
    return str(getattr(endpoint, "__name__", type(endpoint).__name__))


def make_mark(owner: Owner, endpoint: Endpoint, policy: Policy) -> Mark:
    """Wrap an endpoint: whatever its kind, the result is asynchronous, and claims before it calls it."""
    function: object = endpoint
    if inspect.isclass(function) or not callable(function):
        raise ConfigurationError(
            f"operation() goes on the function of a route, directly below @app.post(...), not on {endpoint!r}"
        )
    if hasattr(endpoint, MARK):
        raise ConfigurationError(f"{name_of(endpoint)} is marked twice; keep one operation()")
    gate = _Gate(owner, endpoint, policy)
    kind = _kinds(endpoint)
    streams = bool(kind & {"async stream", "stream"})
    if "async stream" in kind:
        wrapper = _around_async_stream(gate, endpoint)
    elif "stream" in kind:
        wrapper = _around_stream(gate, endpoint)
    elif "async" in kind:
        wrapper = _around_async(gate, endpoint)
    else:
        wrapper = _around_function(gate, endpoint)
    functools.update_wrapper(wrapper, endpoint, updated=("__dict__",) if inspect.isroutine(endpoint) else ())
    mark = Mark(owner, policy, endpoint, wrapper, streams)
    for name, value in {
        "__name__": name_of(endpoint),
        "__signature__": gate.signature,
        "__twiceproof__": policy,
        MARK: mark,
    }.items():
        setattr(wrapper, name, value)
    return mark


# ---------------------------------------------------------------------- one wrapper per kind of endpoint


def _around_async(gate: _Gate, endpoint: Endpoint) -> Endpoint:
    policy, account = gate.policy, gate.account

    async def wrapper(*args: Any, **values: Any) -> Any:
        visit = gate.visit(values)
        if visit is not None and not await visit.enter(policy, account):
            return _blank(visit)
        try:
            return await endpoint(*args, **values)
        except NotExecuted:
            _nothing(visit)
            raise

    return wrapper


def _around_function(gate: _Gate, endpoint: Endpoint) -> Endpoint:
    policy, account = gate.policy, gate.account

    async def wrapper(*args: Any, **values: Any) -> Any:
        visit = gate.visit(values)
        if visit is not None and not await visit.enter(policy, account):
            return _blank(visit)
        try:
            return await in_thread(visit, functools.partial(endpoint, *args, **values))
        except NotExecuted:
            _nothing(visit)
            raise

    return wrapper


def _around_async_stream(gate: _Gate, endpoint: Endpoint) -> Endpoint:
    policy, account = gate.policy, gate.account

    async def wrapper(*args: Any, **values: Any) -> AsyncIterator[Any]:
        visit = gate.visit(values)
        if visit is not None:
            if not await visit.enter(policy, account):
                return
            await visit.start_stream()
        try:
            async with contextlib.aclosing(endpoint(*args, **values)) as items:
                async for item in items:
                    yield item
        except NotExecuted:
            _nothing(visit)
            raise

    return wrapper


def _around_stream(gate: _Gate, endpoint: Endpoint) -> Endpoint:
    policy, account = gate.policy, gate.account

    async def wrapper(*args: Any, **values: Any) -> AsyncIterator[Any]:
        visit = gate.visit(values)
        if visit is not None:
            if not await visit.enter(policy, account):
                return
            await visit.start_stream()
        try:
            items = endpoint(*args, **values)  # runs nothing yet
            while (item := await in_thread(visit, functools.partial(next, items, _END))) is not _END:
                if visit is not None and visit.cancelled is not None:
                    raise visit.cancelled
                yield item
        except NotExecuted:
            _nothing(visit)
            raise

    return wrapper


def _blank(visit: Visit) -> Response:
    """Return what stands for the reply until the layer outside puts it in its place."""
    return Response(status_code=visit.reply.response.status if visit.reply is not None else 500)


def _nothing(visit: Visit | None) -> None:
    """Remember that the handler said so, whatever an exception handler makes of it (CONTRACT 5)."""
    if visit is not None:
        visit.nothing = True


# ---------------------------------------------------------------------- what the framework is told


class _Gate:
    """The way into one endpoint: adds our two parameters to its signature, and takes them out of its calls."""

    __slots__ = ("_endpoint", "_key", "_own_request", "_request", "_who", "account", "policy", "signature")

    def __init__(self, owner: Owner, endpoint: Endpoint, policy: Policy) -> None:
        self._key = owner.key
        self.account = owner.account
        self._endpoint = endpoint
        self.policy = policy
        signature = _resolved(endpoint)
        taken = signature.parameters
        own = [name for name, parameter in taken.items() if _is_request(parameter.annotation)]
        added: list[inspect.Parameter] = []
        self._own_request = bool(own)
        if own:
            self._request = own[0]  # FastAPI fills one parameter of that kind only
        else:
            self._request = _free("twiceproof_request", taken)
            added.append(inspect.Parameter(self._request, inspect.Parameter.KEYWORD_ONLY, annotation=Request))
        self._who: str | None = None
        if owner.dependency is not None:
            self._who = _free("twiceproof_principal", taken)
            annotation = Annotated[Any, owner.dependency]
            added.append(inspect.Parameter(self._who, inspect.Parameter.KEYWORD_ONLY, annotation=annotation))
        parameters = list(taken.values())
        end = len(parameters)
        if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
            end -= 1
        self.signature = signature.replace(parameters=[*parameters[:end], *added, *parameters[end:]])

    def visit(self, values: dict[str, Any]) -> Visit | None:
        """Return the visit that a call belongs to, and leave in ``values`` what the endpoint itself asked for.

        None: the method is not covered (R1).
        """
        request = values.get(self._request) if self._own_request else values.pop(self._request, None)
        found = None if self._who is None else values.pop(self._who, None)
        if not isinstance(request, Request):
            raise ConfigurationError(
                f"{name_of(self._endpoint)} is protected and was called without its request; in a test, call "
                f"{name_of(self._endpoint)}.__wrapped__ to run it without protection"
            )
        if request.scope["method"] not in self.policy.methods:
            return None
        visit: Visit | None = request.scope.get(self._key)
        if visit is None:
            logger.error(
                "%s was not run: it is marked, but idempotency.install(app) was not called on its application",
                name_of(self._endpoint),
            )
            raise HTTPException(500)
        visit.found = found
        return visit


def _free(name: str, taken: Any) -> str:
    while name in taken:
        name += "_"
    return name


def _is_request(annotation: object) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return isinstance(annotation, type) and issubclass(annotation, Request)


def _resolved(endpoint: Endpoint) -> inspect.Signature:
    """Return the signature with its annotations as objects, also where a module postpones their evaluation.

    What can't be resolved stays a text, for FastAPI to judge.
    """
    signature = inspect.signature(endpoint)
    function = inspect.unwrap(_plain(endpoint))
    if not inspect.isroutine(function):
        function = inspect.unwrap(type(function).__call__)
    names = getattr(function, "__globals__", {})

    def resolve(annotation: Any) -> Any:
        if not isinstance(annotation, str):
            return annotation
        try:
            return eval(annotation, names)  # noqa: S307  # the annotation of a function, as inspect does
        except Exception:  # noqa: BLE001  # a name that only a type checker imports
            return annotation

    parameters = [
        parameter.replace(annotation=resolve(parameter.annotation)) for parameter in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters, return_annotation=resolve(signature.return_annotation))


def _plain(endpoint: Any) -> Any:
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    return endpoint


def _kinds(endpoint: Endpoint) -> set[str]:
    """Say what calling the endpoint gives, by the framework's own rules: it looks through partials and decorators."""
    plain = _plain(endpoint)
    faces = [plain, inspect.unwrap(plain)]
    faces += [inspect.unwrap(face.__call__) for face in faces if not inspect.isroutine(face)]
    tests = {
        "async stream": inspect.isasyncgenfunction,
        "stream": inspect.isgeneratorfunction,
        "async": inspect.iscoroutinefunction,
    }
    return {kind for kind, test in tests.items() if any(map(test, faces))}
