"""A Redis server, and how a store speaks to it: what the URL and the arguments say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from twiceproof.errors import ConfigurationError
from twiceproof.stores._url import parse_url, shown

PREFIX: Final = "twiceproof"
CONNECTIONS: Final = 2
_MOST_CONNECTIONS: Final = 64
_EXAMPLE: Final = "redis://localhost:6379/0 or rediss://user:password@host:6379/0"
_TLS: Final = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}


@dataclass(frozen=True, slots=True)
class Address:
    """Where the records are. ``where`` is for messages; ``options``, those of redis-py, may hold a password."""

    where: str
    tls: bool
    options: Mapping[str, Any] = field(repr=False)
    timeout: float
    connections: int
    prefix: str


def address(url: str, *, timeout: float, connections: int, prefix: str) -> Address:
    """Return what a URL says; its options win over the arguments."""
    target = parse_url(url)
    if target.scheme not in _TLS:
        raise ConfigurationError(f"{shown(url)} is not the URL of a Redis server; write {_EXAMPLE}.")
    if not (math.isfinite(timeout) and timeout > 0):
        raise ConfigurationError(f"timeout must be a number of seconds above 0, not {timeout}.")
    connections = target.options.get("connections", connections)
    if not 1 <= connections <= _MOST_CONNECTIONS:
        raise ConfigurationError(f"connections={connections} must be a whole number from 1 to {_MOST_CONNECTIONS}.")
    where, options = _parts(target.url)
    tls = _TLS[target.scheme]
    if tls:
        options |= _checked_tls(options)
    return Address(where, tls, options, timeout, connections, _checked(target.options.get("prefix", prefix)))


def _parts(url: str) -> tuple[str, dict[str, Any]]:
    """Return host, port and database for messages, and the options of a connection."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError:
        raise ConfigurationError(f"{shown(url)}: its port is not a number; write {_EXAMPLE}.") from None
    database = parts.path.strip("/") or "0"
    if not (database.isascii() and database.isdigit() and len(database) < 10):
        raise ConfigurationError(f"{shown(url)}: what follows the host is the number of a database, such as /0.")
    options: dict[str, Any] = {**dict(parse_qsl(parts.query)), "host": host, "port": port, "db": int(database)}
    if parts.username:
        options["username"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)
    return f"{f'[{host}]' if ':' in host else host}:{port}/{int(database)}", options


def _checked_tls(options: Mapping[str, Any]) -> dict[str, Any]:
    demands = options.get("ssl_cert_reqs", "required")
    if demands not in {"none", "optional", "required"}:
        raise ConfigurationError(f"ssl_cert_reqs={demands[:20]!r} must be none, optional or required.")
    name = options.get("ssl_check_hostname", "true").lower()
    if name not in {"true", "false"}:
        raise ConfigurationError(f"ssl_check_hostname={name[:20]!r} must be true or false.")
    return {"ssl_cert_reqs": demands, "ssl_check_hostname": name == "true" and demands != "none"}


def _checked(prefix: str) -> str:
    if not prefix or not prefix.isprintable() or len(prefix) > 100 or set(prefix) & set("{}"):
        raise ConfigurationError(f"prefix={prefix[:20]!r} must be a printable text of 1 to 100 characters, no braces.")
    return prefix
