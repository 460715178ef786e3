"""The path of a request in canonical spelling (R16)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twiceproof.core._path import canonical_path, encode_path

RAW_PATHS = st.lists(st.sampled_from([b"%", b"4", b"1", b"c3", b"A9", b"7e", b"2F", b"/", b"a", b"Z", b"\xe9"])).map(
    b"".join
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(b"/%7Euser", b"/~user", id="unreserved mark"),
        pytest.param(b"/%41%7a%30", b"/Az0", id="unreserved letters and digits"),
        pytest.param(b"/%2D%2e%5F", b"/-._", id="unreserved dash, dot, underscore"),
        pytest.param(b"/caf%c3%a9", b"/caf%C3%A9", id="case of an escape"),
        pytest.param(b"/x%2fy", b"/x%2Fy", id="case of an escaped slash"),
        pytest.param(b"/caf\xc3\xa9", b"/caf%C3%A9", id="raw bytes beyond ASCII"),
        pytest.param(b"/pay?dry=1", b"/pay", id="query left on"),
        pytest.param(b"?dry=1", b"", id="query without a path"),
        pytest.param(b"%7Euser", b"~user", id="escape at the beginning"),
        pytest.param(b"/pay?x=?%41", b"/pay", id="query with a question mark"),
    ],
)
def test_spellings_of_one_path_are_one(one, other):
    """Two ways to write the same path name one operation."""
    assert canonical_path(one) == canonical_path(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(b"/f/x%2Fy", b"/f/x/y", id="an escaped slash separates nothing"),
        pytest.param(b"/pay", b"/pay/", id="trailing slash"),
        pytest.param(b"/x/../y", b"/y", id="dot segments"),
        pytest.param(b"/x/%2E%2E/y", b"/y", id="escaped dot segments"),
        pytest.param(b"//pay", b"/pay", id="empty segment"),
        pytest.param(b"/Pay", b"/pay", id="case"),
        pytest.param(b"/x%20y", b"/x+y", id="plus is a plus"),
        pytest.param(b"/x%3Ay", b"/x:y", id="reserved characters stay as sent"),
        pytest.param(b"/x%3Fy", b"/x?y", id="an escaped question mark begins no query"),
        pytest.param(b"/%2541", b"/%41", id="decoded once"),
        pytest.param(b"/%%341", b"/%41", id="a malformed escape gains nothing from its neighbour"),
        pytest.param(b"/%2%46", b"/%2F", id="nor its second digit"),
    ],
)
def test_different_paths_stay_different(one, other):
    """Nothing but the spelling of escapes is folded."""
    assert canonical_path(one) != canonical_path(other)


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        (b"", ""),
        (b"/transfers", "/transfers"),
        (b"/%zz/%4/%", "/%zz/%4/%"),
        (b"/%zz%7e", "/%zz~"),
        (b"/%%7e%2f", "/%~%2F"),
        (b"/%4%31%31", "/%4%311"),
        (b"/a b\"<>'", "/a b\"<>'"),
    ],
)
def test_the_canonical_spelling(raw, canonical):
    """Malformed escapes and odd characters stay where they are, beside others that are respelled."""
    assert canonical_path(raw) == canonical


@given(st.binary())
def test_any_bytes_are_a_path(raw):
    """No path makes it fail, and the result is ASCII without a query."""
    path = canonical_path(raw)
    assert path.isascii()
    assert "?" not in path


@given(RAW_PATHS)
@example(b"%%34%31")
def test_canonical_is_final(raw):
    """A canonical path is its own canonical form, so that nothing merges in a second pass."""
    once = canonical_path(raw)
    assert canonical_path(once.encode()) == once


@pytest.mark.parametrize(
    ("decoded", "raw"),
    [
        ("/transfers/42", b"/transfers/42"),
        ("/-._~!$&'()*+,;=:@", b"/-._~!$&'()*+,;=:@"),
        ("/a b?c%", b"/a%20b%3Fc%25"),
        ("/café", b"/caf%C3%A9"),
        ("/\udcff", b"/%FF"),
        ("/\ud800", b"/%ED%A0%80"),
    ],
)
def test_a_decoded_path_is_encoded_again(decoded, raw):
    """A server without raw paths gets the one that a usual client would have sent."""
    assert encode_path(decoded) == raw


@given(st.text())
def test_an_encoded_path_is_canonical(decoded):
    """What `encode_path` returns needs no respelling."""
    assert canonical_path(encode_path(decoded)).encode() == encode_path(decoded)
