"""What a record says about itself (R54)."""

from dataclasses import fields

import pytest

from tests.support.records import NOW, record
from twiceproof import Record, State


@pytest.mark.parametrize(
    ("state", "lease_until", "lapsed", "unsettled"),
    [
        (State.IN_FLIGHT, NOW + 0.001, False, False),
        (State.IN_FLIGHT, NOW, True, True),
        (State.IN_FLIGHT, NOW - 1, True, True),
        (State.PARKED, NOW + 1, False, True),
        (State.PARKED, NOW - 1, False, True),
        (State.WAITING, NOW - 1, False, False),
        (State.COMPLETED, NOW - 1, False, False),
    ],
)
def test_a_record_is_unsettled_when_it_is_parked_or_its_lease_is_over(state, lease_until, lapsed, unsettled):
    """R28, B11: by its own lease end, never by anybody's time-out; at that moment it is over."""
    made = record(state, lease_until=lease_until)
    assert (made.lapsed, made.unsettled) == (lapsed, unsettled)


@pytest.mark.parametrize(("until", "live"), [(None, False), (NOW - 1, False), (NOW, False), (NOW + 0.001, True)])
def test_a_second_claim_is_live_until_its_own_lease_is_over(until, live):
    """R28."""
    assert record(State.PARKED, reconcile_until=until).reconciling is live


def test_a_record_has_every_column_that_will_be_needed():
    """R54: all of them exist from the first release on."""
    names = {field.name for field in fields(Record)}
    assert names >= {
        "id",
        "namespace",
        "principal",
        "operation",
        "path",
        "key",
        "fingerprint",
        "guarantee",
        "incarnation",
        "state",
        "token",
        "lease_until",
        "attempts",
        "created_at",
        "completed_at",
        "expires_at",
        "answer",
        "format",
    }
