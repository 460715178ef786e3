"""The life of a record: admission, what a claim's answer means, and the table of states (CONTRACT 2, 4)."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records import NOW, REQUEST, SITE, record
from twiceproof import FingerprintOptions, Guarantee, Policy, Response, State
from twiceproof.core import _lifecycle as life
from twiceproof.core._codec import encode
from twiceproof.core._fingerprint import fingerprint
from twiceproof.core._problems import REPLAYED, problem
from twiceproof.core._record import Absent, ClaimRef, Done, Found, Granted, Held, NewRecord, Token
from twiceproof.core._scope import Site
from twiceproof.stores.memory import MemoryStore

PLAIN = FingerprintOptions()
MINE = fingerprint(REQUEST, PLAIN)
VARIED = fingerprint(REQUEST, FingerprintOptions(vary_headers=("accept",)))
OTHER = fingerprint(replace(REQUEST, body=b"{}"), PLAIN)
VARIED_OTHER = fingerprint(replace(REQUEST, body=b"{}"), FingerprintOptions(vary_headers=("accept",)))
UNKNOWN = b"9;new:" + b"0" * 64
STORED = encode(Response(201, [(b"etag", b"x")], b"body"))
EMPTIED = encode(Response(201, [(b"location", b"/1")], None))


def admitted(method="POST", *values, name=b"Idempotency-Key", **options):
    headers = [(name, value) for value in values]
    return life.admit(method, headers, Policy(**options), SITE)


def resolved(got, policy=None, mine=MINE):
    return life.resolve(got, mine, REQUEST, policy or Policy(), SITE)


def code(answer):
    return answer.code if isinstance(answer, life.Reply) else type(answer).__name__


# ---------------------------------------------------------------------- admission


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "post", "QUERY"])
def test_other_methods_pass_through_whatever_their_key(method):
    """R1: a bad key is not even looked at; methods are case-sensitive."""
    for values in ((), (b"k",), (b"no good",), (b"a", b"b")):
        assert admitted(method, *values, required=True) == life.Bypass()


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_post_and_patch_are_covered(method):
    """R1."""
    assert admitted(method, b"k-1") == life.Keyed("k-1")


def test_the_methods_can_be_chosen():
    """R1."""
    assert admitted("PUT", b"k-1", methods=("PUT",)) == life.Keyed("k-1")
    assert admitted("POST", b"k-1", methods=("PUT",)) == life.Bypass()


@pytest.mark.parametrize("name", [b"idempotency-key", b"IDEMPOTENCY-KEY", b"Idempotency-Key"])
def test_the_field_is_found_in_any_case(name):
    """R2, B32."""
    assert admitted("POST", b"k-1", name=name) == life.Keyed("k-1")


def test_an_alias_is_the_same_field():
    """R2, B32: alone, or beside the standard name with the same key; with another it is refused."""
    policy = Policy(aliases=("X-Request-Key",))
    for headers in ([(b"x-request-KEY", b"k")], [(b"x-request-key", b'"k"'), (b"idempotency-key", b"k")]):
        assert life.admit("POST", headers, policy, SITE) == life.Keyed("k")
    two = [(b"x-request-key", b"k"), (b"idempotency-key", b"other")]
    assert code(life.admit("POST", two, policy, SITE)) == "idempotency-key-invalid"


def test_a_missing_key_is_refused_only_where_it_is_required():
    """R8, R9."""
    assert admitted("POST") == life.Bypass()
    reply = admitted("POST", required=True)
    assert (reply.code, reply.response.status) == ("idempotency-key-missing", 400)


def test_the_status_of_a_missing_key_can_be_chosen():
    """R8."""
    for status in (422, 428):
        assert admitted("POST", required=True, missing_status=status).response.status == status


def test_a_refusal_links_to_the_sites_explanations():
    """CONTRACT 7: where it has some."""
    site = Site("tests", docs_url="https://x.example/problems")
    reply = life.refuse("in-progress", site, retry_after=3)
    assert reply.response == problem("in-progress", docs_url="https://x.example/problems", retry_after=3)


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((b"",), "empty"),
        ((b"a,b",), "list"),
        ((b"a", b"a"), "repeated"),
        ((b'"a',), "malformed"),
        ((b"x" * 256,), "too-long"),
    ],
)
def test_a_bad_key_is_refused_with_its_reason_and_never_echoed(values, reason, required):
    """R3, R6, B31."""
    reply = admitted("POST", *values, required=required)
    document = json.loads(reply.response.body)
    assert (reply.code, reply.response.status) == ("idempotency-key-invalid", 400)
    assert document["reason"] == reason
    assert len(values[0]) < 2 or values[0] not in reply.response.body


def test_the_strict_syntax_and_a_key_format_are_the_policys():
    """R5, R6."""
    assert code(admitted("POST", b"bare", syntax="strict")) == "idempotency-key-invalid"
    assert admitted("POST", b'"quoted"', syntax="strict") == life.Keyed("quoted")
    assert code(admitted("POST", b"bare", key_format="uuid")) == "idempotency-key-invalid"


# ---------------------------------------------------------------------- what a claim's answer means


def test_a_grant_runs():
    """R21."""
    granted = Granted(Token(1, b"n"), b"n")
    assert resolved(granted) is granted


HELD = {
    "in flight": Held(record(fingerprint=MINE)),
    "waiting": Held(record(State.WAITING, fingerprint=MINE, next_attempt_at=NOW + 5)),
    "reconciled": Held(record(State.PARKED, fingerprint=MINE, reconcile_until=NOW + 5, reconcile_asked_at=NOW)),
}
FOUND = {
    "completed": Found(record(State.COMPLETED, fingerprint=MINE, answer=STORED)),
    "parked": Found(record(State.PARKED, fingerprint=MINE, cause="exception")),
    "lapsed": Found(record(fingerprint=MINE, lease_until=NOW)),
}


@pytest.mark.parametrize("got", [*HELD.values(), *FOUND.values()], ids=[*HELD, *FOUND])
@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (OTHER, "idempotency-key-reuse"),
        (UNKNOWN, "store-unavailable"),
        (b"", "store-unavailable"),
        (b"no fingerprint", "store-unavailable"),
        (b"1:later:" + b"0" * 64, "store-unavailable"),
        (VARIED_OTHER, "idempotency-key-reuse"),
    ],
)
def test_another_fingerprint_is_decided_before_anything_else(got, theirs, expected):
    """R24 before R23, R25 and R28; R17: what can't be compared is never a mismatch."""
    other = replace(got, record=replace(got.record, fingerprint=theirs))
    reply = resolved(other)
    assert code(reply) == expected
    assert reply.response.header(b"retry-after") == (b"5" if expected == "store-unavailable" else None)


@pytest.mark.parametrize("got", [*HELD.values(), *FOUND.values()], ids=[*HELD, *FOUND])
def test_a_record_of_other_fingerprint_options_means_the_same(got):
    """R17: it is compared with those it was made with."""
    varied = replace(got, record=replace(got.record, fingerprint=VARIED))
    assert code(resolved(varied)) == code(resolved(got))


@pytest.mark.parametrize("got", [*HELD.values(), *FOUND.values()], ids=[*HELD, *FOUND])
def test_a_record_of_a_later_release_is_503(got):
    """R17, R53: also where its fingerprint differs; never a mismatch, never a run."""
    for theirs in (MINE, OTHER):
        later = replace(got, record=replace(got.record, fingerprint=theirs, format=2))
        reply = resolved(later)
        assert (code(reply), reply.response.header(b"retry-after")) == ("store-unavailable", b"5")


@pytest.mark.parametrize(("got", "seconds"), list(zip(HELD.values(), (b"10", b"5", b"1"), strict=True)), ids=list(HELD))
def test_what_is_held_is_waited_for(got, seconds):
    """R23: and its reply says when to come again."""
    answer = resolved(got)
    assert isinstance(answer, life.Wait)
    assert (answer.reply.code, answer.reply.response.status, answer.now) == ("in-progress", 409, NOW)
    assert answer.reply.response.header(b"retry-after") == seconds


def test_what_is_completed_is_replayed():
    """R25."""
    reply = resolved(FOUND["completed"])
    assert (reply.code, reply.response.status, reply.response.body) == ("", 201, b"body")
    assert REPLAYED in reply.response.headers


def test_what_was_not_kept_is_refused():
    """R26: with its status, and its Location."""
    reply = resolved(Found(record(State.COMPLETED, fingerprint=MINE, answer=EMPTIED)))
    document = json.loads(reply.response.body or b"")
    assert (reply.code, document["original_status"]) == ("replay-unavailable", 201)
    assert reply.response.header(b"location") == b"/1"
    assert REPLAYED not in reply.response.headers


@pytest.mark.parametrize("stored", [None, b"", b"\x09later", STORED[:5]])
def test_an_answer_that_cannot_be_read_is_503(stored):
    """R17, R53."""
    reply = resolved(Found(record(State.COMPLETED, fingerprint=MINE, answer=stored)))
    assert (code(reply), reply.response.header(b"retry-after")) == ("store-unavailable", b"5")


@pytest.mark.parametrize(("name", "cause"), [("parked", "exception"), ("lapsed", "lapsed")])
def test_what_nobody_knows_is_told_and_may_be_asked_about(name, cause):
    """R28: 500, without Retry-After: a retry would not help."""
    answer = resolved(FOUND[name])
    assert isinstance(answer, life.Reconcile)
    document = json.loads(answer.reply.response.body or b"")
    assert (document["code"], document["may_have_taken_effect"], document["cause"]) == ("outcome-unknown", True, cause)
    assert (answer.reply.response.status, answer.reply.response.header(b"retry-after")) == (500, None)
    assert answer.record is FOUND[name].record


@pytest.mark.parametrize("theirs", list(Guarantee))
@pytest.mark.parametrize("mine", ["at_most_once", "at_least_once"])
@pytest.mark.parametrize("state", ["lapsed", "parked"])
def test_a_lapsed_record_is_repeatable_only_where_both_say_at_least_once(theirs, mine, state):
    """R27: and a parked one never. The store compares fingerprints by bytes, so the claim is repeated with its own."""
    found = FOUND[state]
    varied = Found(replace(found.record, guarantee=theirs, fingerprint=VARIED))
    answer = resolved(varied, Policy(guarantee=mine))
    both = theirs == mine == "at_least_once" and state == "lapsed"
    assert isinstance(answer, life.Again if both else life.Reconcile)
    if isinstance(answer, life.Again):
        assert answer.fingerprint == VARIED


# ---------------------------------------------------------------------- Retry-After


@pytest.mark.parametrize(
    ("ran", "left", "seconds"),
    [(0, 30, 1), (0.2, 30, 1), (1, 29, 1), (1.2, 29, 2), (12, 18, 12), (25, 5, 5), (29.5, 0.5, 1), (100, 200, 30)],
)
def test_retry_after_is_the_smallest_of_run_time_rest_of_lease_and_thirty(ran, left, seconds):
    """R23: never below one."""
    assert life.retry_after(record(granted_at=NOW - ran, lease_until=NOW + left)) == seconds


@pytest.mark.parametrize(("next_at", "seconds"), [(NOW + 90, 90), (NOW + 0.1, 1), (NOW - 5, 1), (None, 10)])
def test_a_waiting_record_is_asked_for_at_its_next_attempt(next_at, seconds):
    """R23: where that is known."""
    assert life.retry_after(record(State.WAITING, next_attempt_at=next_at)) == seconds


@pytest.mark.parametrize(
    ("asked", "until", "seconds"), [(NOW - 7, NOW + 23, 7), (NOW - 29, NOW + 1, 1), (None, NOW + 9, 1)]
)
def test_a_record_that_is_being_reconciled_is_asked_for_by_the_hooks_time(asked, until, seconds):
    """R23, R28: the lapsed lease of the run says nothing any more."""
    made = record(lease_until=NOW - 50, reconcile_asked_at=asked, reconcile_until=until)
    assert life.retry_after(made) == seconds


def test_a_hook_that_is_over_has_no_time_of_its_own_any_more():
    """R23: the run that its verdict granted has."""
    made = record(granted_at=NOW - 7, reconcile_asked_at=NOW - 50, reconcile_until=NOW - 20)
    assert life.retry_after(made) == 7


@given(st.floats(0, 1e6), st.floats(-1e6, 1e6), st.sampled_from(State))
def test_retry_after_is_always_a_second_to_thirty(ran, left, state):
    """R23: whatever the clocks say."""
    assert 1 <= life.retry_after(record(state, granted_at=NOW - ran, lease_until=NOW + left)) <= 30


# ---------------------------------------------------------------------- the table of states


class World:
    """A memory store with one key that can be brought into every state."""

    new = NewRecord(b"id", "n", b"p", "op", "/", b"k", MINE, Guarantee.AT_LEAST_ONCE, 100.0)

    def __init__(self):
        self.now = 0.0
        self.store = MemoryStore(lambda: self.now)

    def bring(self, state):
        if state == "absent":
            return self
        self.store.claim(self.new, 10.0, b"holder")
        if state == "lapsed":
            self.now += 10
        elif state == "parked":
            self.store.park(b"id", b"holder", "x")
        elif state == "completed":
            self.store.complete(b"id", b"holder", b"answer", 50.0)
        return self

    def state(self):
        found = self.store.get(b"id")
        if found is None:
            return life.ABSENT
        return life.UNSETTLED if found.unsettled else str(found.state)

    def second(self):
        """Hold the second claim, as a hook does (by force, as an operator does)."""
        self.store.claim_unsettled(b"id", 5.0, b"second", 0.0, force=True)

    def verdict_nothing(self):
        self.second()
        self.store.claim(self.new, 10.0, b"next", b"second")


VERBS = {
    "claim": lambda world: world.store.claim(World.new, 10.0, b"stranger"),
    "claim at most once": lambda world: world.store.claim(
        replace(World.new, guarantee=Guarantee.AT_MOST_ONCE), 10.0, b"stranger"
    ),
    "claim of another payload": lambda world: world.store.claim(
        replace(World.new, fingerprint=OTHER), 10.0, b"stranger"
    ),
    "complete": lambda world: world.store.complete(b"id", b"holder", b"answer", 50.0),
    "release": lambda world: world.store.release(b"id", b"holder"),
    "park": lambda world: world.store.park(b"id", b"holder", "x"),
    "renew": lambda world: world.store.renew([ClaimRef(b"id", b"holder")], 10.0),
    "strange complete": lambda world: world.store.complete(b"id", b"stranger", b"answer", 50.0),
    "strange release": lambda world: world.store.release(b"id", b"stranger"),
    "strange park": lambda world: world.store.park(b"id", b"stranger", "x"),
    "strange renew": lambda world: world.store.renew([ClaimRef(b"id", b"stranger")], 10.0),
    "second complete": lambda world: (world.second(), world.store.complete(b"id", b"second", b"answer", 50.0)),
    "second release": lambda world: (world.second(), world.store.release(b"id", b"second")),
    "second park": lambda world: (world.second(), world.store.park(b"id", b"second", "x")),
    "nothing happened": World.verdict_nothing,
    "forget": lambda world: world.store.forget(b"id", b"holder"),
    "ten seconds": lambda world: setattr(world, "now", world.now + 10),
    "fifty seconds": lambda world: setattr(world, "now", world.now + 50),
    "a long time": lambda world: setattr(world, "now", world.now + 1_000),
    "purge": lambda world: world.store.purge(10),
}


def test_the_table_is_what_a_store_really_allows():
    """Each pair of states that a verb or time can lead from and to stands in the table, and nothing else does."""
    seen = set()
    for state in ("absent", "in_flight", "lapsed", "parked", "completed"):
        for name, verb in VERBS.items():
            world = World().bring(state)
            before, token = world.state(), world.store.get(b"id")
            verb(world)
            after = world.state()
            changed = after != before or (
                token is not None and after == "in_flight" and world.store.get(b"id").token != token.token
            )
            if changed:
                seen.add((before, after, name))
    table = {(before, after) for before, _, after in life.TRANSITIONS}
    assert {(before, after) for before, after, _ in seen} == table
    by_claim = {(before, after) for before, after, name in seen if name == "claim"}
    assert by_claim == {("absent", "in_flight"), ("unsettled", "in_flight")}
    at_most_once = {(before, after) for before, after, name in seen if name == "claim at most once"}
    assert at_most_once == {("absent", "in_flight")}


def test_a_stranger_changes_nothing():
    """R30: in no state does another token's write do anything."""
    for state in ("absent", "in_flight", "lapsed", "parked", "completed"):
        for name in ("strange complete", "strange release", "strange park", "strange renew"):
            world = World().bring(state)
            before = world.store.snapshot()
            answer = VERBS[name](world)
            assert not isinstance(answer, Done | Absent | Granted)
            assert world.store.snapshot() == before


def test_the_table_names_each_change_once():
    """It is what the diagram is drawn from."""
    assert len(set(life.TRANSITIONS)) == len(life.TRANSITIONS)
    states = {life.ABSENT, life.UNSETTLED, "in_flight", "completed"}
    assert {state for before, _, after in life.TRANSITIONS for state in (before, after)} == states
