"""What of an answer is stored, and what its replay looks like (R25, R26, R43, R46)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof import Policy, Response
from twiceproof.core._kept import to_replay, to_store
from twiceproof.core._problems import REPLAYED

DROPPED = [
    "Connection",
    "Keep-Alive",
    "Proxy-Authenticate",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "Date",
    "Server",
    "Via",
    "Age",
    "Content-Length",
    "Alt-Svc",
    "Set-Cookie",
    "WWW-Authenticate",
    "Authentication-Info",
    "Clear-Site-Data",
    "traceparent",
    "tracestate",
    "Server-Timing",
    "X-Request-Id",
    "X-Correlation-Id",
    "RateLimit",
    "RateLimit-Policy",
    "RateLimit-Remaining",
    "X-RateLimit-Limit",
    "X-Ratelimit-Reset",
    "Access-Control-Allow-Origin",
    "Access-Control-Expose-Headers",
    "Signature",
    "Signature-Input",
    "Idempotency-Key",
    "Idempotent-Replayed",
    "Idempotency-Unprotected",
]
KEPT = [
    "Location",
    "ETag",
    "Link",
    "Content-Type",
    "Content-Language",
    "Content-Encoding",
    "Content-Location",
    "Content-Disposition",
    "Cache-Control",
    "Last-Modified",
    "Expires",
    "Vary",
    "Retry-After",
    "X-Custom",
    "Sig",
    "Rate",
    "Allow",
    "Accept-Patch",
    "Deprecation",
]


def stored_names(names, policy=None):
    headers = [(name.encode(), b"v") for name in names]
    return [name.decode() for name, _ in to_store(Response(201, headers, b""), policy or Policy()).headers]


@pytest.mark.parametrize("case", [str, str.lower, str.upper], ids=["as is", "lower", "upper"])
def test_fields_about_this_message_or_this_client_are_not_stored(case):
    """R46, B26: a replay has its own, or none."""
    assert stored_names([case(name) for name in DROPPED]) == []


def test_fields_about_the_answer_are_stored():
    """R25, B26: in order, spelled as they were."""
    assert stored_names(KEPT) == KEPT


def test_repeated_fields_stay_repeated_and_in_order():
    """R25, B27: two links are two fields, whatever bytes are in them."""
    headers = [(b"Link", b"<a>"), (b"X-Name", b"caf\xe9"), (b"Link", b"<b>"), (b"link", b"<a>")]
    assert to_store(Response(200, headers, b"x"), Policy()) == Response(200, headers, b"x")


@pytest.mark.parametrize("order", [1, -1])
def test_what_connection_names_is_dropped_wherever_it_stands(order):
    """R46: those fields belong to the connection too."""
    headers = [(b"Connection", b"close, X-Hop ,x-other"), (b"X-Hop", b"1"), (b"X-OTHER", b"2"), (b"X-End", b"3")][
        ::order
    ]
    assert to_store(Response(200, headers, b""), Policy()).headers == [(b"X-End", b"3")]


def test_the_lists_can_be_changed():
    """R46: fields to keep although they would be dropped, and the other way round; dropping wins."""
    policy = Policy(
        keep_headers=frozenset({"Set-Cookie", "RateLimit-Policy"}), drop_headers=frozenset({"ETAG", "set-cookie"})
    )
    assert stored_names(["Set-Cookie", "ratelimit-policy", "ETag", "Location", "Date"], policy) == [
        "ratelimit-policy",
        "Location",
    ]


@pytest.mark.parametrize(
    ("response", "policy"),
    [
        (Response(201, [(b"Location", b"/1"), (b"ETag", b"x")], None), Policy()),
        (Response(201, [(b"Location", b"/1"), (b"ETag", b"x")], b"body"), Policy(store_body=False)),
        (Response(201, [(b"Location", b"/1"), (b"ETag", b"x")], b"12345"), Policy(max_response_bytes=4)),
        (Response(201, [(b"content-type", b" Text/Event-Stream;x=y"), (b"location", b"/1")], b"data:"), Policy()),
    ],
    ids=["not kept", "option", "too large", "event stream"],
)
def test_without_a_body_only_status_and_location_are_stored(response, policy):
    """R26, R43."""
    assert to_store(response, policy) == Response(201, [(b"location", b"/1")], None)


def test_a_body_of_exactly_the_limit_is_stored():
    """R43: more bytes than that are not."""
    assert to_store(Response(200, [], b"1234"), Policy(max_response_bytes=4)).body == b"1234"
    assert to_store(Response(200, [], b""), Policy(max_response_bytes=0)).body == b""


def test_a_location_that_is_not_to_be_stored_is_not():
    """R46 over R26."""
    policy = Policy(store_body=False, drop_headers=frozenset({"Location"}))
    assert to_store(Response(201, [(b"location", b"/1")], b"x"), policy) == Response(201, [], None)
    assert to_store(Response(201, [], b"x"), Policy(store_body=False)) == Response(201, [], None)


@pytest.mark.parametrize(
    ("status", "body", "length"),
    [(200, b"four", b"4"), (200, b"", b"0"), (205, b"", b"0"), (204, b"", None), (304, b"", None), (303, b"", b"0")],
)
def test_a_replay_has_the_marker_and_a_length_of_its_own(status, body, length):
    """R25, B25, B28, B29: framing is made anew; 204 and 304 have none."""
    replay = to_replay(Response(status, [(b"etag", b"x")], body))
    expected = [(b"etag", b"x"), REPLAYED] + ([] if length is None else [(b"content-length", length)])
    assert replay == Response(status, expected, body)


NAMES = st.sampled_from([name.encode() for name in [*DROPPED, *KEPT]])


@given(st.lists(st.tuples(NAMES, st.sampled_from([b"a", b"close", b"etag, x-custom"]))))
def test_what_is_stored_stays_what_it_is(headers):
    """Storing the stored form changes nothing more, and no field comes from nowhere or changes places."""
    once = to_store(Response(200, headers, b"x"), Policy())
    assert to_store(once, Policy()) == once
    rest = iter(headers)
    assert all(field in rest for field in once.headers)


@pytest.mark.parametrize("status", [204, 304])
def test_a_body_that_a_status_forbids_is_neither_stored_nor_replayed(status):
    """RFC 9110 §6.4.1: its bytes would be taken for the beginning of the connection's next answer."""
    stored = to_store(Response(status, [(b"etag", b"x")], b"stray"), Policy())
    assert stored == Response(status, [(b"etag", b"x")], b"")
    replay = to_replay(Response(status, [(b"etag", b"x")], b"stray"))
    assert (replay.body, replay.header(b"content-length")) == (b"", None)
