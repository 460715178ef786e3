"""The Idempotency-Key field: parse what a client sent, format what we send (R2-R7)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

MAX_KEY_LENGTH: Final = 255
"""The most characters that a key may have, after unescaping (R6)."""
MAX_LINE_LENGTH: Final = 65_536
"""A longer field line is refused unread; no common server lets one through."""

KeyFormat = str | re.Pattern[str]

_OWS: Final = b" \t"  # RFC 9110 §5.6.3
_BARE: Final = re.compile(rb"[!#-+\--:<-\[\]-~]+")  # R5: visible ASCII without " , ; \
_BARE_KEY: Final = re.compile(rb"[!#-+\--:<-\[\]-~]{1,255}")
_OUTSIDE_ASCII: Final = re.compile(rb"[\x80-\xff]")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_ESCAPE: Final = re.compile(rb"\\(.)")
_SENDABLE: Final = re.compile(r"[ -~]*")
_TO_ESCAPE: Final = re.compile(r'(["\\])')

# RFC 9651 §4.2, one part per algorithm. Every repetition is possessive: what was read is never read again, so
# time is linear whatever the input. Alternatives are ordered longest first, since none is tried twice.
_CHARACTERS: Final = rb'[ !#-\[\]-~]*+(?:\\["\\][ !#-\[\]-~]*+)*+'  # §4.2.5, between the quotes
_STRING: Final = b'"' + _CHARACTERS + b'"'
_NUMBER: Final = rb"-?(?:[0-9]{1,12}\.[0-9]{1,3}|[0-9]{1,15})"  # §4.2.4
_TOKEN: Final = rb"[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*+"  # §4.2.6
_BYTES: Final = rb":(?!=)(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2,3})?={0,2}:"  # §4.2.7, padding optional
_BOOLEAN: Final = rb"\?[01]"  # §4.2.8
_DATE: Final = rb"@-?[0-9]{1,15}"  # §4.2.9
_UTF8: Final = (  # RFC 3629 §4, every byte of it percent-encoded in lower case
    rb"%[0-7][0-9a-f]|%(?:c[2-9a-f]|d[0-9a-f])C|%e0%[ab][0-9a-f]C|%e[1-9a-cef]CC|%ed%[89][0-9a-f]C"
    rb"|%f0%[9ab][0-9a-f]CC|%f[123]CCC|%f4%8[0-9a-f]CC"
).replace(b"C", rb"%[89ab][0-9a-f]")
_DISPLAY: Final = rb'%"(?:[ !#$&-~]|' + _UTF8 + rb')*+"'  # §4.2.10
_ITEM: Final = b"|".join((_NUMBER, _STRING, _TOKEN, _BYTES, _BOOLEAN, _DATE, _DISPLAY))
_PARAMETER: Final = rb";[ ]*+[a-z*][a-z0-9_\-.*]*+(?:=(?:" + _ITEM + rb"))?"  # §4.2.3.2
_QUOTED: Final = re.compile(b'"(' + _CHARACTERS + b')"(?:' + _PARAMETER + b")*+")

_NAMED_FORMATS: Final = {
    "uuid": r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "ulid": r"[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}",
}


class KeyFault(StrEnum):
    """Why a key was refused: the member ``reason`` of the answer (R6)."""

    REPEATED = "repeated"
    LIST = "list"
    EMPTY = "empty"
    BLANK = "blank"
    TOO_LONG = "too-long"
    NOT_ASCII = "not-ascii"
    CONTROL_CHARACTER = "control-character"
    MALFORMED = "malformed"
    FORMAT = "format"
    NOT_QUOTED = "not-quoted"
    CONFLICTING_NAMES = "conflicting-names"


@dataclass(slots=True)
class BadKey:
    """A field that holds no key. Nothing of the value is kept: it is never echoed or logged (R6)."""

    reason: KeyFault


def find_key(
    headers: Sequence[tuple[bytes, bytes]],
    names: Sequence[bytes],
    *,
    strict: bool = False,
    key_format: KeyFormat | None = None,
) -> str | BadKey | None:
    """Return the key of a request, why it is refused, or None where no line bears one of the names.

    ``names`` are in lower case; those of ``headers`` may be in any (R2). A key under several of the names is
    one key if all values are the same, in whichever syntax (R2, R6).
    """
    found: str | None = None
    for wanted in names:
        size = len(wanted)
        lines = [value for name, value in headers if len(name) == size and name.lower() == wanted]
        if not lines:
            continue
        if len(lines) == 1 and not strict and key_format is None and _BARE_KEY.fullmatch(lines[0]):
            key = lines[0].decode("ascii")  # R5, as nearly all clients send it
        else:
            parsed = parse_field(lines, strict=strict, key_format=key_format)
            if isinstance(parsed, BadKey):
                return parsed
            key = parsed
        if found is not None and found != key:
            return BadKey(KeyFault.CONFLICTING_NAMES)
        found = key
    return found


def parse_field(lines: Sequence[bytes], *, strict: bool = False, key_format: KeyFormat | None = None) -> str | BadKey:
    """Return the key that the field lines of one name hold, or why they hold none (R3-R7).

    ``strict`` accepts a structured-field String only (R5). ``key_format`` is what `compile_key_format` takes
    or returns. Time is linear in the length of the line.
    """
    if len(lines) != 1:
        return BadKey(KeyFault.REPEATED if lines else KeyFault.EMPTY)  # R3: equal or not
    line = lines[0]
    if len(line) > MAX_LINE_LENGTH:
        return BadKey(KeyFault.TOO_LONG)
    line = line.strip(_OWS)
    if not _BARE.fullmatch(line):
        return _parse_quoted(lines[0], line, key_format)
    return BadKey(KeyFault.NOT_QUOTED) if strict else _checked(line, key_format)  # R5


def compile_key_format(name_or_pattern: str) -> re.Pattern[str]:
    """Return the pattern for ``uuid``, ``ulid`` or a regular expression; a key must match it whole (R6).

    UUIDs and ULIDs may be in either case. Raises `ValueError` with a sentence that says what to change.
    """
    return _compiled(name_or_pattern)


def format_field(key: str, *, quoted: bool = False) -> str:
    """Return the field value that carries a key, bare or as a structured-field String (RFC 9651 §4.1.6).

    Raises `ValueError`, which does not repeat the key, where no server could read that value as this key.
    """
    if len(key) > MAX_KEY_LENGTH:
        raise ValueError(f"the key has {len(key)} characters; use at most {MAX_KEY_LENGTH}")
    if not key.strip(" "):
        raise ValueError("the key is empty or blank; use a UUID, for example")
    if not _SENDABLE.fullmatch(key):
        raise ValueError("the key holds a control character or one beyond ASCII; use printable ASCII only")
    if quoted:
        return '"' + _TO_ESCAPE.sub(r"\\\1", key) + '"'
    if not _BARE.fullmatch(key.encode("ascii")):
        raise ValueError("the key holds a space, comma, semicolon, quote or backslash; send it quoted")
    return key


def _parse_quoted(raw: bytes, line: bytes, key_format: KeyFormat | None) -> str | BadKey:
    match = _QUOTED.match(line)  # R4
    if match is None or match.end() != len(line):  # R7: parameters are well formed or the field is refused
        return BadKey(_fault(raw, line, match))
    value: bytes = match[1]
    if b"\\" in value:
        value = _ESCAPE.sub(rb"\1", value)
    return _checked(value, key_format)


def _checked(value: bytes, key_format: KeyFormat | None) -> str | BadKey:
    if len(value) > MAX_KEY_LENGTH:
        return BadKey(KeyFault.TOO_LONG)
    if not value or value.isspace():
        return BadKey(KeyFault.BLANK if value else KeyFault.EMPTY)
    key = value.decode("ascii")
    if key_format is not None:
        pattern = _compiled(key_format) if isinstance(key_format, str) else key_format
        if not pattern.fullmatch(key):
            return BadKey(KeyFault.FORMAT)
    return key


def _fault(raw: bytes, line: bytes, start: re.Match[bytes] | None) -> KeyFault:
    """Say what is wrong with a line that is neither bare nor quoted."""
    if not line:
        return KeyFault.BLANK if raw else KeyFault.EMPTY
    if _OUTSIDE_ASCII.search(line):
        return KeyFault.NOT_ASCII
    if _CONTROL.search(line):
        return KeyFault.CONTROL_CHARACTER
    if start is not None:
        return KeyFault.LIST if line[start.end() :].lstrip().startswith(b",") else KeyFault.MALFORMED
    if b"," in line and not line.startswith(b'"'):
        return KeyFault.LIST  # R3: joined by a proxy, or by the server
    return KeyFault.MALFORMED


@lru_cache(maxsize=64)
def _compiled(name_or_pattern: str) -> re.Pattern[str]:
    pattern = _NAMED_FORMATS.get(name_or_pattern, name_or_pattern)
    if re.escape(pattern).replace(r"\-", "-") == pattern:
        raise ValueError(
            f"key_format {pattern!r} is neither uuid nor ulid, and as a regular expression it would accept "
            "one key at most; give uuid, ulid, or an expression for all keys"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"key_format {pattern!r} is no regular expression ({error}); correct it, or give uuid or ulid"
        ) from None
