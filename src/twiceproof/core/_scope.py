"""Scope and identity: who asks for what, and under which record id (R14-R16, R54)."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twiceproof.core._path import canonical_path
from twiceproof.errors import ConfigurationError

if TYPE_CHECKING:
    from twiceproof.core._messages import Headers, Request
    from twiceproof.core._policy import Policy

PER_REQUEST_SCHEMES: Final = frozenset(
    {"aws4-hmac-sha256", "digest", "dpop", "hoba", "mac", "oauth", "scram-sha-1", "scram-sha-256", "signature", "vapid"}
)
"""Schemes whose field value changes with every request, so that it names nobody (R12)."""


@dataclass(frozen=True, slots=True)
class Site:
    """What is the same for all operations of an application.

    ``secret`` keys the digests of principals and keys; without it they are keyed with the namespace, which is not
    secret (R54). ``docs_url`` is where the problem codes are explained.
    """

    namespace: str
    secret: bytes | None = None
    docs_url: str | None = None

    def digest(self, value: str) -> bytes:
        """Return the digest under which a principal or a key is stored (R54)."""
        return hmac.digest(self.secret or self.namespace.encode(), value.encode("utf-8", "surrogatepass"), "sha256")


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
    who = _principal_digest(site, principal)
    key_digest = site.digest(key)
    digest = hashlib.sha256()
    for part in (site.namespace.encode(), who, operation.encode(), key_digest):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return Scope(who, operation, path, key_digest, digest.digest())


@lru_cache(maxsize=1024)
def _principal_digest(site: Site, principal: str) -> bytes:
    return site.digest(principal)


def by_authorization(headers: Headers) -> str | None:
    """Return the principal that a static Authorization field names, as its digest (R12).

    None where there is none. A refreshed token is another principal. Raises `ConfigurationError` on a scheme whose
    value differs on every request.
    """
    values = [value for name, value in headers if name.lower() == b"authorization"]
    if len(values) != 1 or not values[0].strip():
        return None
    scheme = values[0].strip().partition(b" ")[0].decode("latin-1").lower()
    if scheme in PER_REQUEST_SCHEMES:
        msg = (
            f"by_authorization can't name a principal from a {scheme} credential, which changes with every request; "
            "give principal= a callable that returns the account"
        )
        raise ConfigurationError(msg)
    return "authorization:" + hashlib.sha256(values[0].strip()).hexdigest()


def anonymous(headers: Headers) -> str:  # noqa: ARG001  # the same shape as by_authorization
    """Return the one principal of an application where everybody is the same account (R12)."""
    return "anonymous"
