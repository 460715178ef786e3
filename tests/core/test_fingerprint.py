"""Fingerprints: which requests are the same (R17-R20)."""

import dataclasses
import gzip
import hashlib
import hmac
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.core._fingerprint import (
    LARGE_BODY,
    MAX_ID_LENGTH,
    SMALL_BODY,
    FingerprintOptions,
    fingerprint,
    is_costly,
    refingerprint,
    same_parameters,
)
from twiceproof.core._messages import Request
from twiceproof.errors import ConfigurationError

DEFAULT = FingerprintOptions()
SECRET = b"sixteen bytes or more"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
B1 = "multipart/form-data; boundary=B1"
B2 = "multipart/form-data; boundary=other"


def ask(body=b"{}", content_type=JSON, query=b"", path=b"/pay", method="POST", **headers):
    """A request; other header fields as keywords."""
    fields = [] if content_type is None else [(b"content-type", content_type.encode())]
    fields += [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return Request(method, path, query, fields, body if isinstance(body, bytes) else body.encode())


def json_body(text):
    return ask(text)


def part(name, content, boundary="B1", more=""):
    return f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{content}\r\n'


DEEP = "[" * 128 + "]" * 128
SAME = [
    pytest.param(json_body('{"x":1,"y":{"z":2,"w":3}}'), json_body('{"y":{"w":3,"z":2},"x":1}'), id="member order"),
    pytest.param(json_body('{"x": [1, 2]}'), json_body('\n{ "x":[1,2]}'), id="white space"),
    pytest.param(json_body("[1]"), json_body("[1.0]"), id="fraction of zero"),
    pytest.param(json_body("[1]"), json_body("[1e0]"), id="exponent of zero"),
    pytest.param(json_body("[2.50]"), json_body("[2.5]"), id="trailing zero"),
    pytest.param(json_body("[-0]"), json_body("[0]"), id="minus zero"),
    pytest.param(json_body("[-0.0]"), json_body("[0]"), id="minus zero with a fraction"),
    pytest.param(json_body("[0e7]"), json_body("[0]"), id="zero with an exponent"),
    pytest.param(json_body("[10e999999998]"), json_body("[1e999999999]"), id="shifted exponent"),
    pytest.param(json_body('["\\u00fc"]'), json_body('["ü"]'), id="escaped character"),
    pytest.param(json_body('{"\\u0078":1}'), json_body('{"x":1}'), id="escaped name"),
    pytest.param(json_body('{"x":'), json_body('{"x":'), id="broken JSON, same bytes"),
    pytest.param(json_body(""), json_body(""), id="no body"),
    pytest.param(json_body('["\\ud800"]'), json_body('["\\ud800"]'), id="lone surrogate, same bytes"),
    pytest.param(json_body("[1e99999999999999999999]"), json_body("[1e99999999999999999999]"), id="20-digit exponent"),
    pytest.param(json_body(DEEP), json_body(f" {DEEP}"), id="depth 128"),
    pytest.param(ask(content_type="application/json; charset=utf-8"), ask(), id="content type with a parameter"),
    pytest.param(ask(content_type="Application/JSON"), ask(), id="content type in other case"),
    pytest.param(ask(content_type=" application/json ;x"), ask(), id="content type with white space"),
    pytest.param(
        ask('{"x":1,"y":2}', "application/vnd.pay+json"), ask('{"y":2,"x":1}', "application/vnd.pay+json"), id="+json"
    ),
    pytest.param(ask('{"x":1}', "text/json"), ask('{"x": 1}', "text/json"), id="text/json"),
    pytest.param(ask(query=b"p=1&q=2"), ask(query=b"q=2&p=1"), id="query order"),
    pytest.param(ask(query=b"p"), ask(query=b"p="), id="query without equals sign"),
    pytest.param(ask(query=b"p=%7E"), ask(query=b"p=~"), id="query escapes"),
    pytest.param(ask(query=b"p=+"), ask(query=b"p=%20"), id="query plus"),
    pytest.param(ask(query=b"p=1&&q=2"), ask(query=b"p=1&q=2"), id="query with an empty segment"),
    pytest.param(ask(query=b"p=%zz"), ask(query=b"p=%25zz"), id="malformed percent sign"),
    pytest.param(ask("p=%7E1", FORM), ask("p=~1", FORM), id="form escapes"),
    pytest.param(ask(path=b"/p%41y"), ask(path=b"/pAy"), id="path escapes"),
    pytest.param(
        ask(part("f", "hi", more='; filename="a"\r\nContent-Type: text/plain') + "--B1--\r\n", B1),
        ask(part("f", "hi", "other", more='; filename="a"\r\nContent-Type: text/plain') + "--other--\r\n", B2),
        id="multipart boundary",
    ),
    pytest.param(ask(gzip.compress(b"[1]"), content_encoding=b"gzip"), ask("[1]"), id="gzip and plain"),
    pytest.param(ask("[1]", content_encoding=b"identity"), ask("[1]"), id="identity"),
    pytest.param(
        ask(gzip.compress(b"[1]", mtime=1), content_encoding=b"gzip"),
        ask(gzip.compress(b"[1]", mtime=2), content_encoding=b"gzip"),
        id="gzip of another time",
    ),
    pytest.param(
        ask(gzip.compress(b"hello"), "text/plain", content_encoding=b"x-gzip"),
        ask(zlib.compress(b"hello"), "text/plain", content_encoding=b"deflate"),
        id="coding of opaque bytes",
    ),
    pytest.param(ask(accept=b"text/html"), ask(), id="other fields"),
    pytest.param(ask(x_request_id=b"1", x_correlation_id=b"2"), ask(), id="fields with names as long"),
]

LONG = "7" * 5000
OTHER = [
    pytest.param(json_body('{"sum":70}'), json_body('{"sum":71}'), id="value"),
    pytest.param(json_body("[1,2]"), json_body("[2,1]"), id="array order"),
    pytest.param(json_body("[9007199254740993]"), json_body("[9007199254740992]"), id="beyond 2^53"),
    pytest.param(json_body("[1]"), json_body('["1"]'), id="number and string"),
    pytest.param(json_body("[true]"), json_body("[1]"), id="true and 1"),
    pytest.param(json_body('{"x":null}'), json_body("{}"), id="null and missing"),
    pytest.param(json_body("[0.1]"), json_body("[0.1000000000000000055]"), id="same double"),
    pytest.param(json_body("[1e999999999]"), json_body("[1e999999998]"), id="huge exponents"),
    pytest.param(
        json_body("[1e1000000000000000000]"), json_body("[10e999999999999999999]"), id="19-digit exponent is bytes"
    ),
    pytest.param(json_body(f"[{LONG}]"), json_body(f"[{LONG[:-1]}8]"), id="5,000 digits"),
    pytest.param(json_body('["ü"]'), json_body('["u\u0308"]'), id="composed and decomposed"),
    pytest.param(json_body('{"x":1,"x":2}'), json_body('{"x":2}'), id="duplicate names"),
    pytest.param(json_body('{"x":1,"x":2}'), json_body('{"x":1, "x":2}'), id="duplicate names, other spacing"),
    pytest.param(json_body('{"x":'), json_body('{"x": '), id="broken JSON"),
    pytest.param(json_body("[NaN]"), json_body("[NaN ]"), id="NaN"),
    pytest.param(json_body('["\\ud800"]'), json_body('["\\uD800"]'), id="lone surrogate, other spelling"),
    pytest.param(json_body(f"[{DEEP}]"), json_body(f" [{DEEP}]"), id="depth 129"),
    pytest.param(ask('{"x":1}', None), ask('{"x": 1}', None), id="no content type is bytes"),
    pytest.param(ask('{"x":1}', None), ask('{"x":1}'), id="no content type and JSON"),
    pytest.param(ask("x=1", FORM), ask("x=1", "text/plain"), id="form and text"),
    pytest.param(ask("{}", "text/json"), ask("{}"), id="two JSON types"),
    pytest.param(ask('{"x":1}', "application/jsonp"), ask('{"x": 1}', "application/jsonp"), id="nearly JSON"),
    pytest.param(ask('{"x":1}', "application/jsonX"), ask('{"x": 1}', "application/jsonX"), id="one letter more"),
    pytest.param(ask('{"x":1}', f"{JSON}\x0c"), ask('{"x": 1}', f"{JSON}\x0c"), id="white space that is none in HTTP"),
    pytest.param(ask(query=b"x=1"), ask(query=b"x=2"), id="query value"),
    pytest.param(ask(query=b"dry=1"), ask(), id="query added"),
    pytest.param(ask(query=b"x="), ask(), id="query with a blank value"),
    pytest.param(ask(query=b"x=1&x=2"), ask(query=b"x=2&x=1"), id="repeated query name"),
    pytest.param(ask(query=b"x=%FF"), ask(query=b"x=%FE"), id="query bytes"),
    pytest.param(ask("x=1&y=2", FORM), ask("y=2&x=1", FORM), id="form order"),
    pytest.param(ask("x=%FF", FORM), ask("x=%FE", FORM), id="form bytes"),
    pytest.param(ask("x=1;y=2", FORM), ask("x=1&y=2", FORM), id="semicolon in a form"),
    pytest.param(ask(part("f", "hi") + "--B1--", B1), ask(part("f", "ho") + "--B1--", B1), id="multipart content"),
    pytest.param(
        ask(part("f", "1") + part("g", "2") + "--B1--", B1),
        ask(part("g", "2") + part("f", "1") + "--B1--", B1),
        id="multipart order",
    ),
    pytest.param(ask("broken", B1), ask("broken ", B1), id="malformed multipart is bytes"),
    pytest.param(ask(path=b"/pay"), ask(path=b"/pay/"), id="path"),
    pytest.param(ask(method="POST"), ask(method="PATCH"), id="method"),
    pytest.param(ask(method="POST"), ask(method="post"), id="case of the method"),
    pytest.param(ask(path=b"/pay", query=b"a=1"), ask(path=b"/pay1:a1:1"), id="query that runs into the path"),
    pytest.param(ask("x", content_encoding=b"br"), ask("x", content_encoding=b"zstd"), id="codings not undone"),
    pytest.param(ask("x", "a/b", content_encoding=b"gzip"), ask("x", "a/b"), id="broken gzip and plain"),
    pytest.param(
        ask("[1]", content_encoding=b"br"), ask("[1] ", content_encoding=b"br"), id="JSON under an unknown coding"
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_request_again(one, other):
    """What means the same has the same fingerprint (R17-R19, B13, B15)."""
    assert fingerprint(one, DEFAULT) == fingerprint(other, DEFAULT)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_another_request(one, other):
    """What may mean something else has another fingerprint (R17-R19, B13, B15)."""
    assert fingerprint(one, DEFAULT) != fingerprint(other, DEFAULT)


def test_bytes_that_spell_a_canonical_form_are_not_one():
    """A comparison of bytes and one of meaning are never equal, whatever the bytes (R19)."""
    broken, whole = ask('"\\ud800', JSON), ask('"x"', JSON)
    assert fingerprint(broken, DEFAULT) != fingerprint(whole, DEFAULT)
    form = ask("a=1", FORM)
    spelled = dataclasses.replace(form, body=b"1:a1:1", headers=[*form.headers, (b"content-encoding", b"br")])
    assert fingerprint(form, DEFAULT) != fingerprint(spelled, DEFAULT)


@pytest.mark.parametrize("name", [b"content-type", b"Content-Type", b"CONTENT-TYPE"])
def test_field_names_have_no_case(name):
    """The content type is found however its name is written."""
    one = Request("POST", b"/pay", headers=[(name, b"application/json")], body=b"[1]")
    assert fingerprint(one, DEFAULT) == fingerprint(ask("[ 1 ]"), DEFAULT)


@pytest.mark.parametrize("name", [b"content-encoding", b"Content-Encoding"])
def test_the_coding_is_found_in_any_case(name):
    """The same for the content coding."""
    fields = [(b"content-type", b"application/json"), (name, b"GZIP")]
    one = Request("POST", b"/pay", headers=fields, body=gzip.compress(b"[1]"))
    assert fingerprint(one, DEFAULT) == fingerprint(ask("[1]"), DEFAULT)


def digest_of(*parts):
    """The fingerprint of a POST to /pay without a query, by hand: media type, form, fields, body."""
    whole = [b"POST", b"/pay", b"", *parts]
    return b"1:" + hashlib.sha256(struct.pack(">7Q", *map(len, whole)) + b"".join(whole)).hexdigest().encode()


def test_two_content_types_are_none():
    """A request with two content types is neither; its body is compared as bytes."""
    twice = [(b"content-type", b"application/json; a=b"), (b"content-type", b"text/plain")]
    one = Request("POST", b"/pay", headers=twice, body=b"[1]")
    assert fingerprint(one, DEFAULT) != fingerprint(dataclasses.replace(one, body=b"[ 1]"), DEFAULT)
    assert fingerprint(one, DEFAULT) != fingerprint(ask("[1]"), DEFAULT)
    assert fingerprint(one, DEFAULT) != fingerprint(dataclasses.replace(one, headers=twice[:1]), DEFAULT)
    assert fingerprint(one, DEFAULT) == digest_of(b"application/json; a=b, text/plain", b"bytes", b"", b"[1]")


def test_a_fingerprint_is_an_id_and_a_digest():
    """The digest is SHA-256 over framed parts, so that it can be made again in any language."""
    parts = b"POST", b"/pay", b"1:a1:1", b"application/json", b"json", b"", b'{"x":1}'
    digest = hashlib.sha256(struct.pack(">7Q", *map(len, parts)) + b"".join(parts)).hexdigest()
    request = ask('{ "x": 1.0 }', query=b"a=1")
    assert fingerprint(request, DEFAULT) == b"1:" + digest.encode()
    keyed = FingerprintOptions(secret=SECRET)
    digest = hmac.digest(SECRET, struct.pack(">7Q", *map(len, parts)) + b"".join(parts), "sha256").hex()
    assert fingerprint(request, keyed) == f"{keyed.id}:{digest}".encode()


@pytest.mark.parametrize(
    ("request_", "digest"),
    [
        (
            ask('{"b":[1.50,1e400,"\\u00fc"],"a":{}}'),
            "0a62345320729cb4d450ae0c790a62b9675be34b705a40665ce3c82a1e080743",
        ),
        (
            ask("a=%zz&b=+", FORM, query=b"z=1&a=2", path=b"/%7eu"),
            "a4b5693014fed37c71c974c8c47284a3bf0d542775ba1a796c88b9df256df674",
        ),
        (ask(part("f", "hi") + "--B1--\r\n", B1), "fca516919c9aab8f35c73fa8c05797637af78186ae842187c01fc1dcb421d5a6"),
        (
            ask(b"\x00\xff", None, content_encoding=b"x-gzip, BR"),
            "b176abb12399ba52f978d5aa1e989e7de543748de02c34e3e34110875ba8a4e9",
        ),
        (ask(b"\x00\xff", None), "1c0bc2a839e58003c405954509e3fe18ac69ef9f7e2383e3f5f2268d1ccbe190"),
    ],
)
def test_fingerprints_outlive_a_release(request_, digest):
    """Records of earlier releases are compared with these very digests: a change needs another version (R53)."""
    assert fingerprint(request_, DEFAULT) == f"1:{digest}".encode()


# ---- options ---------------------------------------------------------------------------------------------------------


def tenant_and_sum(request):
    return request.body[:3]


CALL: dict[str, Any] = {"function": tenant_and_sum, "name": "tenant+sum", "version": "2"}
OPTIONS = [
    pytest.param({}, "1", id="default"),
    pytest.param({"vary_headers": ("X-Tenant", "accept", "x-tenant")}, "1;vary=accept,x-tenant", id="vary"),
    pytest.param(
        {"fields": ("/sum", "/a,b;c:d=%", "/a~1b", "/ü")},
        "1;fields=/a%2Cb%3Bc%3Ad%3D%25,/a~1b,/sum,/%C3%BC",
        id="fields",
    ),
    pytest.param({"fields": ("",)}, "1;fields=", id="whole document as a field"),
    pytest.param({"raw": True}, "1;raw", id="raw"),
    pytest.param(CALL, "1;call=tenant%2Bsum@2", id="function"),
    pytest.param({"secret": SECRET}, "1;hmac=f67e0498", id="secret"),
    pytest.param(
        {"secret": SECRET, "raw": True, "vary_headers": ("accept",)}, "1;vary=accept;raw;hmac=f67e0498", id="several"
    ),
]
REQUESTS = [ask('{"sum":1,"x":2}', accept=b"text/html"), ask("a=1", FORM), ask(b"\xff", "image/png")]


@pytest.mark.parametrize(
    ("body", "given_", "parts"),
    [
        ("[ 1 ", {}, [b"bytes", b"", b"[ 1 "]),
        ("[ 1 ]", {"raw": True}, [b"bytes", b"", b"[ 1 ]"]),
        ("[ 1 ]", {"vary_headers": ("x-tenant", "accept", "x-no")}, [b"json", b"3:*/*-4:a, b", b"[1]"]),
        ("[ 1 ]", {"fields": ("/0",)}, [b"fields", b"", b'[["/0",1]]']),
        ("[ 1 ]", CALL, [b"call", b"", b"[ 1"]),
    ],
    ids=["broken", "raw", "vary", "fields", "function"],
)
def test_fingerprints_with_options_outlive_a_release(body, given_, parts):
    """R17, R53: the digest is over the same framed parts, whatever the options."""
    request = ask(body, accept=b"*/*", x_tenant=b" a", X_Tenant=b"b")
    _, _, digest = digest_of(b"application/json", *parts).partition(b":")
    assert fingerprint(request, FingerprintOptions(**given_)).endswith(b":" + digest)


@pytest.mark.parametrize(
    ("given_", "id_"),
    [
        *OPTIONS,
        pytest.param(CALL | {"name": "\ud800"}, "1;call=%ED%A0%80@2", id="function with a name that is no UTF-8"),
    ],
)
def test_an_id_names_the_options(given_, id_):
    """The id holds the algorithm and its parameters, in one order and without a colon (R17)."""
    options = FingerprintOptions(**given_)
    assert options.id == id_
    assert options.id.isascii()
    assert ":" not in options.id
    assert fingerprint(REQUESTS[0], options).startswith(options.id.encode() + b":")


@pytest.mark.parametrize("request_", REQUESTS, ids=["json", "form", "bytes"])
@pytest.mark.parametrize(("stored", "_"), OPTIONS)
def test_a_record_of_other_options_is_still_compared(stored, _, request_):
    """A process that has the same function and secret, but else other options, makes the stored fingerprint (R17)."""
    made = fingerprint(request_, FingerprintOptions(**stored))
    for own in (CALL | {"secret": SECRET}, stored | {"vary_headers": ("x-other",)}):
        assert refingerprint(request_, made, FingerprintOptions(**own)) == made
    other = dataclasses.replace(request_, body=b"other", method="PATCH")
    assert refingerprint(other, made, FingerprintOptions(**stored)) not in {made, None}


@pytest.mark.parametrize(
    ("stored", "own"),
    [
        pytest.param(CALL, {}, id="function unknown"),
        pytest.param(CALL, CALL | {"version": "3"}, id="function of another version"),
        pytest.param(CALL, CALL | {"name": "other"}, id="function of another name"),
        pytest.param({"secret": SECRET}, {}, id="no secret"),
        pytest.param({"secret": SECRET}, {"secret": SECRET + b"!"}, id="another secret"),
    ],
)
def test_what_this_process_does_not_have_is_unknown(stored, own):
    """Without the function or the secret of a record, nobody can say whether the request is the same (R17)."""
    made = fingerprint(ask(), FingerprintOptions(**stored))
    assert refingerprint(ask(), made, FingerprintOptions(**own)) is None


DIGEST = b"a" * 64


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"1",
        DIGEST,
        b":" + DIGEST,
        b"1:" + DIGEST[1:],
        b"1:" + DIGEST + b"a",
        b"1:" + DIGEST.upper(),
        b"1:" + DIGEST + b"\n",
        b"2:" + DIGEST,
        b"01:" + DIGEST,
        b"1;:" + DIGEST,
        b"1;later=1:" + DIGEST,
        b"1;raw=1:" + DIGEST,
        b"1;raw;raw:" + DIGEST,
        b"1;RAW:" + DIGEST,
        b"1;vary:" + DIGEST,
        b"1;vary=:" + DIGEST,
        b"1;vary=Accept:" + DIGEST,
        b"1;vary=b,a:" + DIGEST,
        b"1;vary=a%2:" + DIGEST,
        b"1;fields=a:" + DIGEST,
        b"1;fields=/a;vary=a:" + DIGEST,
        b"1;raw;fields=/a:" + DIGEST,
        b"1;call=:" + DIGEST,
        b"1;hmac=:" + DIGEST,
        b"1;vary=" + b"a" * MAX_ID_LENGTH + b":" + DIGEST,
        b"1;fields=/%FF:" + DIGEST,
        b"1;raw\xff:" + DIGEST,
    ],
)
def test_an_unknown_id_is_neither_equal_nor_different(stored):
    """An algorithm or a parameter of a later release, or no fingerprint at all, gives no answer (R17)."""
    assert refingerprint(ask(), stored, DEFAULT) is None
    assert refingerprint(ask(), stored, FingerprintOptions(**CALL, secret=SECRET)) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b"1:" + DIGEST, b"1:" + DIGEST[::-1], True),
        (b"1;raw:aa", b"1;raw:bb", True),
        (b"1:" + DIGEST, b"1;raw:" + DIGEST, False),
        (b"1:aa:bb", b"1:bb", False),
    ],
)
def test_only_what_was_made_in_one_way_differs_by_the_request_alone(one, other, same):
    """R17, R24: what was made in another way, or can't be read, is not a mismatch yet."""
    assert same_parameters(one, other) is same_parameters(other, one) is same


@given(st.binary(max_size=80))
def test_no_stored_bytes_make_it_fail(stored):
    """Whatever a store returns, there is a fingerprint or none."""
    for text in (stored, stored + b":" + DIGEST, b"1;fields=" + stored + b":" + DIGEST):
        made = refingerprint(ask(), text, DEFAULT)
        assert made is None or made.rpartition(b":")[0] == text.rpartition(b":")[0]


@given(
    st.sampled_from(["POST", "p\ud800"]),
    st.binary(),
    st.binary(),
    st.lists(st.tuples(st.sampled_from([b"content-type", b"Content-Encoding", b"x"]), st.binary()), max_size=3),
    st.binary(),
)
def test_no_request_makes_it_fail(method, path, query, headers, body):
    """Every request has a fingerprint, the same one each time."""
    request = Request(method, path, query, headers, body)
    for options in (DEFAULT, FingerprintOptions(fields=("/a",), vary_headers=("x",))):
        assert fingerprint(request, options) == fingerprint(request, options)


VARY = FingerprintOptions(vary_headers=("x-tenant", "accept"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param({}, {}, True, id="both missing"),
        pytest.param({"x_tenant": b"a"}, {"x_tenant": b" a "}, True, id="white space around"),
        pytest.param({"X_Tenant": b"a"}, {"x_tenant": b"a"}, True, id="case of the name"),
        pytest.param({"x_tenant": b"a", "X_tenant": b"b"}, {"x_tenant": b"a, b"}, True, id="two lines or one"),
        pytest.param({"x_tenant": b"a"}, {"x_tenant": b"b"}, False, id="value"),
        pytest.param({"x_tenant": b"a"}, {"x_tenant": b"A"}, False, id="case of the value"),
        pytest.param({"x_tenant": b"X1X"}, {"x_tenant": b"1"}, False, id="a letter at the edge"),
        pytest.param({"x_tenant": b"a\x0c"}, {"x_tenant": b"a"}, False, id="white space that is none in HTTP"),
        pytest.param({"x_tenant": b""}, {}, False, id="empty and missing"),
        pytest.param({"x_tenant": b"a"}, {"accept": b"a"}, False, id="under another name"),
        pytest.param({"x_tenant": b"-"}, {}, False, id="dash and missing"),
        pytest.param({"x_other": b"a"}, {}, True, id="a field that is not configured"),
    ],
)
def test_configured_fields_count(one, other, same):
    """The values of `vary_headers` are part of the meaning, and no other field's (R17)."""
    assert (fingerprint(ask(**one), VARY) == fingerprint(ask(**other), VARY)) is same


FIELDS = FingerprintOptions(fields=("/to", "/sum/cents"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"to":"b","note":1}', '{"note":2,"to":"b"}', True),
        ('{"sum":{"cents":1.0}}', '{"sum":{"cents":1}}', True),
        ('{"to":"b"}', '{"to":"c"}', False),
        ('{"to":null}', "{}", False),
        ('{"to":"b"}', '{"sum":{"cents":"b"}}', False),
        ('{"sum":{"cents":1e400}}', '{"sum":{"cents":1e401}}', False),
        ('{"to":"b","x":1,"x":2}', '{"to":"b"}', False),
        ('{"to":"\\ud800"}', '{"to":"\\uD800"}', False),
        ('{"to":"b"', '{"to":"b" ', False),
        ("[]", "3", True),
    ],
)
def test_selected_fields_count_alone(one, other, same):
    """With `fields`, only these values of a JSON body matter; a body without a form counts whole (R20)."""
    assert (fingerprint(ask(one), FIELDS) == fingerprint(ask(other), FIELDS)) is same


def test_selection_is_for_json():
    """Other bodies, and all else of the request, count as ever (R20)."""
    assert fingerprint(ask("to=b&x=1", FORM), FIELDS) != fingerprint(ask("to=b&x=2", FORM), FIELDS)
    assert fingerprint(ask(query=b"dry=1"), FIELDS) != fingerprint(ask(), FIELDS)
    assert FingerprintOptions(fields=("/b", "/a", "/b")) == FingerprintOptions(fields=("/a", "/b"))


def test_raw_bytes_are_compared_as_received():
    """With `raw`, nothing of the body is interpreted, its coding included (R20)."""
    raw = FingerprintOptions(raw=True)
    assert fingerprint(ask("[1]"), raw) != fingerprint(ask("[ 1]"), raw)
    assert fingerprint(ask("[1]"), raw) == fingerprint(ask("[1]"), raw)
    assert fingerprint(ask(gzip.compress(b"[1]"), content_encoding=b"gzip"), raw) != fingerprint(ask("[1]"), raw)
    assert fingerprint(ask("x"), raw) != fingerprint(ask("x", content_encoding=b"gzip"), raw)
    assert fingerprint(ask(query=b"a=1&b=2"), raw) == fingerprint(ask(query=b"b=2&a=1"), raw)


def test_a_function_replaces_the_body_only():
    """With `function`, its result is compared in place of the body; path and query still count (R20)."""
    call = FingerprintOptions(**CALL)
    assert fingerprint(ask("abcd"), call) == fingerprint(ask("abce"), call)
    assert fingerprint(ask("abcd"), call) != fingerprint(ask("abdd"), call)
    assert fingerprint(ask("abcd", query=b"dry=1"), call) != fingerprint(ask("abcd"), call)
    assert fingerprint(ask("abcd", path=b"/x"), call) != fingerprint(ask("abcd"), call)


def test_a_secret_makes_another_digest():
    """With `secret`, nobody without it can try bodies against a stored fingerprint; it is never shown (R20)."""
    keyed = FingerprintOptions(secret=SECRET)
    others = FingerprintOptions(secret=SECRET + b"!")
    digests = {fingerprint(ask(), options).rpartition(b":")[2] for options in (DEFAULT, keyed, others)}
    assert len(digests) == 3
    assert keyed.id != others.id
    assert "sixteen" not in repr(keyed) + keyed.id
    assert hashlib.sha256(SECRET).hexdigest()[:8] not in keyed.id


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"fields": ("/a",), "raw": True}, "one of them"),
        (CALL | {"raw": True}, "one of them"),
        (CALL | {"fields": ("/a",)}, "one of them"),
        (CALL | {"name": ""}, "give both"),
        (CALL | {"version": ""}, "give both"),
        ({"name": "x"}, "give function"),
        ({"version": "1"}, "give function"),
        ({"secret": b"short"}, "at least 16"),
        ({"secret": b"x" * 15}, "at least 16"),
        ({"fields": ("sum",)}, "JSON pointer"),
        ({"fields": ("/a", "/~x")}, "JSON pointer"),
        ({"fields": ("/\ud800",)}, "JSON pointer"),
        ({"fields": "/sum"}, "give a tuple"),
        ({"vary_headers": "accept"}, "give a tuple"),
        ({"vary_headers": ("accept:",)}, "field name"),
        ({"vary_headers": ("",)}, "field name"),
        ({"fields": tuple(f"/field-{n}" for n in range(200))}, "named function"),
    ],
)
def test_options_that_can_not_be_kept_are_refused(given_, said):
    """A wrong option fails when it is made, in a sentence that says what to change."""
    with pytest.raises(ValueError, match=said):
        FingerprintOptions(**given_)


def test_options_are_values():
    """Options compare by what they say, and nobody can change them under a policy."""
    assert FingerprintOptions(raw=True) == FingerprintOptions(raw=True) != DEFAULT
    assert len({DEFAULT, FingerprintOptions(), VARY}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT.raw = True  # type: ignore[misc]


def test_sixteen_bytes_and_the_longest_id_will_do():
    """The bounds are exact."""
    assert FingerprintOptions(secret=b"x" * 16).id
    room = MAX_ID_LENGTH - len("1;fields=/")
    longest = FingerprintOptions(fields=("/" + "a" * room,))
    assert len(longest.id) == MAX_ID_LENGTH
    assert refingerprint(ask(), fingerprint(ask(), longest), DEFAULT) is not None
    with pytest.raises(ValueError, match="named function"):
        FingerprintOptions(fields=("/" + "a" * (room + 1),))


@pytest.mark.parametrize(
    ("request_", "costly"),
    [
        (ask(b"x" * LARGE_BODY), False),
        (ask(b"x" * (LARGE_BODY + 1)), True),
        (ask(b"x" * (SMALL_BODY + 1), content_encoding=b"gzip"), True),
        (ask(b"x" * SMALL_BODY, content_encoding=b"gzip"), False),
        (ask(b"x" * (SMALL_BODY + 1), content_encoding=b"identity"), False),
    ],
)
def test_costly_requests_are_told(request_, costly):
    """What may take long is known before it is done: large bodies, and those that may grow."""
    assert is_costly(request_) is costly


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"secret": "a text of sixteen"}, "secret must be bytes"),
        ({"raw": "yes"}, "raw must be True or False"),
        ({"function": 5, "name": "n", "version": "1"}, "function must be a callable"),
    ],
)
def test_an_option_of_the_wrong_type_is_a_sentence(options, sentence):
    """What is wrong is said at start-up, with the option to change."""
    with pytest.raises(ConfigurationError, match=sentence):
        FingerprintOptions(**options)
