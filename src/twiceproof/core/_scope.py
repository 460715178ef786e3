"""Scope and identity: who asks for what, and under which record id (R14-R16, R54)."""

from __future__ import annotations

import hashlib
import hmac
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
    _keyed: hmac.HMAC = field(init=False, repr=False)
    _principals: dict[str, bytes] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._keyed = hmac.new(self.secret or self.namespace.encode(), digestmod="sha256")

    def digest(self, value: str) -> bytes:
        """Return the digest under which a principal or a key is stored (R54)."""
        keyed = self._keyed.copy()
        keyed.update(value.encode("utf-8", "surrogatepass"))
        return keyed.digest()

    def principal(self, principal: str) -> bytes:
        """Return the digest of a principal; the latest ones are remembered."""
        found = self._principals.get(principal)
        if found is None:
            if len(self._principals) >= MOST_PRINCIPALS:
                self._principals.clear()
            found = self._principals[principal] = self.digest(principal)
        return found


@dataclass(slots=True)
class Scope:
    """What a key is unique within, and the record id that comes from both (R14)."""

    principal: bytes
    operation: str
    path: str
    key: bytes
    id: bytes


def scope_of(site: Site, principal: str, request: Request, key: str, policy: Policy) -> Scope:
    """Return the scope of a request: method and path, or the operation's name (R16)."""
    path = canonical_path(request.raw_path)
    operation = policy.operation or f"{request.method} {path}"
    return make_scope(site, principal, operation, path, key)


def make_scope(site: Site, principal: str, operation: str, path: str, key: str) -> Scope:
    """Return the scope and the record id for given parts."""
    who, key_digest = site.principal(principal), site.digest(key)
    space, named = site.namespace.encode(), operation.encode()
    framed = (_LENGTHS.pack(len(space), len(named)), space, named, who, key_digest)  # both digests have 32 bytes
    return Scope(who, operation, path, key_digest, hashlib.sha256(b"".join(framed)).digest())


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
