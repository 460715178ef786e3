"""What an operation is promised, in sentences: each written once, with the rules that it comes from. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from twiceproof.core._policy import DAY, Policy, Seconds, seconds
from twiceproof.core._record import Guarantee


@dataclass(frozen=True, slots=True)
class Setting:
    """What counts beside the policy: the door, whose keys they are (the resolver's name), and the store's memory."""

    door: str
    namespace: str
    principal: str
    durable: bool


@dataclass(frozen=True, slots=True)
class Sentence:
    """One thing that is so, and the rules that say it."""

    text: str
    rules: tuple[str, ...]


When = Callable[[Policy, Setting], bool]


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence with places for the policy's values, and when it holds."""

    text: str
    rules: tuple[str, ...]
    when: When = lambda policy, setting: True  # noqa: ARG005  # always


def _under(guarantee: Guarantee) -> When:
    return lambda policy, _: policy.guarantee == guarantee


_AT_MOST_ONCE: Final = _under(Guarantee.AT_MOST_ONCE)
_AT_LEAST_ONCE: Final = _under(Guarantee.AT_LEAST_ONCE)

NEVER: Final = (
    Statement(
        "Requests with one key, at the same instant or later: one runs; the others are told 409, or get its answer.",
        ("R22", "R23", "R25"),
    ),
    Statement("The same key with another payload does not run and does not disturb the first: 422.", ("R24",)),
    Statement(
        "One account never gets the answer of another's key.",
        ("R15",),
        lambda _, setting: setting.principal != "anonymous",
    ),
    Statement(
        "A crash of process or host, an exception, a cancellation or an answer cut short never makes a retry run "
        "again: the outcome is unknown, and a retry is told 500 outcome-unknown until it is settled by {settled_by}.",
        ("R28", "R40", "R42", "R50"),
        lambda policy, setting: _AT_MOST_ONCE(policy, setting) and setting.durable,
    ),
    Statement(
        "While the process lives, an exception, a cancellation or an answer cut short never makes a retry run again: "
        "the outcome is unknown, and a retry is told 500 outcome-unknown until it is settled by {settled_by}.",
        ("R28", "R40", "R42", "R50"),
        lambda policy, setting: _AT_MOST_ONCE(policy, setting) and not setting.durable,
    ),
    Statement(
        "A 5xx answer is stored like any other, and a retry gets it again.",
        ("R39",),
        lambda policy, setting: _AT_MOST_ONCE(policy, setting) and max(policy.released_statuses, default=0) < 500,
    ),
    Statement("After a stored answer nothing runs again while it is kept.", ("R25", "R35"), _AT_LEAST_ONCE),
    Statement("A holder that lost its lease to another can't overwrite the other's answer.", ("R30",), _AT_LEAST_ONCE),
)
"""What can't happen."""

TWICE: Final = (
    Statement(
        "An exception, a cancellation or an answer cut short releases the key: a retry runs the handler again.",
        ("R39", "R40", "R50"),
        _AT_LEAST_ONCE,
    ),
    Statement(
        "An answer of 5xx, 408 or 499 is not stored: a retry runs the handler again.",
        ("R39",),
        lambda policy, setting: _AT_LEAST_ONCE(policy, setting) and policy.record in ("default", "2xx"),
    ),
    Statement(
        "After a crash or the loss of the host a retry runs the handler again, once the lease of {lease} has run out.",
        ("R27",),
        _AT_LEAST_ONCE,
    ),
    Statement(
        "A holder that was not renewed in time (paused, cut off, or longer than {max_runtime} at work) may still run "
        "while a retry runs too.",
        ("R27", "R31"),
        _AT_LEAST_ONCE,
    ),
    Statement(
        "An answer of {released} releases the key: a retry runs the handler again, and whatever it did before it "
        "answered so is done again.",
        ("R37",),
        lambda policy, _: bool(policy.released_statuses),
    ),
    Statement(
        "A handler that raises NotExecuted, or calls release() and answers 400 or above, runs again on a retry: what "
        "it did before that is repeated.",
        ("R38",),
    ),
    Statement(
        "An answer of 4xx is not stored: a retry runs the handler again.",
        ("R36",),
        lambda policy, _: policy.record == "2xx",
    ),
    Statement(
        "Whether a 4xx{or_5xx} answer is stored is decided by {record}: where it says no, a retry runs the handler "
        "again.",
        ("R36",),
        lambda policy, _: callable(policy.record),
    ),
    Statement(
        "Requests without a key are not protected: each of them runs.", ("R9",), lambda policy, _: not policy.required
    ),
    Statement(
        "While the store is down requests run without protection, marked Idempotency-Unprotected.",
        ("R48",),
        lambda policy, _: policy.fail_open,
    ),
    Statement(
        "The account is told by its Authorization value: a retry with a refreshed token is another's, and runs.",
        ("R12",),
        lambda _, setting: setting.principal == "by_authorization",
    ),
    Statement(
        "The store forgets when its process ends, and other processes don't see it: a retry then runs again.",
        ("R21",),
        lambda _, setting: not setting.durable,
    ),
    Statement(
        "The answer is kept for {retention}, which is less than a day: a client that retries later runs it again.",
        ("R33",),
        lambda policy, _: seconds(policy.retention) < DAY,
    ),
    Statement(
        "The answer is kept for {retention}: after that the key is new, and a retry runs the handler again.",
        ("R33",),
        lambda policy, _: seconds(policy.retention) >= DAY,
    ),
    Statement(
        "A key whose outcome stays unknown is new after {unsettled_retention}, and a retry then runs the handler.",
        ("R42",),
    ),
    Statement(
        "Where {judges} that nothing had happened although it had, a retry repeats it.",
        ("R28",),
    ),
    Statement("A client that makes a new key for the same intent gets a new execution.", ("C1",)),
)
"""What can still happen twice."""

MIND: Final = (
    Statement(
        "A handler that works longer than {max_runtime} is no longer renewed: a retry is then told 500 outcome-unknown "
        "until the handler answers after all.",
        ("R31", "R42"),
        _AT_MOST_ONCE,
    ),
    Statement(
        "The body of the answer is not stored: a retry is told 409 replay-unavailable with the original status.",
        ("R26",),
        lambda policy, _: not policy.store_body,
    ),
    Statement(
        "An answer over {max_response_bytes:,} bytes, and an event stream, is completed without its body: a retry is "
        "told 409 replay-unavailable.",
        ("R26", "R43"),
        lambda policy, _: policy.store_body,
    ),
    Statement(
        "Everybody is one account: the same key from two clients is one key, and the second gets the first's answer.",
        ("R12",),
        lambda _, setting: setting.principal == "anonymous",
    ),
    Statement(
        "Only selected fields of a JSON body count: a request that differs elsewhere is the same request.",
        ("R20",),
        lambda policy, _: bool(policy.fingerprint.fields),
    ),
    Statement(
        "Background tasks run once, with the first execution; if one fails, a retry does not run it again.", ("R51",)
    ),
    Statement(
        'A dependency that commits must be Depends(..., scope="function"): otherwise it commits after the answer was '
        "stored, and if that fails a retry still gets the answer.",
        ("R51",),
        lambda _, setting: setting.door == "fastapi",
    ),
    Statement(
        "Behind a server that tells no raw path, /a%2Fb and /a/b are one operation; a warning says so at run time.",
        ("R16",),
        lambda policy, _: policy.operation is None,
    ),
)
"""What else is good to know."""


def cannot_happen(policy: Policy, setting: Setting) -> list[Sentence]:
    """Return what the operation is promised."""
    return list(_holding(NEVER, policy, setting))


def can_happen_twice(policy: Policy, setting: Setting) -> list[Sentence]:
    """Return every way in which an effect can still be repeated."""
    return list(_holding(TWICE, policy, setting))


def to_mind(policy: Policy, setting: Setting) -> list[Sentence]:
    """Return what else a reader should know."""
    return list(_holding(MIND, policy, setting))


def _holding(statements: tuple[Statement, ...], policy: Policy, setting: Setting) -> Iterator[Sentence]:
    values = _values(policy)
    for statement in statements:
        if statement.when(policy, setting):
            yield Sentence(statement.text.format_map(values), statement.rules)


def _values(policy: Policy) -> dict[str, object]:
    hook = policy.reconcile is not None
    return {
        "retention": words(policy.retention),
        "lease": words(policy.lease),
        "max_runtime": words(policy.max_runtime),
        "unsettled_retention": words(policy.unsettled_retention),
        "max_response_bytes": policy.max_response_bytes,
        "released": ", ".join(map(str, sorted(policy.released_statuses))),
        "settled_by": ("its reconcile hook or " if hook else "") + "'twiceproof keys resolve'",
        "judges": "the reconcile hook or an operator says" if hook else "an operator says",
        "record": getattr(policy.record, "__qualname__", type(policy.record).__name__),
        "or_5xx": " or 5xx" if policy.guarantee == Guarantee.AT_LEAST_ONCE else "",
    }


def words(duration: Seconds) -> str:
    """Return a duration in its largest whole unit: ``7 days``, ``90 seconds``, ``0.5 seconds``."""
    amount = seconds(duration)
    for unit, size in (("day", DAY), ("hour", 3600.0), ("minute", 60.0)):
        if amount >= size and amount % size == 0:
            return f"{amount / size:g} {unit}{'s' if amount != size else ''}"
    return f"{amount:g} second{'s' if amount != 1 else ''}"
