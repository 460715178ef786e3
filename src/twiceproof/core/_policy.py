"""Policy: what is covered, required, recorded, and for how long. Plain data, checked when it is made."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any, Final, cast

from twiceproof.core._field import compile_key_format
from twiceproof.core._fingerprint import FingerprintOptions
from twiceproof.core._guarantee import GATES, SETTLING
from twiceproof.core._messages import Response
from twiceproof.core._record import Guarantee
from twiceproof.errors import ConfigurationError, TwiceproofWarning

DAY: Final = 86_400.0
Seconds = float | timedelta
Record = str | Callable[[Response], bool]

_DURATIONS: Final[dict[str, tuple[float, float]]] = {
    "retention": (1.0, 10 * 366 * DAY),
    "lease": (0.5, 3600.0),  # R31
    "max_runtime": (0.5, 30 * DAY),
    "wait": (0.0, 3600.0),
    "reconcile_timeout": (0.1, 3600.0),
    "reconcile_every": (0.0, DAY),
    "unsettled_retention": (1.0, 10 * 366 * DAY),
}
_CHOICES: Final = {
    "syntax": ("lenient", "strict"),
    "missing_status": (400, 422, 428),
}
_RECORDS: Final = ("default", "2xx", "all")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 §5.6.2: methods and field names
_UNKEEPABLE: Final = frozenset({"connection", "content-length", "idempotent-replayed", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Policy:
    """What one operation promises. Durations are seconds, or a `timedelta`.

    Raises `ConfigurationError` with one sentence that says what to change.
    """

    required: bool = False
    """Refuse a request without a key (R8, R10)."""
    guarantee: str = Guarantee.AT_MOST_ONCE
    """``at_most_once`` or ``at_least_once`` (CONTRACT 5)."""
    retention: Seconds = DAY
    """How long a completed record answers, counted from completion (R33)."""
    lease: Seconds = 30.0
    """How long a claim holds without renewal, 0.5 s to 1 h (R31)."""
    max_runtime: Seconds = 900.0
    """After that long a run is no longer renewed (R31)."""
    wait: Seconds = 0.0
    """How long a duplicate waits for the first answer before it is told 409 (R23)."""
    operation: str | None = None
    """A name in place of method and path in the scope (R16)."""
    methods: tuple[str, ...] = ("POST", "PATCH")
    """The methods that are covered (R1)."""
    aliases: tuple[str, ...] = ()
    """Other names of the field (R2)."""
    syntax: str = "lenient"
    """``strict`` refuses a bare key (R5)."""
    key_format: str | None = None
    """``uuid``, ``ulid`` or a regular expression that a key must match whole (R6)."""
    missing_status: int = 400
    """The status where a required key is missing: 400, 422 or 428 (R8)."""
    record: Record = "default"
    """``default``, ``2xx``, ``all``, or a callable that says whether an answer is stored (R36)."""
    released_statuses: frozenset[int] = GATES
    """The gates: answers that release the key, since the handler did nothing (R37)."""
    store_body: bool = True
    """False completes without the body; a retry is told 409 ``replay-unavailable`` (R26)."""
    max_request_bytes: int = 10 * 1024 * 1024
    """The largest body of a request with a key (R11)."""
    max_response_bytes: int = 1024 * 1024
    """The largest answer whose body is stored (R43)."""
    fingerprint: FingerprintOptions = field(default_factory=FingerprintOptions)
    """What makes two requests the same (R17, R20)."""
    fail_open: bool = False
    """Run unprotected, and say so, while the store is down (R48)."""
    keep_headers: frozenset[str] = frozenset()
    """Fields to store although R46 drops them."""
    drop_headers: frozenset[str] = frozenset()
    """Fields not to store although R46 keeps them."""
    reconcile: Callable[..., Any] | None = None
    """The hook that decides an unsettled record (R28)."""
    reconcile_timeout: Seconds = 30.0
    """How long the hook may take (R28)."""
    reconcile_every: Seconds = 30.0
    """How often at most it is asked (R28)."""
    unsettled_retention: Seconds = 30 * DAY
    """How long a record is kept whose outcome nobody knows (R42)."""

    def __post_init__(self) -> None:
        for name, (low, high) in _DURATIONS.items():
            _set(self, name, checked_seconds(name, getattr(self, name), low, high))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                msg = f"{name} must be one of {', '.join(map(str, choices))}, not {getattr(self, name)!r}"
                raise ConfigurationError(msg)
        for name in ("max_request_bytes", "max_response_bytes"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                msg = f"{name} must be a whole number of bytes, 0 or more, not {value!r}"
                raise ConfigurationError(msg)
        for name in ("required", "store_body", "fail_open"):
            if not isinstance(getattr(self, name), bool):
                msg = f"{name} must be True or False, not {getattr(self, name)!r}"
                raise ConfigurationError(msg)
        self._check_names()
        self._check_rules()
        _set(self, "guarantee", _guarantee(self.guarantee))
        _set(self, "released_statuses", _statuses(self.released_statuses))
        retention = seconds(self.retention)
        if retention < DAY:  # R33
            warnings.warn(
                f"retention={retention:g}: a retry that comes later than that runs again; clients expect a day",
                TwiceproofWarning,
                stacklevel=3,
            )

    def _check_names(self) -> None:
        for name in ("methods", "aliases", "keep_headers", "drop_headers"):
            value: object = getattr(self, name)
            if not isinstance(value, list | tuple | set | frozenset) or not all(
                isinstance(item, str) and _TOKEN.fullmatch(item) for item in cast("Iterable[object]", value)
            ):
                msg = f"{name} must be a tuple or a set of names, not {value!r}"
                raise ConfigurationError(msg)
        _set(self, "methods", tuple(self.methods))
        _set(self, "aliases", tuple(self.aliases))
        _set(self, "keep_headers", frozenset(name.lower() for name in self.keep_headers))
        _set(self, "drop_headers", frozenset(name.lower() for name in self.drop_headers))
        if not self.methods:
            msg = "methods must name at least one, such as POST; an operation that is not covered has no policy"
            raise ConfigurationError(msg)
        for method in self.methods:
            if method != method.upper():
                msg = f"methods are written in capitals: {method.upper()}, not {method}"
                raise ConfigurationError(msg)
        unkeepable = sorted(self.keep_headers & _UNKEEPABLE)
        if unkeepable:
            msg = f"keep_headers can't keep {unkeepable[0]}: every answer has its own"
            raise ConfigurationError(msg)

    def _check_rules(self) -> None:
        operation: object = self.operation
        if operation is not None and not (isinstance(operation, str) and operation and operation.isprintable()):
            msg = f"operation must be a name such as 'transfers.create', not {operation!r}; or leave it out"
            raise ConfigurationError(msg)
        if iscoroutinefunction(self.record) or not (callable(self.record) or self.record in _RECORDS):
            msg = f"record must be 'default', '2xx', 'all' or a plain function of the answer, not {self.record!r}"
            raise ConfigurationError(msg)
        if self.reconcile is not None and not callable(self.reconcile):
            msg = f"reconcile must be a callable that takes the record and the request, not {self.reconcile!r}"
            raise ConfigurationError(msg)
        if not isinstance(self.fingerprint, FingerprintOptions):
            msg = f"fingerprint must be FingerprintOptions(...), not {self.fingerprint!r}"
            raise ConfigurationError(msg)
        if self.key_format is not None:
            if not isinstance(self.key_format, str):
                msg = f"key_format must be 'uuid', 'ulid' or a regular expression as text, not {self.key_format!r}"
                raise ConfigurationError(msg)
            try:
                compile_key_format(self.key_format)
            except ValueError as error:
                raise ConfigurationError(str(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as plain data, for documents and for `twiceproof explain`."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        data["guarantee"] = str(self.guarantee)
        for name in ("released_statuses", "keep_headers", "drop_headers"):
            data[name] = sorted(data[name])
        for name in ("methods", "aliases"):
            data[name] = list(data[name])
        for name in ("record", "reconcile"):
            if callable(data[name]):
                data[name] = getattr(data[name], "__qualname__", type(data[name]).__name__)
        data["fingerprint"] = self.fingerprint.id
        return data


def seconds(value: Seconds) -> float:
    """Return a duration of a policy in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def make_policy(options: Mapping[str, Any]) -> Policy:
    """Return `Policy(**options)`; an unknown option is named, with the nearest one that exists."""
    known = [item.name for item in fields(Policy)]
    for name in options:
        if name not in known:
            raise ConfigurationError(unknown_option(name, known))
    return Policy(**options)


def unknown_option(name: str, known: Iterable[str]) -> str:
    """Return the sentence about an option that does not exist."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known)  # the nearest first
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"there is no option {name}; {hint}"


def _set(policy: Policy, name: str, value: object) -> None:
    object.__setattr__(policy, name, value)


def checked_seconds(name: str, value: object, low: float, high: float) -> float:
    """Return a duration in seconds; raises `ConfigurationError` where it is none, or out of bounds."""
    amount = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(amount, bool) or not isinstance(amount, int | float) or amount != amount:  # noqa: PLR0124  # NaN
        msg = f"{name} must be a number of seconds or a timedelta, not {value!r}"
        raise ConfigurationError(msg)
    if not low <= amount <= high:
        msg = f"{name} must lie between {low:g} and {high:g} seconds, not {amount}"
        raise ConfigurationError(msg)
    return float(amount)


def _statuses(value: object) -> frozenset[int]:
    if isinstance(value, list | tuple | set | frozenset):
        items = list(cast("Iterable[object]", value))
        statuses = [item for item in items if isinstance(item, int) and 400 <= item <= 599]
        if len(statuses) == len(items):
            return frozenset(statuses)
    msg = f"released_statuses must be a set of statuses from 400 to 599, not {value!r}"
    raise ConfigurationError(msg)


def _guarantee(value: object) -> Guarantee:
    guarantee = next((known for known in Guarantee if known == value), None)
    if guarantee is None:
        msg = f"guarantee must be at_most_once or at_least_once, not {value!r}"
        raise ConfigurationError(msg)
    if guarantee not in SETTLING:
        msg = f"guarantee {guarantee} is not available in this release; choose at_most_once or at_least_once"
        raise ConfigurationError(msg)
    return guarantee
