"""The scenes, in the order of play: what each is called, what must be seen, and how it is played.

They need nothing but a `Stage`: the address of a service with these operations, and its store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twiceproof.cli._demo import faults, requests
from twiceproof.cli._demo.requests import DUPLICATES, bad_key
from twiceproof.cli._demo.scene import Scene
from twiceproof.cli._demo.stage import Stage

SCENES: Final = (
    Scene("first request", "201", requests.first_request),
    Scene("reply lost, then retried", "201 replayed", requests.reply_lost),
    Scene(
        f"{DUPLICATES} duplicates at the same instant",
        "1 × 201, rest 409 or replay",  # noqa: RUF001  # times
        requests.duplicates,
        exact=False,
    ),
    Scene("changed payload, during", "422 idempotency-key-reuse, then 201 replayed", requests.changed_during),
    Scene("changed payload, after", "422 idempotency-key-reuse, then 201 replayed", requests.changed_after),
    Scene("same JSON in another order", "201 replayed", requests.json_order),
    Scene("quoted and bare key", "201 replayed", requests.quoted_and_bare),
    Scene("missing key", "400 idempotency-key-missing", bad_key(()), intents=0, effects=0),
    Scene("empty key", "400 idempotency-key-invalid", bad_key([""], ['""']), intents=0, effects=0),
    Scene("double key", "400 idempotency-key-invalid", bad_key(["k-1", "k-1"], ["k-1, k-2"]), intents=0, effects=0),
    Scene("overlong key", "400 idempotency-key-invalid", bad_key(["k" * 256]), intents=0, effects=0),
    Scene("another account, same key", "201 and 201", requests.another_account, intents=2, effects=2),
    Scene("revoked token, then a fresh one", "401, then 201 replayed", requests.revoked_token),
    Scene("handler outlives three leases", "409 meanwhile, 201, then 201 replayed", requests.outlives_leases),
    Scene(
        "killed in mid-handler, at most once",
        "409, then 500 outcome-unknown, resolved: 201 replayed",
        faults.killed_at_most_once,
    ),
    Scene("killed in mid-handler, at least once", "409, then 201, then 201 replayed", faults.killed_at_least_once),
    Scene(
        "store gone at the claim, and back", "503 store-unavailable, then 201", faults.store_gone_at_claim, outage=True
    ),
    Scene("store gone at complete, and back", "201, then 201 replayed", faults.store_gone_at_complete, outage=True),
)


def playable(stage: Stage) -> Sequence[Scene]:
    """Return the scenes that can be played there: a store that is not the demo's own is not taken away."""
    return [scene for scene in SCENES if stage.place.outage is not None or not scene.outage]
