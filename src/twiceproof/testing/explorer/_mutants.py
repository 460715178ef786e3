"""Broken variants of the rules. The explorer must find each: one that it misses is a promise that it doesn't watch.

A variant is made by putting another function in place of a shipped one, in this process, while it is explored.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from twiceproof.core import _engine as core
from twiceproof.core import _lifecycle as life
from twiceproof.core._guarantee import SETTLING, Ending, Settling
from twiceproof.core._record import Guarantee
from twiceproof.stores import _row_verbs
from twiceproof.stores._rows import Row
from twiceproof.stores.memory import MemoryStore
from twiceproof.testing.explorer import _locals, _records, _variants
from twiceproof.testing.explorer._people import Bounds, scenes
from twiceproof.testing.explorer._search import Finding, search

_ONCE, _LEAST, _VERSIONS = str(Guarantee.AT_MOST_ONCE), str(Guarantee.AT_LEAST_ONCE), "versions"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken variant. ``puts``: (where, under which name, what) for each function that is put in place.

    ``guarantee`` names the scenes in which it must be found, with so many ``requests``.
    """

    name: str
    says: str
    puts: tuple[tuple[Any, Any, Any], ...]
    guarantee: str = _ONCE
    requests: int = 2


@contextmanager
def in_place(mutant: Mutant) -> Generator[None]:
    """Put a variant in place of what ships, and take it away again."""
    shipped: list[tuple[Any, Any, Any]] = []
    try:
        for owner, name, other in mutant.puts:
            shipped.append((owner, name, _swap(owner, name, other)))
        yield
    finally:
        for owner, name, original in reversed(shipped):
            _swap(owner, name, original)


def _swap(owner: Any, name: Any, value: Any) -> Any:
    if isinstance(name, Ending):  # a row of the table of guarantees
        before = owner[name]
        owner[name] = value
    else:
        before = getattr(owner, name)
        setattr(owner, name, value)
    return before


def hunt(mutant: Mutant, bounds: Bounds) -> Finding:
    """Explore a variant until something is broken; return that, or what was searched in vain."""
    seen = Finding("", 0, 0, 0.0)
    with in_place(mutant):
        for scene in scenes(mutant.requests, mutant.guarantee):
            found = search(scene, bounds)
            found.states, found.moves = found.states + seen.states, found.moves + seen.moves
            found.seconds += seen.seconds
            found.cut = found.cut or seen.cut
            seen = found
            if found.broken is not None:
                break
    return seen


MUTANTS: Final = (
    Mutant(
        "complete-without-token",
        "whoever completes a record completes it, whatever its token",
        ((MemoryStore, "complete", _variants.complete_by_id),),
        _LEAST,
    ),
    Mutant(
        "release-without-token",
        "whoever releases a record releases it, whatever its token",
        ((MemoryStore, "release", _variants.release_by_id),),
        _LEAST,
    ),
    Mutant(
        "park-without-token",
        "whoever parks a record parks it, whatever its token",
        ((MemoryStore, "park", _variants.park_by_id),),
    ),
    Mutant(
        "renewal-without-token",
        "the renewal of a fenced claim makes it the record's again",
        ((MemoryStore, "renew", _variants.renew_by_id),),
        _LEAST,
    ),
    Mutant(
        "withdrawal-by-id",
        "taking a claim back releases the record, whosever it is by then",
        ((_records, "perform_write", _variants.withdraw_by_id),),
    ),
    Mutant(
        "lapse-fences",
        "a holder is fenced by the clock, although no other token was granted",
        ((Row, "settled_by", _variants.fenced_by_time),),
    ),
    Mutant(
        "takeover-ignores-lease",
        "a retry takes over a claim whose lease is live",
        ((Row, "may_take_over", _variants.takes_live_leases),),
        _LEAST,
    ),
    Mutant(
        "at-most-once-takes-over",
        "a retry takes over whatever lapsed, without a look at the guarantee",
        ((Row, "may_take_over", _variants.takes_whatever_lapsed),),
    ),
    Mutant(
        "takeover-by-own-guarantee",
        "a retry takes over what lapsed by its own guarantee, without a look at the record's",
        ((Row, "may_take_over", _variants.takes_by_its_own_word),),
        _VERSIONS,
    ),
    Mutant(
        "takeover-while-asked",
        "a record is taken over while a hook is asked about it",
        ((Row, "may_take_over", _variants.takes_what_is_asked_about),),
        _VERSIONS,
        3,
    ),
    Mutant(
        "old-verdict-accepted",
        "a verdict that nothing happened counts after its second claim has lapsed",
        ((Row, "may_take_over", _variants.takes_on_an_old_verdict),),
    ),
    Mutant(
        "token-numbers-restart",
        "the number of a token starts again at a take-over",
        ((Row, "taken_over", _variants.same_number),),
        _LEAST,
    ),
    Mutant(
        "nonces-repeat",
        "two requests bear the same nonce",
        ((_records, "nonce_of", _variants.one_nonce),),
    ),
    Mutant(
        "second-claim-fences",
        "asking the hook fences the holder",
        ((MemoryStore, "claim_unsettled", _variants.second_claim_as_token),),
    ),
    Mutant(
        "verdict-from-memory",
        "a hook's answer is given although the holder's is recorded",
        ((core, "_apply", _variants.answered_from_the_verdict),),
    ),
    Mutant(
        "fingerprint-not-compared",
        "another payload counts as the same request",
        ((life, "resolve", _variants.any_payload),),
    ),
    Mutant(
        "in-progress-before-fingerprint",
        "another payload is told in-progress",
        ((life, "resolve", _variants.held_first),),
    ),
    Mutant(
        "held-for-ever",
        "the store answers that a lapsed claim is held",
        ((_row_verbs, "held_or_found", _variants.held_for_ever),),
    ),
    Mutant(
        "in-progress-for-ever",
        "the rules answer that a lapsed claim is in progress",
        ((life, "resolve", _variants.always_waits),),
    ),
    Mutant(
        "release-on-failed-complete",
        "a record that can't be completed is released instead",
        ((core, "_finish", _variants.released_where_completing_failed),),
    ),
    Mutant(
        "exception-releases",
        "an exception releases under at most once",
        ((SETTLING[Guarantee.AT_MOST_ONCE], Ending.EXCEPTION, Settling.RELEASE),),
    ),
    Mutant(
        "cancellation-releases",
        "a handler that is cancelled releases under at most once",
        ((SETTLING[Guarantee.AT_MOST_ONCE], Ending.CANCELLED, Settling.RELEASE),),
    ),
    Mutant(
        "purge-takes-parked",
        "a purge deletes parked records",
        ((MemoryStore, "purge", _variants.purge_of_what_lapsed),),
    ),
    Mutant(
        "parked-briefly",
        "a parked record is kept for an hour",
        ((Row, "parked", _variants.parked_briefly),),
    ),
    Mutant(
        "renewal-eats-keeping",
        "a renewal does not prolong how long an unsettled record is kept",
        ((Row, "renewed", _variants.kept_from_the_claim),),
    ),
    Mutant(
        "claim-not-withdrawn",
        "a claim that nobody heard of is left to itself",
        ((core, "_withdrawal", _variants.nothing_withdrawn), (core, "cleanup", _variants.nothing_cleaned_up)),
    ),
    Mutant(
        "cancelled-claim-left",
        "a claim that is cancelled on its way is left to itself",
        ((core, "cleanup", _variants.nothing_cleaned_up),),
    ),
    Mutant(
        "withdrawal-once",
        "a claim is taken back once, although it may arrive later",
        ((_locals, "is_over", _variants.over_at_once),),
    ),
    Mutant(
        "renewal-undoes-parking",
        "a renewal that comes after the parking is let stand",
        ((_locals, "after_renewal", _variants.nothing_after_a_renewal),),
    ),
)
"""Every variant, in the order in which they are reported."""
