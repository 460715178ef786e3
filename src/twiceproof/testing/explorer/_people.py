"""Who is there: the requests that race, what their handlers may come to, and the scenes that put them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twiceproof.core import _lifecycle as life
from twiceproof.core import _outcome as outcomes
from twiceproof.core._engine import Call, make_call
from twiceproof.core._fingerprint import FingerprintOptions
from twiceproof.core._messages import Request, Response
from twiceproof.core._policy import Policy
from twiceproof.core._record import Guarantee
from twiceproof.core._scope import Site

LEASE: Final = 32.0
"""Also how long a hook may take and how often it is asked: time passes one lease at a time."""
PAUSE: Final = 0.05
KEEP: Final = 30 * 86_400.0
RETENTION: Final = 86_400.0

ME: Final = b"me--" * 4
OTHER: Final = b"them" * 4
OPERATOR: Final = b"oper" * 4

_SITE: Final = Site("explorer")


def nonce_of(who: int) -> bytes:
    """Return the nonce of a request; all are as long as `ME`, which stands for it inside its steps."""
    return b"no.%d" % who * 4


def _hook(record: object, request: object) -> object:
    """Stand for a reconcile hook: what it says is a move of the explorer."""
    raise NotImplementedError


@dataclass(frozen=True)
class Ending:
    """What a handler may come to. ``effect``: whether it took effect; ``says`` names every case that this one is."""

    says: str
    outcome: outcomes.Outcome
    effect: bool


@dataclass(frozen=True, eq=False)
class Kind:
    """Requests that are alike: same payload, same version of the application."""

    call: Call
    endings: tuple[Ending, ...]
    amount: int

    @property
    def strict(self) -> bool:
        """Whether its version promises at most one execution."""
        return self.call.policy.guarantee == Guarantee.AT_MOST_ONCE


@dataclass(frozen=True)
class Scene:
    """A set of requests that is explored by itself; ``kinds`` has one entry per request, equal ones side by side."""

    name: str
    kinds: tuple[Kind, ...]
    operator: bool = False


def _answered(status: int) -> outcomes.Answered:
    return outcomes.Answered(Response(status, [], b"by " + ME))


_ENDINGS: Final[tuple[tuple[str, outcomes.Outcome, bool], ...]] = (
    ("answers 201", _answered(201), True),
    ("answers 422", _answered(422), True),
    ("answers 500", _answered(500), True),
    ("answers 503", _answered(503), True),
    ("raises after its effect", outcomes.Raised(), True),
    ("is cancelled after its effect", outcomes.Cancelled(), True),
    ("is cut short after its effect", outcomes.CutShort(), True),
    ("says that nothing happened", outcomes.NothingHappened(), False),
    ("answers 401, a gate", _answered(401), False),
    ("is cancelled before it began", outcomes.NothingHappened(), False),
    ("raises before its effect", outcomes.Raised(), False),
    ("is cancelled before its effect", outcomes.Cancelled(), False),
)


def _endings(policy: Policy) -> tuple[Ending, ...]:
    """Return the endings that differ: those that settle alike are followed once, under all their names."""
    alike: dict[tuple[type, bool], list[int]] = {}
    for number, (_, outcome, effect) in enumerate(_ENDINGS):
        alike.setdefault((type(life.settle(outcome, policy)), effect), []).append(number)
    return tuple(
        Ending(" or ".join(_ENDINGS[number][0] for number in numbers), _ENDINGS[numbers[0]][1], effect)
        for (_, effect), numbers in alike.items()
    )


def make_kind(guarantee: str, *, amount: int = 1, hook: bool = False, wait: float = 0.0, varied: bool = False) -> Kind:
    """Return a kind of request; ``amount`` is its payload, ``varied`` another version's fingerprint parameters."""
    policy = Policy(
        guarantee=guarantee,
        lease=LEASE,
        retention=RETENTION,
        unsettled_retention=KEEP,
        reconcile=_hook if hook else None,
        reconcile_timeout=LEASE,
        reconcile_every=LEASE,
        wait=wait,
        fingerprint=FingerprintOptions(vary_headers=("accept",)) if varied else FingerprintOptions(),
    )
    headers = [(b"content-type", b"application/json")]
    request = Request("POST", b"/transfers", b"", headers, b'{"amount":%d}' % amount)
    return Kind(make_call(request, "key", "account", policy, _SITE, ME), _endings(policy), amount)


def scenes(requests: int, guarantee: str) -> list[Scene]:
    """Return the scenes of so many requests: ``guarantee`` is one of the two, ``versions`` (both), or ``all``."""
    once, least = Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE
    made: dict[str, list[Scene]] = {}
    rest = requests - 1
    asked, plain = make_kind(once, hook=True), make_kind(once)
    waits = make_kind(once, wait=PAUSE)
    again = make_kind(least)
    made[once] = [
        Scene("at most once, same payload, with a reconcile hook", (asked,) * requests),
        Scene("at most once, same payload, an operator resolves", (plain,) * requests, operator=True),
        Scene("at most once, same payload, duplicates wait", (plain, *(waits,) * rest)),
    ]
    made[least] = [Scene("at least once, same payload", (again,) * requests)]
    both = (asked, *(make_kind(least, hook=True, varied=True),) * rest)
    made["versions"] = [Scene("two versions of an application, with both guarantees", both)] if rest else []
    if rest:
        other = make_kind(once, amount=2, hook=True)
        made[once].insert(1, Scene("at most once, one payload differs", (*(asked,) * rest, other)))
        made[least].append(Scene("at least once, one payload differs", (*(again,) * rest, make_kind(least, amount=2))))
        newer = make_kind(least, varied=True)
        made[least].append(Scene("at least once, one version fingerprints otherwise", (*(again,) * rest, newer)))
    return [scene for name, group in made.items() if guarantee in {name, "all"} for scene in group]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may go wrong: each is used up by a move of its kind. ``states`` cuts the search."""

    crashes: int = 1
    lost: int = 1
    lapses: int = 2
    expiries: int = 1
    states: int = 5_000_000
