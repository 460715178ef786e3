"""What an engine is told once, checked when it is made."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from twiceproof.core._policy import checked_seconds, unknown_option
from twiceproof.core._scope import Site
from twiceproof.errors import ConfigurationError

if TYPE_CHECKING:
    from twiceproof.core._policy import Policy, Seconds
    from twiceproof.core._record import NewRecord
    from twiceproof.stores import AsyncStore, Store

logger = logging.getLogger("twiceproof.engine")
PURGE_ROWS: Final = 1000
_URL: Final = re.compile(r"https?://[!$-;=?-Z_a-z~]+")  # what may stand in a URL, without "#", and in a Link field


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a record; one name each (CONTRACT 7). ``record`` is its id in hexadecimal."""

    name: str
    code: str = ""
    operation: str = ""
    record: str = ""


class EngineOptions(TypedDict, total=False):
    """The settings that every engine and every door takes. Durations are seconds or a `timedelta`."""

    namespace: str
    """What separates this application's keys from others in one store; ``default`` where a store can't be shared."""
    secret: bytes | str
    """Keys the digests of principals and keys (R54)."""
    docs_url: str
    """Where the problem codes are explained; becomes ``type`` and ``Link`` of every problem document."""
    accept_volatile: bool
    """Accept a store that may forget (CONTRACT 5)."""
    store_timeout: Seconds
    """How long one verb may take of a store that is opened from a URL, 2 s; another has its own (R48)."""
    complete_retry: Seconds
    """How long a refused write is repeated in the background, 10 min (R47)."""
    complete_backlog: int
    """How many such writes are kept in memory, 1,000 (R47)."""
    drain: Seconds
    """How long shutdown waits for what still runs, 10 s (R41)."""
    purge_every: Seconds
    """How often expired records are deleted, 60 s; 0 turns it off (R33)."""
    on_event: Callable[[Event], None]
    """Is told every event; must be quick, and safe to call from any thread."""


DAY: Final = 86_400.0
_DURATIONS: Final[dict[str, tuple[float, float, float]]] = {  # default, least, most
    "store_timeout": (2.0, 0.01, 3600.0),
    "complete_retry": (600.0, 0.0, 30 * DAY),
    "drain": (10.0, 0.0, DAY),
    "purge_every": (60.0, 0.0, 30 * DAY),
}


@dataclass(slots=True)
class Settings:
    """The checked settings of one engine, in seconds."""

    site: Site
    store_timeout: float
    complete_retry: float
    complete_backlog: int
    drain: float
    purge_every: float
    on_event: Callable[[Event], None] | None

    def emit(self, name: str, code: str = "", new: NewRecord | None = None) -> None:
        """Tell the listener; its own failure changes nothing."""
        if self.on_event is None:
            return
        event = Event(name, code, new.operation if new else "", new.id.hex() if new else "")
        try:
            self.on_event(event)
        except Exception:
            logger.exception("on_event failed for the event %s", name)


def store_timeout(options: EngineOptions) -> float:
    """Return the time-out that a store opened from a URL is given."""
    return _duration("store_timeout", options.get("store_timeout"))


def make_settings(
    store: Store | AsyncStore, notices: Sequence[str] = (), /, **given: Unpack[EngineOptions]
) -> Settings:
    """Check the options of an engine; raises `ConfigurationError` with one sentence. ``notices``: the store's check."""
    options: Mapping[str, object] = given  # whatever the types say
    for name in options:
        if name not in EngineOptions.__annotations__:
            raise ConfigurationError(unknown_option(name, EngineOptions.__annotations__))
    accepted: object = options.get("accept_volatile", False)
    if not isinstance(accepted, bool):
        msg = f"accept_volatile must be True or False, not {accepted!r}"
        raise ConfigurationError(msg)
    if not store.capabilities.durable and not accepted:
        raise ConfigurationError(_forgetful(store, notices))
    backlog = options.get("complete_backlog", 1000)
    if isinstance(backlog, bool) or not isinstance(backlog, int) or backlog < 1:
        msg = f"complete_backlog must be a whole number of 1 or more, not {backlog!r}"
        raise ConfigurationError(msg)
    on_event = options.get("on_event")
    if on_event is not None and (not callable(on_event) or _is_async(on_event)):
        msg = f"on_event must be a plain function that takes an Event, not {on_event!r}"
        raise ConfigurationError(msg)
    site = Site(
        _namespace(store, options.get("namespace")),
        _secret(options.get("secret")),
        _docs_url(options.get("docs_url")),
    )
    durations = {name: _duration(name, options.get(name)) for name in _DURATIONS}
    return Settings(site=site, complete_backlog=backlog, on_event=on_event, **durations)


def _forgetful(store: Store | AsyncStore, notices: Sequence[str]) -> str:
    if store.capabilities.shared and notices:  # a server, which may be set up otherwise
        return f"this store may forget its records, and a retry would then run again. {' '.join(notices)}"
    return (
        "this store forgets its records when the process ends, and a retry would then run again; use a durable "
        "one such as sqlite:///keys.db, or say accept_volatile=True"
    )


def _namespace(store: Store | AsyncStore, namespace: object) -> str:
    if namespace is None and not store.capabilities.shared:
        return "default"
    if not isinstance(namespace, str) or not namespace or not namespace.isprintable():
        msg = f"give namespace= a name that separates this application's keys from others (R14), not {namespace!r}"
        raise ConfigurationError(msg)
    return namespace


def _secret(secret: object) -> bytes | None:
    value = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    if value is not None and (not isinstance(value, bytes) or not value):
        msg = "secret must be a text or bytes that is not empty; leave it out to key the digests with the namespace"
        raise ConfigurationError(msg)
    return value


def _duration(name: str, value: object) -> float:
    default, low, high = _DURATIONS[name]
    return checked_seconds(name, default if value is None else value, low, high)


def _docs_url(url: object) -> str | None:
    if url is None or (isinstance(url, str) and _URL.fullmatch(url)):
        return url
    msg = f"docs_url must be an address such as https://example.com/problems, without a fragment, not {url!r}"
    raise ConfigurationError(msg)


def check_store(store: object, *, asynchronous: bool) -> None:
    """Refuse what is no store, and a store of the other colour."""
    claim: object = getattr(store, "claim", None)
    if not callable(claim) or not hasattr(store, "capabilities"):
        msg = f"store must be a URL such as sqlite:///keys.db, or a store, not {store!r}"
        raise ConfigurationError(msg)
    if iscoroutinefunction(claim) is not asynchronous:
        mine, other = ("an AsyncStore", "the blocking") if asynchronous else ("a blocking Store", "the asynchronous")
        msg = f"this engine needs {mine}, and {type(store).__name__} is of {other} colour; give it the other, or a URL"
        raise ConfigurationError(msg)


def _is_async(function: object) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # what calling it gives


def check_policy(policy: Policy, *, asynchronous: bool) -> None:
    """Refuse a policy that this colour of engine can't run."""
    if not asynchronous and _is_async(policy.reconcile):
        msg = "reconcile is an async function, but this engine is the blocking one; give it a plain function"
        raise ConfigurationError(msg)
