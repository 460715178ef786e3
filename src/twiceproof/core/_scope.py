"""Scope and identity: who asks for what, and under which record id (R14-R16, R54)."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twiceproof.core._path import canonical_path
from twiceproof.errors import ConfigurationError

if TYPE_CHECKING:
    from twiceproof.core._messages import Headers, Request
    from twiceproof.core._policy import Policy

PER_REQUEST_SCHEMES: Final = frozenset(
    {"aws", "digest", "dpop", "hawk", "hoba", "mac", "negotiate", "ntlm", "oauth", "signature", "vapid"}
)
"""Schemes whose field value changes with every request, so that it names nobody (R12)."""
_PER_REQUEST_PREFIXES: Final = ("aws4-", "scram-", "sharedkey")

MOST_PRINCIPALS: Final = 1024
_LENGTHS: Final = struct.Struct(">II")


@dataclass(slots=True)
class Site:
    """What is the same for all operations of an application.

    ``secret`` keys the digests of principals and keys; without it they are keyed with the namespace, which is not
    secret (R54). ``docs_url`` is where the problem codes are explained.
    """

    namespace: str
    secret: bytes | None = None
    docs_url: str | None = None
    _space: bytes = field(init=False, repr=False)
    _inner: bytes = field(init=False, repr=False)
    _outer: bytes = field(init=False, repr=False)
    _principals: dict[str, bytes] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._space = self.namespace.encode()
        key = self.secret or self._space
        block = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
        self._inner, self._outer = bytes(octet ^ 0x36 for octet in block), bytes(octet ^ 0x5C for octet in block)

    def digest(self, value: str) -> bytes:
        """Return the digest under which a principal or a key is stored (R54).

        It is HMAC-SHA256 as in RFC 2104 §2, for texts so short that the objects of `hmac` take longer than the work.
        """
        inner = hashlib.sha256(self._inner + value.encode("utf-8", "surrogatepass")).digest()
        return hashlib.sha256(self._outer + inner).digest()

    def principal(self, principal: str) -> bytes:
        """Return the digest of a principal; the latest ones are remembered."""
        found = self._principals.get(principal)
        if found is None:
            if len(self._principals) >= MOST_PRINCIPALS:
                self._principals.clear()
            found = self._principals[principal] = self.digest(principal)
        return found

    def record_id(self, operation: str, principal: bytes, key: bytes) -> bytes:
        """Return the id of the record for an operation and the digests of principal and key (R14)."""
        named = operation.encode()
        lengths = _LENGTHS.pack(len(self._space), len(named))  # both digests have 32 bytes
        return hashlib.sha256(b"".join((lengths, self._space, named, principal, key))).digest()


@dataclass(slots=True)
class Scope:
    """What a key is unique within, and the record id that comes from both (R14)."""

    principal: bytes
    operation: str
    path: str
    key: bytes
    id: bytes


def operation_of(request: Request, policy: Policy) -> tuple[str, str]:
    """Return the operation of a request, method and path or the operation's name, and its path (R16)."""
    path = canonical_path(request.raw_path)
    return policy.operation or f"{request.method} {path}", path


def make_scope(site: Site, principal: str, operation: str, path: str, key: str) -> Scope:
    """Return the scope and the record id for given parts."""
    who, key_digest = site.principal(principal), site.digest(key)
    return Scope(who, operation, path, key_digest, site.record_id(operation, who, key_digest))


def by_authorization(headers: Headers) -> str | None:
    """Return the principal that a static Authorization field names, as its digest (R12).

    None where there is none. A refreshed token is another principal. Raises `ConfigurationError` on a scheme whose
    value differs on every request.
    """
    values = [value for name, value in headers if name.lower() == b"authorization"]
    if len(values) != 1 or not values[0].strip():
        return None
    scheme = values[0].split(maxsplit=1)[0].decode("latin-1").lower()
    if scheme in PER_REQUEST_SCHEMES or scheme.startswith(_PER_REQUEST_PREFIXES):
        msg = (  # the scheme is not named: a credential without one would be
            "by_authorization can't name a principal from a credential that changes with every request, such as a "
            "signature; give principal= a callable that returns the account"
        )
        raise ConfigurationError(msg)
    return "authorization:" + hashlib.sha256(values[0].strip()).hexdigest()


def anonymous(headers: Headers) -> str:  # noqa: ARG001  # the same shape as by_authorization
    """Return the one principal of an application where everybody is the same account (R12)."""
    return "anonymous"
