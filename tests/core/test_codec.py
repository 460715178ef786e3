"""Answers as bytes in a store (R25, R53)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twiceproof import Response
from twiceproof.core._codec import decode, encode
from twiceproof.errors import UnknownFormat

FIELDS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=6)
ANSWERS = st.builds(Response, st.integers(100, 599), FIELDS, st.one_of(st.none(), st.binary(max_size=200)))


@given(ANSWERS)
@example(Response(204, [], b""))
@example(Response(201, [(b"Link", b"a"), (b"link", b"b"), (b"Link", b"a")], b"\x00\xff"))
@example(Response(200, [(b"", b"")], None))
def test_an_answer_comes_back_as_it_was(answer):
    """Status, fields in order with repeats and case, body byte for byte; *not kept* is not *empty*."""
    assert decode(encode(answer)) == answer


@given(ANSWERS, st.data())
def test_a_truncated_answer_is_refused_or_shorter_and_nothing_else(answer, data):
    """R53: whatever is cut off, no other error comes out, and no field that is not there."""
    stored = encode(answer)
    cut = stored[: data.draw(st.integers(0, len(stored) - 1))]
    try:
        found = decode(cut)
    except UnknownFormat:
        return
    assert (found.status, found.headers) == (answer.status, answer.headers)
    assert found.body is not None
    assert (answer.body or b"").startswith(found.body)


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda rest: b"\x01\x01" + rest)))
@example(b"\x01\x01\x00\xc8\xff\xff")
@example(b"\x01\x02\x00\xc8\x00\x00")
@example(b"\x01\x00\x00\xc8\x00\x00left over")
def test_bytes_of_nobody_are_refused_or_an_answer_that_is_stored_the_same_way(stored):
    """R53: never another error; and nothing is accepted that we would not have written."""
    try:
        answer = decode(stored)
    except UnknownFormat:
        return
    assert encode(answer) == stored


@pytest.mark.parametrize("number", [0, 2, 255])
def test_another_format_number_is_refused(number):
    """R53: a later release's answer is not guessed."""
    stored = bytes([number]) + encode(Response(200, [], b"ok"))[1:]
    with pytest.raises(UnknownFormat):
        decode(stored)


@pytest.mark.parametrize("flags", [2, 3, 128])
def test_a_flag_of_a_later_release_is_refused(flags):
    """R53: it may change what the rest means."""
    stored = bytearray(encode(Response(200, [], b"ok")))
    stored[1] = flags
    with pytest.raises(UnknownFormat):
        decode(bytes(stored))


def test_a_stored_answer_has_these_bytes():
    """R53: records of this release stay readable, so its form may not drift."""
    answer = Response(201, [(b"location", b"/o/1")], b"{}")
    assert encode(answer).hex() == "010100c900010000000800000004" + b"location/o/1{}".hex()
