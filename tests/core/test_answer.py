"""An answer's body as it passes by (R26, R43, R50)."""

import pytest

from twiceproof import Response
from twiceproof.core._answer import AnswerCopy, announced_length, length_of


def copied(*parts, most=10, status=200, headers=()):
    copy = AnswerCopy(most)
    for part in parts:
        copy.add(part)
    return copy.response(status, list(headers)).body


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ((), b""),
        ((b"", b""), b""),
        ((b"01234", b"56789"), b"0123456789"),
        ((b"01234", b"567890"), None),
        ((b"x" * 11, b""), None),
        ((bytearray(b"a"), memoryview(b"b")), b"ab"),
    ],
)
def test_a_body_is_copied_up_to_its_limit(parts, body):
    """R43: one byte more, and only its size is known."""
    assert copied(*parts) == body


def test_what_is_dropped_is_not_kept_and_goes_on_being_counted():
    """A body that goes another way."""
    copy = AnswerCopy(10)
    copy.add(b"abc")
    copy.drop()
    copy.add(b"de")
    assert (copy.size, copy.response(201, [(b"etag", b"x")])) == (5, Response(201, [(b"etag", b"x")], None))


@pytest.mark.parametrize(
    ("status", "length", "body"),
    [(200, b"3", b"abc"), (200, b" 3 ", b"abc"), (200, b"4", None), (200, b"2", None), (200, b"many", b"abc")],
)
def test_a_body_that_is_not_as_long_as_announced_is_not_kept(status, length, body):
    """R50: its client saw a broken connection."""
    assert copied(b"abc", status=status, headers=[(b"Content-Length", length)]) == body


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_may_announce_any_length(status):
    """RFC 9110 §8.6: a 304 announces what the body would be."""
    assert copied(status=status, headers=[(b"content-length", b"99")]) == b""
    assert announced_length(Response(status, [(b"content-length", b"99")])) is None


@pytest.mark.parametrize(
    ("status", "field", "length"),
    [(200, b" 3 ", 3), (200, b"03", 3), (200, b"abc", None), (200, b"", None), (200, None, None), (204, b"3", None)],
)
def test_a_length_is_read_the_same_way_behind_every_door(status, field, length):
    """R50: what is no number says nothing; a number that is absurdly long is only too large."""
    assert length_of(status, field) == length
    assert length_of(200, b"9" * 5000) == int("9" * 18)
