"""The path of a request, in the one spelling that the scope uses (R16)."""

from __future__ import annotations

import re
from string import ascii_letters, digits, hexdigits
from typing import Final

_UNRESERVED: Final = frozenset((ascii_letters + digits + "-._~").encode("ascii"))  # RFC 3986 §2.3
_HEX: Final = frozenset(hexdigits.encode("ascii"))
_SPECIAL: Final = re.compile(rb"%([0-9A-Fa-f]{2})|[\x80-\xff]")
_DANGLING: Final = re.compile(rb"%[0-9A-Fa-f]?\Z")
_ENCODED: Final = re.compile(rb"[^A-Za-z0-9\-._~!$&'()*+,;=:@/]")  # all but pchar and "/", RFC 3986 §3.3


def canonical_path(raw_path: bytes) -> str:
    """Return the path of a request line in canonical spelling (R16).

    Percent-encoded unreserved characters are decoded, all other escapes are written in upper case, bytes
    beyond ASCII are escaped; nothing else is folded. A query that the server left on is cut off.
    """
    query = raw_path.find(b"?")  # `in` takes three times as long: it tries a number first
    if query >= 0:
        raw_path = raw_path[:query]
    if raw_path.find(b"%") >= 0 or not raw_path.isascii():
        raw_path = _SPECIAL.sub(_respell, raw_path)
    return raw_path.decode("ascii")


def encode_path(path: str) -> bytes:
    """Return a raw path for a decoded one, for servers that show no raw path (R16).

    What was ``%2F`` on the request line comes back as ``/``: nobody can tell any more. Bytes that were not
    UTF-8 may be given as the lone surrogates that ``surrogateescape`` makes of them.
    """
    try:
        octets = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        octets = path.encode("utf-8", "surrogatepass")
    return _ENCODED.sub(_escape, octets)


def _respell(match: re.Match[bytes]) -> bytes:
    if match[1] is None:
        return _escape(match)
    octet = int(match[1], 16)
    if octet not in _UNRESERVED:
        return match[0].upper()
    start = match.start()
    if octet in _HEX and _DANGLING.search(match.string[max(0, start - 2) : start]):
        return match[0]  # after a malformed %: "%%341" must not turn into "%41", another path
    return bytes((octet,))


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]
