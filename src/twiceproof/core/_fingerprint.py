"""Fingerprint: a versioned digest of what a request means (R17, R20).

A fingerprint is ``<id>:<64 hex digits>``. The id names the algorithm and its parameters, so that a process
with other options can still compare a record with what it receives: ``1``, ``1;vary=accept,x-tenant``,
``1;fields=/a,/b``, ``1;raw``, ``1;call=name@version``, each with ``;hmac=<key id>`` where a secret is used.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from twiceproof.core._canonical import (
    canonical_form,
    canonical_json,
    canonical_multipart,
    canonical_query,
    content_codings,
    decode_content,
    pointer_tokens,
    read_json,
    select_json,
    write_json,
)
from twiceproof.core._messages import Headers, Request
from twiceproof.core._path import canonical_path
from twiceproof.errors import ConfigurationError

VERSION: Final = "1"
"""The algorithm of this release; a change of any canonical form takes another."""
MAX_ID_LENGTH: Final = 1_000
LARGE_BODY: Final = 64 * 1024
SMALL_BODY: Final = 512
"""What is no longer than that is cheap, even where it is compressed."""

_LENGTHS: Final = struct.Struct(">7Q")
_STORED: Final = re.compile(rb"([!-9;-~]{1,%d}):[0-9a-f]{64}" % MAX_ID_LENGTH)
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SECRET_ID: Final = b"twiceproof: which secret"
_JSON: Final = frozenset({b"application/json", b"text/json"})
_FORM: Final = b"application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintOptions:
    """What makes two requests the same, beside method, path, query and content type (R17, R20).

    The default compares the body by meaning; ``fields``, ``raw`` or ``function`` replaces that. Raises
    `ConfigurationError` with a sentence that says what to change.
    """

    vary_headers: tuple[str, ...] = ()
    """Fields of the request whose values count too."""
    fields: tuple[str, ...] = ()
    """JSON pointers (RFC 6901): of a JSON body only these values count. Other bodies count whole."""
    raw: bool = False
    """Compare bodies byte for byte, as received."""
    function: Callable[[Request], bytes] | None = None
    """What to compare in place of the body. Needs ``name`` and ``version``, and must be pure."""
    name: str = ""
    """The name of ``function``: the same in every process that has it."""
    version: str = ""
    """Of ``function``; a changed function must have another."""
    secret: bytes | None = field(default=None, repr=False)
    """Makes the digest a keyed one (HMAC-SHA256): short bodies can't be guessed from a copy of the store."""
    id: str = field(init=False, compare=False)
    """Names the algorithm and all of the above."""

    def __post_init__(self) -> None:
        """Check the options, bring them into one order, and name them."""
        self._check_types()
        _set(self, "vary_headers", _field_names(self.vary_headers))
        _set(self, "fields", _pointers(self.fields))
        self._check_choice()
        if self.secret is not None and len(self.secret) < 16:
            raise ConfigurationError(f"secret has {len(self.secret)} bytes; give at least 16 that nobody can guess")
        _set(self, "id", self._make_id())
        if len(self.id) > MAX_ID_LENGTH:
            raise ConfigurationError("these options are too many to be stored with every record; give a named function")

    def _check_types(self) -> None:
        if not isinstance(self.raw, bool):
            raise ConfigurationError(f"raw must be True or False, not {self.raw!r}")
        if self.function is not None and not callable(self.function):
            raise ConfigurationError(f"function must be a callable that takes the request, not {self.function!r}")
        if self.secret is not None and not isinstance(self.secret, bytes):
            raise ConfigurationError(f"secret must be bytes, such as os.urandom(32), not {type(self.secret).__name__}")

    def _check_choice(self) -> None:
        if (self.function is not None) + bool(self.fields) + self.raw > 1:
            raise ConfigurationError("fields, raw and function exclude each other; give one of them")
        if self.function is not None and not (self.name and self.version):
            raise ConfigurationError("function needs a name and a version, stored with every record; give both")
        if self.function is None and (self.name or self.version):
            raise ConfigurationError("name and version belong to a function; give function, or leave them out")

    def _make_id(self) -> str:
        parts = [VERSION]
        if self.vary_headers:
            parts.append("vary=" + _joined(self.vary_headers))
        if self.fields:
            parts.append("fields=" + _joined(self.fields))
        if self.raw:
            parts.append("raw")
        if self.function is not None:
            parts.append(f"call={_escaped(self.name)}@{_escaped(self.version)}")
        if self.secret is not None:
            parts.append("hmac=" + hmac.digest(self.secret, _SECRET_ID, "sha256")[:4].hex())
        return ";".join(parts)


def fingerprint(request: Request, options: FingerprintOptions, path: str | None = None) -> bytes:
    """Return the id and the digest of a request (R17); ``path`` is its canonical path, where the caller has it."""
    content_type, essence, codings = _media(request.headers)
    if options.function is not None:
        form, body = b"call", options.function(request)  # R20
    elif options.raw:
        form, body = _bytes_form(codings), request.body  # R20
    else:
        form, body = _meaning(request, options.fields, content_type, essence, codings)
    method = request.method.encode("utf-8", "surrogatepass")
    target = (canonical_path(request.raw_path) if path is None else path).encode("ascii")
    query = canonical_query(request.query) if request.query else b""
    varied = _varied(request.headers, options.vary_headers) if options.vary_headers else b""
    lengths = _LENGTHS.pack(
        len(method), len(target), len(query), len(essence), len(form), len(varied), len(body)
    )  # framed: nothing runs into its neighbour
    head = b"".join((lengths, method, target, query, essence, form, varied))
    digest = hashlib.sha256(head) if options.secret is None else hmac.new(options.secret, head, "sha256")
    digest.update(body)
    return f"{options.id}:{digest.hexdigest()}".encode("ascii")


def refingerprint(request: Request, stored: bytes, options: FingerprintOptions) -> bytes | None:
    """Return the fingerprint that a request has under the id of a stored one (R17).

    None where this process can't tell: another algorithm, a function or secret that it does not have, or
    something that is no fingerprint. That is neither equal nor a mismatch.
    """
    match = _STORED.fullmatch(stored)
    if match is None:
        return None
    named = match[1].decode("ascii")
    known = options if named == options.id else _options_of(named, options)
    return None if known is None else fingerprint(request, known)


def same_parameters(one: bytes, other: bytes) -> bool:
    """Whether two fingerprints were made in the same way, so that they differ only where the requests do (R17)."""
    return one.rpartition(b":")[0] == other.rpartition(b":")[0]


def is_costly(request: Request) -> bool:
    """Tell whether a fingerprint may take more than about a millisecond: too long for an event loop."""
    size = len(request.body)
    return size > LARGE_BODY or (size > SMALL_BODY and bool(_media(request.headers)[2]))


def _media(headers: Headers) -> tuple[bytes, bytes, list[bytes]]:
    """Return the content type, its essence (type and subtype), and the content codings."""
    types: list[bytes] = []
    codings: list[bytes] = []
    for name, value in headers:
        size = len(name)
        if size == 12 and name.lower() == b"content-type":
            types.append(value)
        elif size == 16 and name.lower() == b"content-encoding":
            codings.append(value)
    content_type = types[0] if len(types) == 1 else b", ".join(types)
    essence = content_type.partition(b";")[0] if len(types) == 1 else content_type
    return content_type, essence.strip(b" \t").lower(), content_codings(codings) if codings else codings


def _meaning(
    request: Request, fields: Sequence[str], content_type: bytes, essence: bytes, codings: Sequence[bytes]
) -> tuple[bytes, bytes]:
    """Return what of the body is compared, and the name of that form: two forms are never equal (R19)."""
    body = decode_content(request.body, codings) if codings else request.body
    if body is None:
        return _bytes_form(codings), request.body  # R19
    if essence in _JSON or essence.endswith(b"+json"):
        form, canonical = (b"fields", _select(body, fields)) if fields else (b"json", canonical_json(body))
    elif essence == _FORM:
        form, canonical = b"form", canonical_form(body)
    elif essence.startswith(b"multipart/"):
        form, canonical = b"multipart", canonical_multipart(body, content_type)
    else:
        return b"bytes", body
    return (b"bytes", body) if canonical is None else (form, canonical)


def _bytes_form(codings: Sequence[bytes]) -> bytes:
    """Name a comparison of bytes; the same bytes under a coding that was not undone mean something else."""
    return b"bytes;" + b",".join(codings) if codings else b"bytes"


def _select(body: bytes, pointers: Sequence[str]) -> bytes | None:
    try:
        return write_json(select_json(read_json(body), pointers))
    except ValueError:
        return None


def _varied(headers: Headers, names: Sequence[str]) -> bytes:
    """Return the combined values of fields (RFC 9110 §5.3); one that is missing is not an empty one."""
    parts: list[bytes] = []
    for name in names:
        wanted = name.encode("ascii")
        values = [value.strip(b" \t") for field_name, value in headers if field_name.lower() == wanted]
        combined = b", ".join(values)
        parts.append(b"%d:%b" % (len(combined), combined) if values else b"-")
    return b"".join(parts)


def _options_of(named: str, own: FingerprintOptions) -> FingerprintOptions | None:
    """Return the options that an id names, as far as this process has what they need."""
    version, *parameters = named.split(";")
    given: dict[str, str] = {}
    for parameter in parameters:
        name, _, given[name] = parameter.partition("=")
    if version != VERSION:
        return None
    call = "call" in given
    try:
        options = FingerprintOptions(
            vary_headers=_split(given.get("vary")),
            fields=_split(given.get("fields")),
            raw="raw" in given,
            function=own.function if call else None,
            name=own.name if call else "",
            version=own.version if call else "",
            secret=own.secret if "hmac" in given else None,
        )
    except ValueError:
        return None
    return options if options.id == named else None  # anything unknown, doubled or spelled otherwise shows here


def _field_names(values: Sequence[str]) -> tuple[str, ...]:
    _refuse_text("vary_headers", values)
    for value in values:
        if not _NAME.fullmatch(value):
            raise ConfigurationError(f"vary_headers names {value!r}, which is no field name; correct it")
    return tuple(sorted({value.lower() for value in values}))


def _pointers(values: Sequence[str]) -> tuple[str, ...]:
    _refuse_text("fields", values)
    for value in values:
        try:
            pointer_tokens(value)
            value.encode("utf-8")
        except ValueError:
            raise ConfigurationError(f"fields names {value!r}, which is no JSON pointer; write /amount, say") from None
    return tuple(sorted(set(values)))


def _refuse_text(what: str, values: Sequence[str]) -> None:
    if isinstance(values, str):
        raise ConfigurationError(f"{what} is the text {values!r}; give a tuple, such as ({values!r},)")


def _joined(values: Iterable[str]) -> str:
    return ",".join(_escaped(value) for value in values)


def _escaped(value: str) -> str:
    return quote(value, errors="surrogatepass")  # "/" stays, for pointers


def _split(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(unquote(part) for part in text.split(","))


def _set(options: FingerprintOptions, name: str, value: object) -> None:
    object.__setattr__(options, name, value)
