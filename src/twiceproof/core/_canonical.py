"""Canonical forms of bodies and queries: equal bytes exactly where the meaning is equal (R18, R19).

Each ``canonical_…`` function returns None where the input has no canonical form; the caller then compares
bytes. All of them take time linear in the input, sorting apart.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote_to_bytes

Json: TypeAlias = "dict[str, Json] | list[Json] | tuple[Json, ...] | str | int | float | bool | None"

MAX_DEPTH: Final = 128
"""The deepest nesting of JSON that is compared by value (R18)."""
MAX_DECODED: Final = 10 * 1024 * 1024
"""The most bytes that a content coding is decoded to: what an uncoded body may have by default (R11, R19)."""
MAX_RATIO: Final = 100
"""How many times as long as it came a body may become; text shrinks to a tenth, seldom to a thirtieth (R19)."""
FREE_DECODED: Final = 64 * 1024
"""So many bytes are decoded whatever the ratio (R19)."""
MAX_CODINGS: Final = 3
"""The most content codings that are decoded one after another (R19)."""


# ---- JSON (R18) --------------------------------------------------------------------------------------------


def canonical_json(body: bytes) -> bytes | None:
    """Return JSON with sorted names, no white space, and one spelling for each string and number (R18)."""
    try:
        if body.find(b"\\u") < 0 and body.translate(_ZEROS).find(_LONG_INTEGER) < 0:
            canonical = write_json(_read(body, _PLAIN))
            if canonical.count(b":") == body.count(b":"):  # where a name came twice, at least one colon is lost
                return canonical
        return write_json(read_json(body))
    except ValueError:
        return None


def read_json(body: bytes) -> Json:
    """Parse JSON text without losing anything; raise `ValueError` where R18 asks for bytes.

    Numbers come as int or float where those are exact, else as a tuple; nothing else is a tuple.
    """
    return _read(body, _EXACT)


def _read(body: bytes, decoder: json.JSONDecoder) -> Json:
    text = body.decode("utf-8").strip(" \t\n\r")  # a BOM is left on, and refused by the parser
    if _too_deep(body):
        raise ValueError
    value, end = decoder.raw_decode(text)
    if end != len(text):
        raise ValueError
    return cast("Json", value)


def write_json(value: Json) -> bytes:
    """Return the canonical text of what `read_json` returned; `ValueError` on a lone surrogate (R18)."""
    return "".join(_encode(value, 0)).encode("utf-8")


def select_json(value: Json, pointers: Sequence[str]) -> Json:
    """Return the values at JSON pointers (RFC 6901), each with its pointer; missing is not null (R20)."""
    return [[pointer, *_lookup(value, pointer)] for pointer in pointers]


@lru_cache(maxsize=256)
def pointer_tokens(pointer: str) -> tuple[str, ...]:
    """Split a JSON pointer; raise `ValueError` where it is none (RFC 6901 §3)."""
    if not _POINTER.fullmatch(pointer):
        raise ValueError
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])


def _lookup(value: Json, pointer: str) -> list[Json]:
    for token in pointer_tokens(pointer):
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and _INDEX.fullmatch(token) and int(token) < len(value):
            value = value[int(token)]
        else:
            return []
    return [value]


def _too_deep(body: bytes) -> bool:
    """Tell whether brackets outside strings nest deeper than allowed, before the parser goes down there."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(unescaped.split(b'"')[::2])
    steps = memoryview(outside_strings.translate(_STEPS, _NO_BRACKETS)).cast("b")
    return max(accumulate(steps), default=0) > MAX_DEPTH


def _members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError  # R18: duplicate names
    return members


def _constant(_name: str) -> Json:
    raise ValueError  # R18: NaN and the infinities


def _integer(text: str) -> Json:
    return int(text) if len(text) <= 40 else _number(text)


def _decimal(text: str) -> Json:
    if len(text) > 16 or "e" in text or "E" in text:
        return _number(text)
    value = float(text)  # a double tells all decimals of at most 15 digits apart
    return int(value) if value.is_integer() else value


def _number(text: str) -> Json:
    """Reduce a number to (sign, digits, exponent), and that to the one form for its value (R18).

    An integer of at most 40 digits is an int, a fraction of at most 15 digits a float, which is what
    `_integer` and `_decimal` make of short texts; all else a tuple that begins with NaN, as no list in a
    document can.
    """
    mantissa, _, exponent = text.lower().partition("e")
    if len(exponent.lstrip("+-")) > 18:
        raise ValueError  # R18
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    shifted = (whole + fraction).lstrip("0")
    digits = shifted.rstrip("0")
    if not digits:
        return 0  # R18: -0 = 0
    power = int(exponent or "0") - len(fraction) + len(shifted) - len(digits)
    if power >= 0 and len(digits) + power <= 40:
        return int(sign + digits + "0" * power)
    if power < 0 and len(digits) <= 15 and power > -15:
        return float(f"{sign}{digits}e{power}")
    return (math.nan, sign + digits, power)


_EXACT: Final = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_decimal, parse_constant=_constant
)
_PLAIN: Final = json.JSONDecoder(parse_float=_decimal, parse_constant=_constant)
"""For text without long integers and escaped characters: no call per object and integer."""
_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER: Final = b"0" * 41  # longer than `_integer` leaves one as it is


def _make_encode() -> Callable[[Json, int], Iterable[str]]:
    """Return what `JSONEncoder.encode` makes anew in each call, which takes as long as a small body does."""
    options: dict[str, Any] = {"sort_keys": True, "skipkeys": False, "allow_nan": True}
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # not CPython
        encoder = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), **options)
        return lambda value, _: encoder.iterencode(value)
    encode: Callable[[Json, int], Iterable[str]] = make(
        markers=None,
        default=None,  # `read_json` returns nothing else than JSON
        encoder=json.encoder.encode_basestring,
        indent=None,
        key_separator=":",
        item_separator=",",
        **options,
    )
    return encode


_encode: Final = _make_encode()
_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # +1 and -1 as signed octets


# ---- forms and queries (R19) -------------------------------------------------------------------------------


def canonical_form(body: bytes) -> bytes:
    """Return the pairs of a urlencoded form in order, decoded to bytes and framed by their lengths (R19)."""
    out = bytearray()
    for name, value in _pairs(body):
        out += b"%d:%b%d:%b" % (len(name), name, len(value), value)
    return bytes(out)


def canonical_query(query: bytes) -> bytes:
    """Return the pairs of a query like those of a form, but sorted by name, stably (R19)."""
    if not query:
        return b""
    pairs = sorted(_pairs(query), key=itemgetter(0))
    return b"".join([b"%d:%b%d:%b" % (len(name), name, len(value), value) for name, value in pairs])


def _pairs(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    for segment in _SEGMENT.finditer(text):  # empty ones are dropped
        name, _, value = segment[0].replace(b"+", b" ").partition(b"=")
        yield unquote_to_bytes(name), unquote_to_bytes(value)  # a malformed %XX stands for itself


_SEGMENT: Final = re.compile(rb"[^&]+")


# ---- multipart (R19) ---------------------------------------------------------------------------------------


def canonical_multipart(body: bytes, content_type: bytes) -> bytes | None:
    """Return the parts in order, with their fields and content, without the boundary (R19, RFC 2046 §5.1).

    Names of fields in lower case, white space around values gone. None where the boundary is missing or
    doubtful, or there is anything beside well-formed parts, such as a preamble.
    """
    boundary = _boundary(content_type)
    if boundary is None:
        return None
    before, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if before or not _CLOSED.fullmatch(parts.pop()):  # what follows the last delimiter, if there was any
        return None
    out: list[bytes] = []
    for part in parts:
        start = _LINE_END.match(part)
        framed = _part(part[start.end() :]) if start else None
        if framed is None:
            return None
        out.append(framed)
    return b"".join(out)


def _part(part: bytes) -> bytes | None:
    head, blank, content = (b"\r\n" + part).partition(b"\r\n\r\n")
    if not blank:
        return None
    fields: list[bytes] = []
    for line in head.split(b"\r\n")[1:]:
        field = _FIELD.fullmatch(line)
        if field is None:
            return None
        name, value = field[1].lower(), field[2].strip(b" \t")
        fields.append(b"%d:%b%d:%b" % (len(name), name, len(value), value))
    return b"%d;%b%d:%b" % (len(fields), b"".join(fields), len(content), content)


def _boundary(content_type: bytes) -> bytes | None:
    """Return the boundary, if the parameters are well formed and name exactly one."""
    found: list[bytes] = []
    at = content_type.find(b";")
    while 0 <= at < len(content_type):
        parameter = _PARAMETER.match(content_type, at)
        if parameter is None:
            return None
        if parameter[1] and parameter[1].lower() == b"boundary":
            found.append(_PAIR.sub(rb"\1", parameter[2][1:-1]) if parameter[2][:1] == b'"' else parameter[2])
        at = parameter.end()
    return found[0] if len(found) == 1 and _BOUNDARY.fullmatch(found[0]) else None


_PARAMETER: Final = re.compile(rb';[ \t]*+(?:([!#$%&\'*+\-.^_`|~0-9A-Za-z]++)=("(?:[^"\\]|\\.)*+"|[^"; \t]++))?[ \t]*+')
_PAIR: Final = re.compile(rb"\\(.)")
_BOUNDARY: Final = re.compile(rb"[ -~]{0,199}[!-~]")  # RFC 2046 allows 70; some senders take more
_LINE_END: Final = re.compile(rb"[ \t]*+\r\n")
_CLOSED: Final = re.compile(rb"--[ \t]*+(?:\r\n)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++):([^\r\n\x00]*+)")


# ---- content codings (R19) ---------------------------------------------------------------------------------


def content_codings(values: Sequence[bytes]) -> list[bytes]:
    """Return the codings that Content-Encoding lines name, in lower case and order, without ``identity``."""
    names = [name.strip(b" \t").lower() for value in values for name in value.split(b",")]
    return [name for name in names if name not in {b"", b"identity"}]


def decode_content(body: bytes, codings: Sequence[bytes]) -> bytes | None:
    """Undo the codings, last first; None where one is unknown, broken, or leads beyond the bounds."""
    if len(codings) > MAX_CODINGS:
        return None
    decoded: bytes | None = body
    for coding in reversed(codings):
        if decoded is not None:
            decoded = _decode(decoded, coding)
    return decoded


def _decode(body: bytes, coding: bytes) -> bytes | None:
    if coding in {b"gzip", b"x-gzip"}:
        return _inflate(body, zlib.MAX_WBITS | 16, most_members=16)  # RFC 1952 §2.2
    if coding == b"deflate":
        wrapped = _inflate(body, zlib.MAX_WBITS)  # RFC 9110 §8.4.1.2: zlib; some send the bare stream
        return _inflate(body, -zlib.MAX_WBITS) if wrapped is None else wrapped
    return None


def _inflate(body: bytes, wbits: int, most_members: int = 1) -> bytes | None:
    out: list[bytes] = []
    room = min(MAX_DECODED, FREE_DECODED + MAX_RATIO * len(body))
    for _ in range(most_members):
        stream: Any = zlib.decompressobj(wbits)
        try:
            out.append(stream.decompress(body, room + 1))  # memory: never more than the bound
        except zlib.error:
            return None
        room -= len(out[-1])
        if room < 0 or not stream.eof:
            return None
        body = stream.unused_data
        if not body:
            return b"".join(out)
    return None
