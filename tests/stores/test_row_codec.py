"""Rows as bytes: what goes in comes out, and what another release wrote is refused, never guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.core._record import Guarantee, State
from twiceproof.errors import UnknownFormat
from twiceproof.stores._row_codec import decode_row, encode_row
from twiceproof.stores._rows import Row, Subject

MOMENTS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.integers(0, 2**32 - 1)
SUBJECTS = st.builds(
    Subject,
    namespace=st.text(),
    principal=st.binary(),
    operation=st.text(),
    path=st.text(st.characters()),
    key=st.binary(),
    fingerprint=st.binary(),
    guarantee=st.sampled_from(Guarantee),
    incarnation=st.binary(),
    created_at=MOMENTS,
)
ROWS = st.builds(
    Row,
    subject=SUBJECTS,
    state=st.sampled_from(State),
    number=st.integers(0, 2**64 - 1),
    nonce=st.binary(),
    lease_until=MOMENTS,
    attempts=NUMBERS,
    granted_at=MOMENTS,
    expires_at=MOMENTS,
    completed_at=st.none() | MOMENTS,
    next_attempt_at=st.none() | MOMENTS,
    cause=st.none() | st.text(),
    reconcile_nonce=st.none() | st.binary(),
    reconcile_until=st.none() | MOMENTS,
    reconcile_asked_at=st.none() | MOMENTS,
    answer=st.none() | st.binary(),
    format=st.integers(0, 2**16 - 1),
)
SUBJECT = Subject("n", b"p", "POST /é", "/é", b"k", b"f", Guarantee.AT_LEAST_ONCE, b"i", 1.0)
ROW = Row(SUBJECT, State.PARKED, 2, b"nonce", 3.0, 4, 5.0, 6.0, cause="exception", reconcile_until=7.5)
STORED = bytes.fromhex(
    "01 0001 0000000000000002 00000004"
    "4018000000000000 4008000000000000 3ff0000000000000 4014000000000000"
    "7ff8000000000000 7ff8000000000000 401e000000000000 7ff8000000000000"
    "00000001 6e 00000001 70 00000008 504f5354202fc3a9 00000003 2fc3a9 00000001 6b 00000001 66"
    "0000000d 61745f6c656173745f6f6e6365 00000001 69 00000006 7061726b6564 00000005 6e6f6e6365"
    "00000009 657863657074696f6e ffffffff ffffffff"
)


@given(ROWS)
def test_a_row_comes_back_as_it_was(row):
    """R54: every field, whatever bytes and characters it holds."""
    assert decode_row(encode_row(row)) == row


def test_the_form_of_this_release_is_fixed():
    """R53: the next release reads these very bytes."""
    assert (encode_row(ROW), decode_row(STORED)) == (STORED, ROW)


@pytest.mark.parametrize("form", [0, 2, 255])
def test_another_form_is_refused(form):
    """R17: by its first byte, whatever follows."""
    with pytest.raises(UnknownFormat):
        decode_row(bytes([form]) + STORED[1:])


def test_what_was_cut_or_grew_is_refused():
    """R17: at any length but its own, also where it ends between two fields."""
    for size in range(len(STORED)):
        with pytest.raises(UnknownFormat):
            decode_row(STORED[:size])
    with pytest.raises(UnknownFormat):
        decode_row(STORED + b"\x00")


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"parked", b"parted"), (b"at_least_once", b"at_least_twice"[:13]), (b"\xc3\xa9", b"\xff\xff")],
    ids=["state", "guarantee", "text"],
)
def test_a_word_of_another_release_is_refused(before, after):
    """R17: a state or guarantee that this one doesn't know, and text that is none."""
    with pytest.raises(UnknownFormat):
        decode_row(STORED.replace(before, after))


def test_a_field_that_must_be_set_is_refused_without():
    """R17: no namespace, no record."""
    at = STORED.index(b"\x00\x00\x00\x01n")
    with pytest.raises(UnknownFormat):
        decode_row(STORED[:at] + b"\xff\xff\xff\xff" + STORED[at + 5 :])
