"""Records, policies and answers for the tests of the rules, with only what matters spelled out."""

from typing import Any

from twiceproof import Guarantee, Record, Request, State
from twiceproof.core._record import Token
from twiceproof.core._scope import Site

SITE = Site("tests")
REQUEST = Request("POST", b"/orders", b"", [(b"content-type", b"application/json")], b'{"amount":1}')
NOW = 1_000.0


def record(state: State = State.IN_FLIGHT, **parts: Any) -> Record:
    """A record as a store hands it out: granted ten seconds ago, with twenty left of its lease."""
    made: dict[str, Any] = {
        "id": b"id",
        "namespace": "tests",
        "principal": b"who",
        "operation": "POST /orders",
        "path": "/orders",
        "key": b"key",
        "fingerprint": b"1:" + b"0" * 64,
        "guarantee": Guarantee.AT_MOST_ONCE,
        "incarnation": b"first",
        "state": state,
        "token": Token(1, b"first"),
        "lease_until": NOW + 20,
        "attempts": 1,
        "created_at": NOW - 10,
        "granted_at": NOW - 10,
        "expires_at": NOW + 1_000,
        "now": NOW,
    }
    return Record(**(made | parts))
