"""Canonical forms of JSON, forms, queries, multipart and content codings (R18, R19)."""

import gzip
import json
import time
import tracemalloc
import zlib
from decimal import Decimal
from random import Random
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twiceproof.core import _canonical
from twiceproof.core._canonical import (
    Json,
    canonical_form,
    canonical_json,
    canonical_multipart,
    canonical_query,
    content_codings,
    decode_content,
    pointer_tokens,
    read_json,
    select_json,
)

# ---- JSON --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (b' {"b":[1 , true,null],\n"a":"x"}\t\r\n', b'{"a":"x","b":[1,true,null]}'),
        (b'{"b":{"d":1,"c":2},"a":{}}', b'{"a":{},"b":{"c":2,"d":1}}'),
        (rb'"\u00e9\/\u0041\n\ud83d\ude00"', '"é/A\\n😀"'.encode()),
        (rb'{"\u0062":1,"a":2}', b'{"a":2,"b":1}'),
        (b"[]", b"[]"),
        (b"false", b"false"),
        (b"-0", b"0"),
        (b"12.50", b"12.5"),
        (b"1E2", b"100"),
    ],
)
def test_one_text_for_one_value(text, canonical):
    """Order of members, white space, escapes and spelling of numbers are gone; arrays keep their order."""
    assert canonical_json(text) == canonical


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"  ", id="blank"),
        pytest.param(b'{"a":', id="cut short"),
        pytest.param(b"{} {}", id="two values"),
        pytest.param(b"[1,]", id="trailing comma"),
        pytest.param(b"{'a':1}", id="single quotes"),
        pytest.param(b"[01]", id="leading zero"),
        pytest.param(b"[+1]", id="plus sign"),
        pytest.param(b"[1.]", id="no fraction"),
        pytest.param(b'"a\tb"', id="raw tab in a string"),
        pytest.param(b"\x0b1", id="other white space"),
        pytest.param("\u00a01".encode(), id="no-break space"),
        pytest.param("[\u0661]".encode(), id="digit of another script"),
        pytest.param(b"[NaN]", id="NaN"),
        pytest.param(b"[Infinity]", id="infinity"),
        pytest.param(b"[-Infinity]", id="minus infinity"),
        pytest.param(b"\xef\xbb\xbf{}", id="BOM"),
        pytest.param('{"a":1}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b'"\xff"', id="not UTF-8"),
        pytest.param(b'"\xed\xa0\x80"', id="surrogate as UTF-8"),
        pytest.param(rb'"\ud83d"', id="lone high surrogate"),
        pytest.param(rb'{"\ude00":1}', id="lone low surrogate in a name"),
        pytest.param(rb'"\ude00\ud83d"', id="surrogates in the wrong order"),
        pytest.param(b'{"a":1,"a":1}', id="duplicate name"),
        pytest.param(rb'[{"a":1,"\u0061":2}]', id="duplicate name, escaped"),
        pytest.param(rb'{"a":1,"a":"\u003a"}', id="duplicate name, and an escaped colon"),
        pytest.param(b"1e1234567890123456789", id="exponent of 19 digits"),
        pytest.param(b"1e-1234567890123456789", id="negative exponent of 19 digits"),
        pytest.param(b"0e1234567890123456789", id="zero with such an exponent"),
        pytest.param(b"[" * 129 + b"]" * 129, id="depth 129"),
        pytest.param(b"[[]," + b"[" * 128 + b"]" * 129, id="depth 129 after a sibling"),
        pytest.param(b'{"a":' * 65 + b"[" * 64 + b"]" * 64 + b"}" * 65, id="depth 129, mixed"),
        pytest.param(rb'["\\\"[",' + b"[" * 128 + b"]" * 128 + b"]", id="depth 129 after escapes"),
        pytest.param(b"[" * 100_000, id="nothing but brackets"),
        pytest.param(b"X[]", id="a letter before"),
        pytest.param(b"[]X", id="a letter after"),
    ],
)
def test_what_has_no_canonical_form(text):
    """Where the value is in doubt there is none, and bytes are compared (R18)."""
    assert canonical_json(text) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"[" * 128 + b"]" * 128, id="depth 128"),
        pytest.param(b"[[]," + b"[" * 127 + b"]" * 128, id="depth 128 after a sibling"),
        pytest.param(b'{"a":' * 64 + b"[" * 64 + b"]" * 64 + b"}" * 64, id="depth 128, mixed"),
        pytest.param(b"[" + b",".join([b"[{}]"] * 200) + b"]", id="wide"),
        pytest.param(b'["' + b"[{" * 200 + b'"]', id="brackets in a string"),
        pytest.param(b'"' + b"[{" * 200 + b'"', id="brackets in a string, and nowhere else"),
        pytest.param(b'["\\"' + b"[{" * 200 + b'\\\\","' + b"[" * 200 + b'"]', id="brackets among escapes"),
        pytest.param(b"1e123456789012345678", id="exponent of 18 digits"),
        pytest.param(rb'"\\ud800"', id="no surrogate, but a backslash"),
    ],
)
def test_what_still_has_one(text):
    """The bounds of R18 are exact, and strings are not mistaken for structure."""
    assert canonical_json(text) is not None


ONE = ["1", "1.0", "1e0", "1E+0", "10e-1", "0.1e1", "1.00000000000000000000000000", "1" + "0" * 50 + "e-50"]
SAME_NUMBERS = [
    ONE,
    ["0", "-0", "0.0", "-0.0", "0e7", "-0E-7", "0." + "0" * 60],
    ["-12.5", "-125e-1", "-12.50", "-0.125e+2", "-12." + "5" + "0" * 40],
    ["0.1", "1e-1", "0.10", "100e-3"],
    ["0.00000000000001", "1e-14", "10e-15"],
    ["0.000000000000001", "1e-15", "10e-16"],
    ["123456789.012345", "123456789012345e-6", "123456789.0123450"],
    ["123456789.0123456", "1234567890123456e-7"],
    ["1" + "0" * 39, "1e39", "10e38", "0.1e40"],
    ["1" + "0" * 40, "1e40", "10e39", "1" + "0" * 40 + ".0"],
    ["9" * 40, "9" * 40 + ".0", "9" * 40 + "e0"],
    ["9" * 41, "9" * 41 + ".0", "9" * 41 + "e0", "9" * 41 + "0e-1"],
    ["7" * 5000, "7" * 5000 + ".0", "7" * 5000 + "00e-2"],
    ["10e999999998", "1e999999999", "0.01e1000000001"],
    ["10e999999999999999998", "1e999999999999999999"],
    ["1e-999999999999999999", "0.1e-999999999999999998"],
]


@pytest.mark.parametrize("texts", SAME_NUMBERS, ids=lambda texts: texts[0][:20])
def test_one_number_has_one_form(texts):
    """Every spelling of a number, with either sign, gives the same bytes."""
    for sign in ("", "-"):
        signed = [sign + text if text[0] != "-" or not sign else text[1:] for text in texts]
        for frame in ("[{}]", "{}"):
            forms = {canonical_json(frame.format(text).encode()) for text in signed}
            assert len(forms) == 1
            assert None not in forms


def test_numbers_beyond_the_plain_ones_are_tagged():
    """Which numbers are written plainly is part of the form: a change needs another version (R17)."""
    nines = "9" * 40
    text = f"[{nines}, 1e39, 1e40, -{nines}9, 1e-14, 1e-15, 1.23456789012345, -1.234567890123456, 12.34567890123456]"
    form = (
        f'[{nines},{10**39},[NaN,"1",40],[NaN,"-{nines}9",0],1e-14,[NaN,"1",-15],1.23456789012345,'
        '[NaN,"-1234567890123456",-15],[NaN,"1234567890123456",-14]]'
    )
    assert canonical_json(text.encode()) == form.encode()


DIFFERENT_NUMBERS = [
    ("9007199254740993", "9007199254740992"),
    ("9007199254740993.0", "9007199254740992.0"),
    ("0.1", "0.1000000000000000055"),
    ("0.3", "0.30000000000000004"),
    ("1e999999999", "1e999999998"),
    ("1e400", "1e401"),
    ("1e-400", "0"),
    ("1e-400", "-1e-400"),
    ("1", "-1"),
    ("1.5", "-1.5"),
    ("1.5", "15"),
    ("1" * 5000, "1" * 4999 + "2"),
    ("1" * 5000, "-" + "1" * 5000),
    ("1" * 41, "1" * 42),
    ("1", '"1"'),
    ("1", "true"),
    ("0", "false"),
    ("0", "null"),
    ("12", "[1,2]"),
    ("1.5", '"1.5"'),
    ("1e400", '[null,"1",400]'),
    ("1e400", '["NaN","1",400]'),
    ("1e400", '["1",400]'),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT_NUMBERS)
def test_different_values_never_have_one_form(one, other):
    """A number equals nothing but itself: no rounding, no confusion with another type."""
    forms = canonical_json(f'{{"a":{one}}}'.encode()), canonical_json(f'{{"a":{other}}}'.encode())
    assert None not in forms
    assert forms[0] != forms[1]


NUMBERS = st.one_of(
    st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?([eE][+-]?[0-3])?", fullmatch=True),
    st.from_regex(r"-?(0|[1-9][0-9]{12,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
    st.from_regex(r"-?[1-9]0{36,42}(\.0{1,3})?([eE][+-]?[0-4])?", fullmatch=True),
)


def value_of(text):
    """The value of a number by long decimal arithmetic, which rounds nothing here."""
    sign, digits, power = Decimal(text).as_tuple()
    number, exponent = int("".join(map(str, digits))), int(power)
    while number and number % 10 == 0:
        number, exponent = number // 10, exponent + 1
    return (sign, number, exponent) if number else 0


@given(NUMBERS, NUMBERS)
@example("1", "1.0")
@example("0.1", "1e-1")
def test_numbers_are_equal_exactly_by_value(one, other):
    """Two numbers have one form if and only if decimal arithmetic calls them equal."""
    assert (canonical_json(one.encode()) == canonical_json(other.encode())) == (value_of(one) == value_of(other))


DOCUMENTS = st.recursive(
    st.one_of(
        st.sampled_from([None, True, False]),
        st.sampled_from(["0", "1", "1.0", "-0", "10e-1", "0.5", "1e400"]).map(Decimal),
        st.sampled_from(["", "1", "a", "é", "e\u0301", "\\", '"', "\x7f", "😀", "[", "NaN"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["", "a", "b", "é", "1"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def meaning(document):
    """The document as something that compares by type and value."""
    match document:
        case dict():
            return ("object", frozenset((name, meaning(value)) for name, value in document.items()))
        case list():
            return ("array", tuple(map(meaning, document)))
        case Decimal():
            return ("number", value_of(str(document)))
        case _:
            return (type(document).__name__, document)


def written(document, random):
    """One of the many texts of a document."""
    gap = random.choice(["", " ", "\n\t", "\r\n "])
    match document:
        case dict():
            items = random.sample(list(document.items()), len(document))
            inside = f"{gap},{gap}".join(f"{written(n, random)}{gap}:{written(v, random)}" for n, v in items)
            return "{" + gap + inside + gap + "}"
        case list():
            return "[" + gap + f"{gap},{gap}".join(written(item, random) for item in document) + gap + "]"
        case Decimal():
            text = str(document)
            return random.choice([text, text.replace("E", "e"), text + "e0" if "E" not in text else text])
        case _:
            return json.dumps(document, ensure_ascii=random.random() < 0.5)


@given(DOCUMENTS, DOCUMENTS, st.integers())
def test_documents_are_equal_exactly_by_value(one, other, seed):
    """Two JSON texts have one form if and only if they mean the same document."""
    random = Random(seed)
    forms = [canonical_json(written(document, random).encode()) for document in (one, one, other)]
    assert forms[0] == forms[1]
    assert None not in forms
    assert (forms[0] == forms[2]) == (meaning(one) == meaning(other))


COLONS = st.text(st.sampled_from(':a\\"é'), max_size=2)


@given(st.lists(st.tuples(COLONS, COLONS, st.booleans()), max_size=4))
def test_an_object_has_a_form_exactly_where_its_names_differ(members):
    """R18: a name that comes twice is found, however many colons are in names and values, escaped or not."""
    parts: list[str] = []
    for name, value, escaped in members:
        text = json.dumps({"x": value}, ensure_ascii=False)
        parts.append(json.dumps(name) + ":" + (text[:5] + text[5:].replace(":", "\\u003a") if escaped else text))
    form = canonical_json(("{" + ",".join(parts) + "}").encode())
    assert (form is not None) == (len({name for name, _, _ in members}) == len(members))


@given(st.one_of(st.binary(), st.text(alphabet='[]{}",:\\u0123eE+-. \ud83d', max_size=40)))
@example("\ud800")
def test_no_text_makes_json_fail(text):
    """Whatever arrives has a form or none, and a form that has itself as its form or is beyond plain numbers."""
    form = canonical_json(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    assert form is None or b"NaN" in form or canonical_json(form) == form


# ---- selected values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("", [{"a": [10, {"b": None}], "": 1, "x/y": 2, "x~y": 3, "big": (1,), "~1": 4}]),
        ("/a", [[10, {"b": None}]]),
        ("/a/0", [10]),
        ("/a/1/b", [None]),
        ("/a/2", []),
        ("/a/00", []),
        ("/a/-", []),
        ("/a/-1", []),
        ("/a/x", []),
        ("/a/99999999999999999999", []),
        ("/a/0/b", []),
        ("/", [1]),
        ("/x~1y", [2]),
        ("/x~0y", [3]),
        ("/~01", [4]),
        ("/missing", []),
        ("/big/0", []),
        ("//a", []),
    ],
)
def test_a_pointer_finds_one_value_or_none(pointer, found):
    """JSON pointers work as RFC 6901 has them; what is missing differs from null; numbers have no inside."""
    value: Json = {"a": [10, {"b": None}], "": 1, "x/y": 2, "x~y": 3, "big": (1,), "~1": 4}
    assert select_json(value, [pointer]) == [[pointer, *found]]


def test_a_large_number_is_not_an_array():
    """How a number is kept can't be reached from outside."""
    assert select_json(read_json(b'{"n":1e400}'), ["/n/1"]) == [["/n/1"]]


@pytest.mark.parametrize("pointer", ["a", "a/b", "/~", "/~2", "/a~"])
def test_text_that_is_no_pointer(pointer):
    """A malformed pointer is an error, never a pointer to something else."""
    with pytest.raises(ValueError):
        pointer_tokens(pointer)


# ---- forms and queries -------------------------------------------------------------------------------------

SAME_PAIRS = [
    (b"a=%7E1", b"a=~1"),
    (b"a=+", b"a=%20"),
    (b"a", b"a="),
    (b"a=1&&b=2", b"a=1&b=2"),
    (b"&a=1&", b"a=1"),
    (b"", b"&"),
    (b"a=%zz", b"a=%25zz"),
    (b"a=%", b"a=%25"),
    (b"a=%4", b"a=%254"),
    (b"a=%c3%A9", b"a=\xc3\xa9"),
    (b"%61=1", b"a=1"),
    (b"a=b=c", b"a=b%3Dc"),
    (b"a=%26", b"a=%26"),
]
OTHER_PAIRS = [
    (b"a=1", b"a=2"),
    (b"a=1", b"b=1"),
    (b"a=", b""),
    (b"a=1;b=2", b"a=1&b=2"),
    (b"a=%FF", b"a=%FE"),
    (b"a=%FF", b"a=%EF%BF%BD"),
    (b"a=%26b=", b"a=&b="),
    (b"a%3D=", b"a=="),
    (b"a=%2B", b"a=+"),
    (b"a=%2541", b"a=%41"),
    (b"a=1&a=2", b"a=2&a=1"),
    (b"=a", b"a="),
    (b"a=1:1:b", b"a=1&b="),
    (b"a=1&a=1", b"a=1"),
]


@pytest.mark.parametrize("canonical", [canonical_form, canonical_query])
@pytest.mark.parametrize(("one", "other"), SAME_PAIRS)
def test_pairs_are_compared_decoded(canonical, one, other):
    """How a pair is escaped does not matter, in a form or in a query (R19)."""
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize("canonical", [canonical_form, canonical_query])
@pytest.mark.parametrize(("one", "other"), OTHER_PAIRS)
def test_different_pairs_stay_different(canonical, one, other):
    """Names, values, their bytes and the order of values under one name count (R19)."""
    assert canonical(one) != canonical(other)


def test_order_counts_in_a_form_but_not_in_a_query():
    """Form pairs are compared in order, query pairs sorted by name."""
    assert canonical_query(b"b=2&a=1&a=0") == canonical_query(b"a=1&b=2&a=0")
    assert canonical_form(b"b=2&a=1") != canonical_form(b"a=1&b=2")


def test_pairs_are_framed():
    """The canonical form is part of what is stored: a change needs another version of the fingerprint (R17)."""
    assert canonical_form(b"b=2&a&b=%zz+") == b"1:b1:21:a0:1:b4:%zz "
    assert canonical_query(b"b=2&a&b=%zz+") == b"1:a0:1:b1:21:b4:%zz "
    assert canonical_query(b"") == canonical_form(b"") == b""


PAIRS = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=4)


def urlencoded(pairs, random):
    """One of the many ways to write pairs of bytes."""

    def piece(octets):
        safe = random.choice(["", "!*'();:@$,/?[]"])
        text = quote_from_bytes(octets, safe=safe + " ")
        return text.replace(" ", random.choice(["+", "%20"]))

    return "&".join(random.choice(["", "&"]) + f"{piece(n)}={piece(v)}" for n, v in pairs).encode()


@given(PAIRS, PAIRS, st.integers())
def test_forms_are_equal_exactly_by_their_pairs(one, other, seed):
    """Two forms have one canonical form if and only if their pairs are the same bytes in the same order."""
    random = Random(seed)
    forms = [canonical_form(urlencoded(pairs, random)) for pairs in (one, one, other)]
    assert forms[0] == forms[1]
    assert (forms[0] == forms[2]) == (one == other)


@given(PAIRS, st.integers())
def test_queries_forget_the_order_of_names_only(pairs, seed):
    """Any shuffle that keeps the order under each name is the same query."""
    random = Random(seed)
    by_name: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        by_name.setdefault(name, []).append(value)
    names = random.sample([name for name, _ in pairs], len(pairs))
    shuffled = [(name, by_name[name].pop(0)) for name in names]
    assert canonical_query(urlencoded(pairs, random)) == canonical_query(urlencoded(shuffled, random))


@given(st.binary())
def test_any_bytes_are_a_form(body):
    """No form and no query makes it fail."""
    assert isinstance(canonical_form(body), bytes)
    assert isinstance(canonical_query(body), bytes)


# ---- multipart ---------------------------------------------------------------------------------------------

TYPE = b"multipart/form-data; boundary="


def multipart(boundary, *parts):
    """A body with these parts, each the text from its first field on."""
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts) + b"--%b--\r\n" % boundary


FILE = b'Content-Disposition: form-data; name="f"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\nfirst'
FIELD = b'Content-Disposition: form-data; name="n"\r\n\r\n5'


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param(TYPE + b"Y2", multipart(b"Y2", FILE, FIELD), id="other boundary"),
        pytest.param(TYPE + b'"Y 2"', multipart(b"Y 2", FILE, FIELD), id="quoted boundary"),
        pytest.param(TYPE + b'"Y\\2"', multipart(b"Y2", FILE, FIELD), id="escaped boundary"),
        pytest.param(
            b'multipart/form-data;charset=utf-8; x=";boundary=no" ;BOUNDARY=Y2',
            multipart(b"Y2", FILE, FIELD),
            id="among other parameters",
        ),
        pytest.param(TYPE + b"=_:Y;", multipart(b"=_:Y", FILE, FIELD), id="boundary that should be quoted"),
        pytest.param(TYPE + b"Y2", multipart(b"Y2", FILE, FIELD)[:-2], id="no line end after the last"),
        pytest.param(TYPE + b"Y", multipart(b"Y", FILE, FIELD).replace(b"--Y\r", b"--Y \t\r"), id="padding"),
        pytest.param(TYPE + b"Y", multipart(b"Y", FILE.replace(b"Content-T", b"CONTENT-t"), FIELD), id="field case"),
        pytest.param(TYPE + b"Y", multipart(b"Y", FILE.replace(b": text", b":\t text"), FIELD), id="field space"),
    ],
)
def test_parts_are_compared_without_their_boundary(content_type, body):
    """The boundary and how it is written does not matter (R19)."""
    expected = canonical_multipart(multipart(b"X1", FILE, FIELD), TYPE + b"X1")
    assert expected is not None
    assert canonical_multipart(body, content_type) == expected


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((FIELD, FILE), id="order"),
        pytest.param((FILE,), id="one less"),
        pytest.param((FILE, FIELD, FIELD), id="one more"),
        pytest.param((FILE.replace(b"first", b"First"), FIELD), id="content"),
        pytest.param((FILE + b"\r\n", FIELD), id="line end in the content"),
        pytest.param((FILE.replace(b"a.txt", b"b.txt"), FIELD), id="file name"),
        pytest.param((FILE.replace(b"text/plain", b"text/html"), FIELD), id="content type"),
        pytest.param((FILE.replace(b"\r\nContent-Type: text/plain", b""), FIELD), id="field missing"),
        pytest.param((FILE.replace(b"Content-Type", b"Content-Kind"), FIELD), id="field name"),
        pytest.param((FILE.replace(b"text/plain", b"text/plainX"), FIELD), id="a letter at the edge of a field"),
        pytest.param((FILE.replace(b"text/plain", b"text/plain\x0c"), FIELD), id="white space that is none in HTTP"),
        pytest.param((b"\r\n" + FILE, FIELD), id="fields moved into the content"),
    ],
)
def test_every_part_counts_whole(parts):
    """Fields, content and order of parts make a difference (R19)."""
    form = canonical_multipart(multipart(b"X1", *parts), TYPE + b"X1")
    assert form is not None
    assert form != canonical_multipart(multipart(b"X1", FILE, FIELD), TYPE + b"X1")


BODY = multipart(b"X", FIELD)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param(b"multipart/form-data", BODY, id="no boundary"),
        pytest.param(TYPE, BODY, id="empty boundary"),
        pytest.param(TYPE + b'""', BODY, id="empty quoted boundary"),
        pytest.param(TYPE + b'"X', BODY, id="quote not closed"),
        pytest.param(TYPE + b"X; boundary=Y", BODY, id="two boundaries"),
        pytest.param(TYPE + b"X; x y", BODY, id="malformed parameter"),
        pytest.param(TYPE + b'"X "', multipart(b"X ", FIELD), id="boundary that ends in a space"),
        pytest.param(TYPE + b"x", BODY, id="case of the boundary"),
        pytest.param(TYPE + b"Y", BODY, id="another boundary"),
        pytest.param(TYPE + b"X", b"", id="empty body"),
        pytest.param(TYPE + b"X", b"hello\r\n" + BODY, id="preamble"),
        pytest.param(TYPE + b"X", BODY + b"bye", id="epilogue"),
        pytest.param(TYPE + b"X", BODY[:-4], id="not closed"),
        pytest.param(TYPE + b"X", BODY + BODY, id="twice"),
        pytest.param(TYPE + b"X", BODY.replace(b"\r\n", b"\n"), id="bare line feeds"),
        pytest.param(TYPE + b"X", BODY.replace(b"--X\r", b"--Xtra\r"), id="longer boundary"),
        pytest.param(TYPE + b"X", BODY.replace(b"\r\n\r\n", b"\r\n"), id="no blank line"),
        pytest.param(TYPE + b"X", multipart(b"X", b"no field\r\n\r\n5"), id="no colon"),
        pytest.param(TYPE + b"X", multipart(b"X", b"a b: c\r\n\r\n5"), id="space in a field name"),
        pytest.param(TYPE + b"X", multipart(b"X", b"A: b\r\n c\r\n\r\n5"), id="folded field"),
        pytest.param(TYPE + b"X", multipart(b"X", b"A: b\nC: d\r\n\r\n5"), id="line feed in a field"),
        pytest.param(TYPE + b"X", multipart(b"X", b"A: \x00\r\n\r\n5"), id="null in a field"),
    ],
)
def test_malformed_multipart_has_no_form(content_type, body):
    """Where a server might read other parts than we do, bytes are compared (R19)."""
    assert canonical_multipart(body, content_type) is None


@pytest.mark.parametrize("parts", [(), (b"\r\n",), (b"\r\nplain",), (b"\r\n\r\n--Y\r\n",)])
def test_odd_but_well_formed_multipart_has_a_form(parts):
    """No part, parts without fields and empty content are all told apart by their framing."""
    form = canonical_multipart(multipart(b"X", *parts), TYPE + b"X")
    assert form is not None
    assert form != canonical_multipart(multipart(b"X", *parts, b"\r\n"), TYPE + b"X")


def test_parts_are_framed():
    """The same for multipart: number of fields, each with its lengths, then the content (R17)."""
    body = multipart(b"X", b"A: b\r\nC:\r\n\r\nhi", b"\r\n")
    assert canonical_multipart(body, TYPE + b"X") == b"2;1:a1:b1:c0:2:hi0;0:"


CONTENT = st.lists(st.sampled_from([b"a", b"\r\n", b"--", b"-", b":", b"1:", b"\r", b"\n", b""]), max_size=5)
PARTS = st.lists(st.tuples(st.sampled_from([b"", b"A: 1\r\n", b"A: 1\r\nB:\r\n"]), CONTENT.map(b"".join)), max_size=3)


@given(PARTS, PARTS)
def test_multipart_is_equal_exactly_by_its_parts(one, other):
    """Two bodies have one form if and only if their parts are the same."""
    forms = [
        canonical_multipart(
            multipart(boundary, *(fields + b"\r\n" + content for fields, content in parts)), TYPE + boundary
        )
        for boundary, parts in ((b"XX", one), (b"YYY", one), (b"XX", other))
    ]
    assert forms[0] == forms[1]
    assert None not in forms
    assert (forms[0] == forms[2]) == (one == other)


@given(st.binary(), st.binary())
def test_no_bytes_make_multipart_fail(body, parameters):
    """Whatever arrives has a form or none."""
    form = canonical_multipart(body, b"multipart/mixed;" + parameters)
    assert form is None or isinstance(form, bytes)


# ---- content codings ---------------------------------------------------------------------------------------

PLAIN = b'{"a":1}' * 50


def raw_deflate(body):
    """A deflate stream without the zlib wrapper, as some clients send it."""
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


@pytest.mark.parametrize(
    ("codings", "body"),
    [
        pytest.param([b"gzip"], gzip.compress(PLAIN), id="gzip"),
        pytest.param([b"gzip"], gzip.compress(PLAIN, 1, mtime=12345), id="gzip of another time and level"),
        pytest.param([b"gzip"], gzip.compress(PLAIN[:9]) + gzip.compress(PLAIN[9:]), id="gzip members"),
        pytest.param([b"gzip"], gzip.compress(b"") * 15 + gzip.compress(PLAIN), id="sixteen members"),
        pytest.param([b"x-gzip"], gzip.compress(PLAIN), id="x-gzip"),
        pytest.param([b"deflate"], zlib.compress(PLAIN), id="deflate"),
        pytest.param([b"deflate"], raw_deflate(PLAIN), id="deflate, raw"),
        pytest.param([b"deflate", b"gzip"], gzip.compress(zlib.compress(PLAIN)), id="two"),
        pytest.param([b"gzip"] * 3, gzip.compress(gzip.compress(gzip.compress(PLAIN))), id="three"),
        pytest.param([], PLAIN, id="none"),
    ],
)
def test_codings_are_undone(codings, body):
    """What a client compressed counts as what it was before (R19)."""
    assert decode_content(body, codings) == PLAIN


@pytest.mark.parametrize(
    ("codings", "body"),
    [
        pytest.param([b"br"], PLAIN, id="unknown"),
        pytest.param([b"br", b"gzip"], gzip.compress(PLAIN), id="unknown inside"),
        pytest.param([b"gzip", b"br"], gzip.compress(PLAIN), id="unknown outside"),
        pytest.param([b"gzip"], PLAIN, id="not gzip"),
        pytest.param([b"gzip"], zlib.compress(PLAIN), id="gzip that is deflate"),
        pytest.param([b"gzip"], b"", id="empty"),
        pytest.param([b"gzip"], gzip.compress(PLAIN)[:-1], id="cut short"),
        pytest.param([b"gzip"], gzip.compress(PLAIN) + b"x", id="garbage after it"),
        pytest.param([b"gzip"], gzip.compress(PLAIN)[:-8] + bytes(8), id="wrong checksum"),
        pytest.param([b"gzip"], gzip.compress(b"") * 17, id="many members"),
        pytest.param([b"deflate"], PLAIN, id="not deflate"),
        pytest.param([b"deflate"], zlib.compress(PLAIN) + b"x", id="garbage after deflate"),
        pytest.param([b"deflate"], zlib.compress(PLAIN) * 2, id="deflate twice"),
        pytest.param([b"gzip", b"deflate"], gzip.compress(zlib.compress(PLAIN)), id="wrong order"),
        pytest.param([b"gzip"] * 4, gzip.compress(gzip.compress(gzip.compress(gzip.compress(PLAIN)))), id="four"),
    ],
)
def test_what_can_not_be_decoded_whole_is_not(codings, body):
    """Anything broken, unknown or too much is compared as bytes (R19)."""
    assert decode_content(body, codings) is None


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_stays_small(monkeypatch, coding):
    """Decoding stops at the bound, which is exact and holds over all members together."""
    monkeypatch.setattr(_canonical, "MAX_DECODED", 1000)
    compress = gzip.compress if coding == "gzip" else zlib.compress
    assert decode_content(compress(bytes(1000)), [coding.encode()]) == bytes(1000)
    assert decode_content(compress(bytes(1001)), [coding.encode()]) is None
    assert decode_content(compress(bytes(10_000_000)), [coding.encode()]) is None
    halves = gzip.compress(bytes(500)), gzip.compress(bytes(501))
    assert decode_content(halves[0] * 2, [b"gzip"]) == bytes(1000)
    assert decode_content(b"".join(halves), [b"gzip"]) is None


def test_memory_is_bound_while_decoding(monkeypatch):
    """Of a bomb that holds fifty times the bound, little more than the bound is ever there."""
    monkeypatch.setattr(_canonical, "MAX_DECODED", 1_000_000)
    bomb = gzip.compress(bytes(50_000_000), 1)
    tracemalloc.start()
    try:
        assert decode_content(bomb, [b"gzip"]) is None
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("lines", "codings"),
    [
        ([b"gzip"], [b"gzip"]),
        ([b" GZIP "], [b"gzip"]),
        ([b"\tX-GZIP\t"], [b"x-gzip"]),
        ([b"gzip\x0b"], [b"gzip\x0b"]),
        ([b"identity"], []),
        ([b""], []),
        ([b"deflate, gzip"], [b"deflate", b"gzip"]),
        ([b"deflate", b"identity,,br"], [b"deflate", b"br"]),
    ],
)
def test_codings_are_listed_in_order(lines, codings):
    """All lines count, in any case, and identity is no coding."""
    assert content_codings(lines) == codings


# ---- time --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"[" + b"1" * 500_000 + b"]", id="one long integer"),
        pytest.param(b"[0." + b"0" * 500_000 + b"1]", id="one long fraction"),
        pytest.param(b"[" + b"1e4000," * 40_000 + b"1]", id="many exponents"),
        pytest.param(b"[" * 250_000, id="brackets"),
        pytest.param(b"[[[" * 50 + b'"' + b'\\"' * 125_000, id="escaped quotes"),
        pytest.param(b'"' + b"\\" * 250_000, id="backslashes"),
        pytest.param(b"[" + b"[],".join([b"[" * 127 + b"]" * 127 + b","] * 800) + b"0]", id="many deep chains"),
    ],
)
def test_long_json_takes_linear_time(text):
    """A quarter of a megabyte takes a fraction of a second; work that grows faster would take minutes."""
    began = time.process_time()
    canonical_json(text)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("body", [b"%" * 250_000, b"&" * 250_000, b"=" * 250_000, b"a&" * 75_000])
def test_long_forms_take_linear_time(body):
    """The same for forms."""
    began = time.process_time()
    canonical_form(body)
    canonical_query(body)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param(TYPE + b"X", b"\r\n--" * 75_000, id="nearly delimiters"),
        pytest.param(TYPE + b"X", multipart(b"X", *[FIELD] * 20_000), id="many parts"),
        pytest.param(TYPE + b"X", multipart(b"X", b"A:\r\n" * 50_000 + b"\r\n"), id="many fields"),
        pytest.param(b"multipart/mixed" + b";a=b" * 50_000, b"", id="many parameters"),
        pytest.param(b'multipart/mixed;a="' + b"\\" * 125_001, b"", id="parameter that never ends"),
    ],
)
def test_long_multipart_takes_linear_time(content_type, body):
    """The same for multipart bodies and their content type."""
    began = time.process_time()
    canonical_multipart(body, content_type)
    assert time.process_time() - began < 10


def test_a_body_that_grows_beyond_all_measure_is_compared_as_it_came():
    """R19, memory: a few kilobytes on the wire are never read as megabytes; ordinary text is far from the bound."""
    bomb, text = b" " * 5_000_000, b'{"name": "somebody", "amount": 5000}' * 1500
    assert decode_content(gzip.compress(bomb), [b"gzip"]) is None
    assert decode_content(gzip.compress(text), [b"gzip"]) == text


READ = st.recursive(  # what `read_json` returns
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_infinity=False), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=8,
)


@given(READ)
def test_the_encoder_of_other_pythons_writes_the_same(value):
    """R53: records are shared by whatever interpreters run; only CPython has the encoder in C."""
    written = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("json.encoder.c_make_encoder", None)
        plain = _canonical._make_encode()
    for encode in (plain, _canonical._make_encode(), _canonical._encode):
        assert "".join(encode(value, 0)) == written


def test_a_long_document_is_written_in_one_piece():
    """The encoder may hand a long text out in several."""
    text = b'[%b{"a":1}]' % (b"1," * 120_000)
    assert canonical_json(text) == text
