"""What the explorer judges by can fail, each promise for itself; and whatever happens can be told (CONTRACT 4, 5)."""

from typing import Any

import pytest

from twiceproof import Response, State
from twiceproof.core._codec import encode
from twiceproof.core._engine import DoClaim, DoClaimUnsettled, DoComplete, DoPark, DoRelease
from twiceproof.core._kept import to_replay
from twiceproof.core._lifecycle import Reply
from twiceproof.core._record import Done, Fenced, Granted, Guarantee, Held, NewRecord, Token
from twiceproof.stores._rows import Row, Subject
from twiceproof.testing.explorer import _invariants as judge
from twiceproof.testing.explorer._paths import Force, Renew
from twiceproof.testing.explorer._people import KEEP, LEASE, Bounds, scenes
from twiceproof.testing.explorer._story import told
from twiceproof.testing.explorer._world import World

MINE, OTHER, SECOND = b"mine", b"other", b"rmine"
ANSWER = encode(Response(201, [(b"etag", b"x")], b"stored"))
TWICE = Guarantee.AT_LEAST_ONCE
SUBJECT = Subject("n", b"p", "op", "/", b"k", b"1:print", TWICE, b"first", 0.0)
ROW = Row(SUBJECT, State.IN_FLIGHT, 1, MINE, LEASE, 1, 0.0, LEASE + KEEP)  # now is 0
LAPSED = ROW._replace(lease_until=0.0, expires_at=KEEP)
ASKED = LAPSED._replace(reconcile_nonce=SECOND, reconcile_until=9.0)
STALE = LAPSED._replace(reconcile_nonce=SECOND, reconcile_until=-1.0)
PARKED = LAPSED._replace(state=State.PARKED)
COMPLETED = ROW._replace(state=State.COMPLETED, expires_at=50.0, answer=ANSWER)
TAKEN = LAPSED._replace(number=2, nonce=OTHER, lease_until=LEASE)
GRANTED = Granted(Token(1, MINE), b"first")
HELD: Any = Held(None)  # type: ignore[arg-type]  # nobody looks into it
NEW = NewRecord(b"id", "n", b"p", "op", "/", b"k", b"1:print", TWICE, KEEP)
CLAIM = DoClaim(NEW, LEASE, OTHER)
VERDICT = DoClaim(NEW, LEASE, OTHER, after=SECOND)
UNSETTLED = DoClaimUnsettled(b"id", LEASE, SECOND, 0.0)
COMPLETE, STRANGE = DoComplete(b"id", MINE, ANSWER, 50.0), DoComplete(b"id", OTHER, ANSWER, 50.0)


@pytest.mark.parametrize(
    ("before", "after", "asked", "answer", "sentence"),
    [
        (COMPLETED, PARKED, DoPark(b"id", MINE, "x"), Done(), "a completed record changed"),
        (ROW, TAKEN, CLAIM, HELD, "a claim that was not granted changed the record"),
        (ROW, ROW, CLAIM, HELD, None),
        (None, None, CLAIM, GRANTED, "two could complete it"),
        (None, TAKEN, CLAIM, GRANTED, None),
        (LAPSED, TAKEN, DoClaim(NEW, LEASE, OTHER), GRANTED, None),
        (LAPSED._replace(subject=SUBJECT._replace(fingerprint=b"x")), TAKEN, CLAIM, GRANTED, "another payload"),
        (LAPSED, TAKEN._replace(subject=SUBJECT._replace(incarnation=b"x")), CLAIM, GRANTED, "a new incarnation"),
        (LAPSED, TAKEN._replace(number=1), CLAIM, GRANTED, "did not grow"),
        (ASKED, TAKEN, CLAIM, GRANTED, "while a hook was asked about it"),
        (ASKED, TAKEN, VERDICT, GRANTED, None),
        (ROW, TAKEN, CLAIM, GRANTED, "a live lease was taken over"),
        (PARKED, TAKEN, VERDICT, GRANTED, "after its second claim had ended"),
        (PARKED, TAKEN, CLAIM, GRANTED, "one side promises at most once"),
        (ROW, ASKED, UNSETTLED, HELD, "a second claim that was not granted changed the record"),
        (None, None, Force(b"id"), GRANTED, "a second claim was granted on no record"),
        (LAPSED, ASKED._replace(nonce=SECOND), UNSETTLED, GRANTED, "a second claim touched the holder's own"),
        (LAPSED, ASKED, UNSETTLED, GRANTED, None),
        (TAKEN, TAKEN._replace(lease_until=LEASE + 1), Renew(b"id"), None, "a renewal with another token"),
        (TAKEN, TAKEN, Renew(b"id"), None, None),
        (LAPSED, ROW, Renew(b"id"), None, None),
        (ROW, COMPLETED, STRANGE, Done(), "a complete with another token changed the record"),
        (ROW, ROW, STRANGE, Done(), "a complete with another token was not told that it is fenced"),
        (ROW, ROW, STRANGE, Fenced(), None),
        (COMPLETED, COMPLETED, COMPLETE, Done(), None),
        (ROW, ROW, COMPLETE, Fenced(), "by the holder was fenced"),
        (STALE, STALE, DoPark(b"id", SECOND, "x"), Fenced(), "by the holder was fenced"),
        (ROW, ROW, DoRelease(b"id", MINE), Done(), "a released record is still there"),
        (ROW, None, DoRelease(b"id", MINE), Done(), None),
        (ROW, None, DoPark(b"id", MINE, "x"), Done(), "a park deleted the record"),
        (ROW, COMPLETED._replace(answer=b"x"), COMPLETE, Done(), "what was recorded is not the answer"),
        (ROW, COMPLETED, COMPLETE, Done(), None),
    ],
    ids=[f"case {n}" for n in range(32)],
)
def test_a_call_that_breaks_a_promise_is_judged_so(before, after, asked, answer, sentence):
    """R21, R22, R24, R25, R27, R28, R30, R42: and the like of it that breaks none is not."""
    found = judge.broken_by_act(before, after, asked, MINE, answer)
    assert found is None if sentence is None else sentence in str(found)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (ROW, None),
        (COMPLETED, None),
        (COMPLETED._replace(expires_at=0.0), "expired at once"),
        (ROW._replace(lease_until=LEASE + 1), "longer than one lease"),
        (ASKED._replace(reconcile_until=LEASE + 1), "longer than one lease"),
        (ROW._replace(expires_at=LEASE + KEEP - 2), "forgotten before its keeping ran out"),
    ],
)
def test_a_record_that_can_not_keep_its_promises_is_judged_so(row, sentence):
    """R29, R33, R42: on the day that it is written."""
    found = judge.broken_by_time(b"id", row)
    assert found is None if sentence is None else sentence in str(found)


REPLAY = Reply(to_replay(Response(201, [(b"etag", b"x")], b"stored")))


@pytest.mark.parametrize(
    ("reply", "row", "same", "overdue", "sentence"),
    [
        (Reply(Response(503), "store-unavailable"), None, True, True, None),
        (Reply(Response(422), "idempotency-key-reuse"), ROW, True, False, "as another payload although it is none"),
        (Reply(Response(422), "idempotency-key-reuse"), None, True, False, "as another payload although it is none"),
        (Reply(Response(422), "idempotency-key-reuse"), ROW, False, False, None),
        (REPLAY, COMPLETED, False, False, "another payload is given a replay"),
        (Reply(Response(409), "in-progress"), ROW, False, False, "another payload is told in-progress"),
        (Reply(Response(409), "in-progress"), ROW, True, True, "longer than one lease"),
        (Reply(Response(409), "in-progress"), ROW, True, False, None),
        (REPLAY, None, True, False, "a replay of what is not recorded"),
        (REPLAY, COMPLETED._replace(expires_at=0.0), True, False, "a replay of what is not recorded"),
        (REPLAY, COMPLETED, True, False, None),
        (Reply(Response(201, [(b"etag", b"x")], b"stored")), COMPLETED, True, False, "is not what was recorded"),
        (Reply(to_replay(Response(200, [(b"etag", b"x")], b"stored"))), COMPLETED, True, False, "not what was"),
    ],
)
def test_a_reply_that_breaks_a_promise_is_judged_so(reply, row, same, overdue, sentence):
    """R24, R25, R29."""
    answer = None if row is None else row.answer
    found = judge.broken_by_reply(reply, row, answer, same=same, overdue=overdue)
    assert found is None if sentence is None else sentence in str(found)


@pytest.mark.parametrize(
    ("effects", "strict", "effect", "after", "broken"),
    [
        (judge.NO_EFFECT, True, True, judge.STRICT_EFFECT, False),
        (judge.NO_EFFECT, True, False, judge.NO_EFFECT, False),
        (judge.NO_EFFECT, False, True, judge.EFFECT, False),
        (judge.EFFECT, True, True, judge.STRICT_EFFECT, False),
        (judge.STRICT_EFFECT, True, True, judge.STRICT_EFFECT, True),
        (judge.STRICT_EFFECT, False, True, judge.STRICT_EFFECT, False),
    ],
)
def test_a_second_run_under_at_most_once_is_judged_so(effects, strict, effect, after, broken):
    """R21, R28: one that was granted under at least once breaks nothing."""
    counted, sentence = judge.broken_by_run(effects, strict=strict, effect=effect)
    assert (counted, sentence is not None) == (after, broken)


@pytest.mark.parametrize("scene", scenes(2, "all"), ids=lambda scene: scene.name)
def test_whatever_happens_is_told_in_words(scene):
    """A trace may lead through any of it: every step of a few thousand worlds has a line, and no line shows code."""
    world, names = World(scene, Bounds()), ["A", "B"]
    level = [(world.start(), world.budget.full)]
    seen, lines = set(level), set()
    while level and len(seen) < 3_000:
        place = level.pop(0)
        for step in world.steps(*place):
            lines.add(told(world, place[0], step, names))
            following = (step.world, step.left)
            if following not in seen:
                seen.add(following)
                level.append(following)
    assert len(lines) > 50
    for line in lines:
        assert line.endswith("]")
        for code in ("(", "<", "=", "None", "object"):
            assert code not in line
