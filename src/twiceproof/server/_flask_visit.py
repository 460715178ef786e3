"""One request on its way through a Flask application: the claim comes late, right before the view (R49)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from flask import current_app, has_request_context, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from twiceproof.core._lifecycle import Keyed, Reply
from twiceproof.core._messages import Request
from twiceproof.core._outcome import Answered, Outcome, Raised
from twiceproof.core._problems import unauthorized
from twiceproof.engine import Attempt, Engine, Run
from twiceproof.errors import ConfigurationError
from twiceproof.server._body import BadBody
from twiceproof.server._lifespan import logger
from twiceproof.server._wsgi_body import Tee
from twiceproof.server._wsgi_environ import Environ, key_fields, make_request, native, octets, send_response
from twiceproof.server._wsgi_exchange import Exchange, Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from wsgiref.types import StartResponse, WSGIApplication

    from twiceproof.core._policy import Policy

MARK: Final = "__twiceproof_mark__"
"""Where a view carries its mark; decorators that use `functools.wraps` above ours carry it on."""
FRESH: Final = frozenset(
    {
        b"authentication-info",
        b"clear-site-data",
        b"server-timing",
        b"set-cookie",
        b"traceparent",
        b"tracestate",
        b"x-correlation-id",
        b"x-request-id",
    }
)
FRESH_PREFIXES: Final = (b"access-control-", b"ratelimit", b"x-ratelimit-")
"""What is about this request or its client's session: never stored (R46), so a replay takes it from today's hooks."""


class Owner(Protocol):
    """What a visit needs of the door that it comes through."""

    @property
    def engine(self) -> Engine:
        """The engine behind the door."""
        ...

    @property
    def key_variables(self) -> set[str]:
        """Where an environ may have a key for any of the door's marks."""
        ...


class Visit(Exchange):
    """An exchange that is not claimed yet when the application is called.

    Until `enter` it only watches, and copies the body that is read before a marked view. From then on it is an
    `Exchange`, or leads to ``reply``, which the layer sends in place of the answer that Flask makes of nothing.
    """

    __slots__ = ("_owner", "_tee", "attempt", "fresh", "raised", "reply")

    def __init__(self, owner: Owner, environ: Environ, start_response: StartResponse) -> None:
        super().__init__(owner.engine, environ, start_response)
        self._owner = owner
        self._tee: Tee | None = None
        if not owner.key_variables.isdisjoint(environ):
            self._tee = environ["wsgi.input"] = Tee(environ["wsgi.input"], self._recognised)
        self.attempt: Attempt = environ.setdefault("twiceproof", Attempt())
        self.reply: Reply | None = None
        self.fresh: Fields = []
        self.raised = False

    # ------------------------------------------------------------------ the claim

    def enter(self, policy: Policy, account: Callable[[Environ], str | None]) -> None:
        """Claim. Afterwards the view may run, unless ``reply`` is set.

        The order is 401, then what is wrong with the key, then with the body (R49); nothing of it reaches the store.
        """
        fields = key_fields(self._environ, policy)
        if not fields and not policy.required:
            return  # R9
        principal = account(self._environ)
        if not principal:
            self.reply = Reply(unauthorized())  # R12
            return
        admitted = self._engine.admit(self._environ["REQUEST_METHOD"], fields, policy)
        if isinstance(admitted, Reply):
            self.reply = admitted  # R3, R6, R8
            return
        if isinstance(admitted, Keyed):
            self._claim(admitted.key, principal, policy)

    def _claim(self, key: str, principal: str, policy: Policy) -> None:
        body = self._read(policy)
        if isinstance(body, BadBody):
            self.reply = self._engine.refuse(body.code)  # R11, R52
            return
        self.attempt.key = key
        asked = make_request(self._environ, body)
        del body
        begun = self._engine.begin(asked, principal, policy, key=key, attempt=self.attempt)
        if isinstance(begun, Reply):
            self.reply = begun
        elif isinstance(begun, Run):
            self.claimed(begun)
            begun.call.request = Request(asked.method, asked.raw_path)  # R11: the copy is dropped
        else:
            self.unprotected = begun.unprotected  # R48

    def _read(self, policy: Policy) -> bytes | BadBody:
        """Return the whole body: what was copied on its way, and what is left."""
        assert self._tee is not None  # the request has a key
        if self._tee.read_unseen:
            raise ConfigurationError(
                f"the body of a request to {request.endpoint} was read before its view could be recognised; decorators "
                "above operation() must use functools.wraps"
            )
        limit, most = policy.max_request_bytes, request.max_content_length
        if most is None or most >= limit:
            return self._tee.take(self._environ, limit)
        body = self._tee.take(self._environ, most)
        if isinstance(body, BadBody) and body.code == "request-too-large":
            raise RequestEntityTooLarge  # the application's own bound, and its own answer
        return body

    def _recognised(self) -> Policy | None:
        """Return the policy of the view that this request is for, where it will want the body."""
        if not has_request_context():
            return None
        mark = mark_of(current_app.view_functions.get(request.endpoint or ""), request.method)
        if mark is None or mark.owner is not self._owner or request.method not in mark.policy.methods:
            return None
        policy: Policy = mark.policy
        return policy

    # ------------------------------------------------------------------ the answer

    def start_response(self, status: str, headers: Fields, exc_info: Any = None, /) -> Callable[[bytes], object]:
        """Take the head of the answer; where a reply takes its place, only what is fresh in it."""
        if self.reply is None:
            return super().start_response(status, headers, exc_info)
        self.fresh = [(name, value) for name, value in headers if _is_fresh(octets(name.lower()))]
        return lambda _: None

    def run_app(self, app: WSGIApplication) -> Iterable[bytes]:
        """Run the application for this request; returns what the server iterates."""
        try:
            return super().run_app(app)
        except Exception:
            if self.reply is None:
                raise
            logger.exception("a decorator above operation() failed on the empty answer that stands for a replay")
            return self._give_reply()

    def _taken(self, result: Iterable[bytes]) -> Iterable[bytes]:
        if self.reply is None:
            return super()._taken(result)
        close = getattr(result, "close", None)
        if close is not None:
            close()  # nobody else will
        return self._give_reply()

    def _give_reply(self) -> Iterable[bytes]:
        """Send the reply, and with it what today's hooks say about this request."""
        assert self.reply is not None  # checked by the callers
        response = self.reply.response
        taken = {name.lower() for name, _ in native(response.headers)}
        fresh = [(octets(name), octets(value)) for name, value in self.fresh if name.lower() not in taken]
        response.headers = [*response.headers, *fresh]
        return send_response(self._environ, self._server_start, response)

    def failed(self, error: Exception, blueprints: Iterable[str]) -> None:
        """Note that the view raised: an error that no handler of its own turns into an answer is one (CONTRACT 5)."""
        self.raised = not isinstance(error, HTTPException) and not _has_handler(error, blueprints)

    def _settle(self, outcome: Outcome) -> None:
        if self.raised and isinstance(outcome, Answered) and outcome.response.status >= 500:
            outcome = Raised()
        super()._settle(outcome)


def mark_of(view: Any, method: str) -> Any:
    """Return the mark on a view function, or on a method of the class behind it."""
    handler = getattr(getattr(view, "view_class", None), method.lower(), None)
    return getattr(view, MARK, None) or getattr(handler, MARK, None)


def _has_handler(error: Exception, blueprints: Iterable[str]) -> bool:
    """Whether the application answers this error by a handler that was written for it, not for whatever comes."""
    spec = current_app.error_handler_spec
    handled = {cls for name in (*blueprints, None) for cls in spec.get(name, {}).get(None, {})}
    return any(cls in handled for cls in type(error).__mro__ if cls not in (Exception, BaseException, object))


def _is_fresh(name: bytes) -> bool:
    return name in FRESH or name.startswith(FRESH_PREFIXES)
