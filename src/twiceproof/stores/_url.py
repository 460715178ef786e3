"""What a store URL says: ``sqlite:///keys.db``, ``postgresql://user@host/database``, ``memory://``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, unquote_plus, urlsplit

from twiceproof.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Target:
    """What a store URL says: keyword arguments of the store's class, and where the records are.

    ``path`` is the file's where there is one, ``url`` that of a server, without the options that are ours.
    """

    scheme: str
    path: str
    options: dict[str, Any]
    url: str = field(default="", repr=False)  # it may bear a password


@dataclass(frozen=True, slots=True)
class _Scheme:
    """``options`` are the store class's own; those of a server's driver in ``passed_on`` stay in the URL."""

    options: Mapping[str, Callable[[str, str], object]]
    server: bool = False
    passed_on: frozenset[str] = frozenset()

    @property
    def known(self) -> list[str]:
        return [*self.options, *sorted(self.passed_on)]


def _count(name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 12 and int(text) > 0:
        return int(text)
    raise ConfigurationError(f"{name}={text[:20]!r} must be a whole number of at least 1, in at most 12 digits.")


def _synchronous(name: str, text: str) -> str:
    if text.upper() in {"FULL", "NORMAL"}:
        return text.upper()
    raise ConfigurationError(f"{name}={text!r} must be FULL or NORMAL.")


def _switch(name: str, text: str) -> bool:
    if text.lower() in {"true", "1", "yes", "on"}:
        return True
    if text.lower() in {"false", "0", "no", "off"}:
        return False
    raise ConfigurationError(f"{name}={text!r} must be true or false.")


def _name(_: str, text: str) -> str:
    return text


_POSTGRESQL: Final = {"schema": _name, "table": _name, "connections": _count, "pgbouncer": _switch}
_ASYNCPGS: Final = frozenset(  # what asyncpg understands as libpq does
    {
        *("application_name", "dbname", "host", "krbsrvname", "options", "passfile", "password", "port", "service"),
        *("sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert", "target_session_attrs", "user"),
    }
)
_LIBPQS: Final = _ASYNCPGS | {
    *("channel_binding", "fallback_application_name", "gssdelegation", "gssencmode", "gsslib", "hostaddr"),
    *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts"),
    *("max_protocol_version", "min_protocol_version", "require_auth", "requirepeer", "ssl_max_protocol_version"),
    *("ssl_min_protocol_version", "sslcertmode", "sslcompression", "sslcrldir", "sslkeylogfile", "sslnegotiation"),
    *("sslpassword", "sslsni", "tcp_user_timeout"),
}
_REDIS: Final = {"prefix": _name, "connections": _count}
_CLIENTS: Final = frozenset({"client_name"})
_TLS_CLIENTS: Final = _CLIENTS | {
    *("ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"),
    "ssl_password",
}
_SCHEMES: Final[Mapping[str, _Scheme]] = {
    "memory": _Scheme({"max_records": _count}),
    "sqlite": _Scheme({"synchronous": _synchronous}),
    "postgresql": _Scheme(_POSTGRESQL, server=True, passed_on=_LIBPQS),
    "postgres": _Scheme(_POSTGRESQL, server=True, passed_on=_LIBPQS),
    "postgresql+asyncpg": _Scheme(_POSTGRESQL, server=True, passed_on=_ASYNCPGS),
    "redis": _Scheme(_REDIS, server=True, passed_on=_CLIENTS),
    "rediss": _Scheme(_REDIS, server=True, passed_on=_TLS_CLIENTS),
    "valkey": _Scheme(_REDIS, server=True, passed_on=_CLIENTS),
    "valkeys": _Scheme(_REDIS, server=True, passed_on=_TLS_CLIENTS),
}
_SECRET: Final = re.compile(r"([?&][^=&]*(?:pass|secret)[^=&]*)=[^&]*", re.IGNORECASE)
_HARMLESS: Final = re.compile(r"[\w./\\ -]{1,200}")
_EXAMPLES: Final = "sqlite:///keys.db, postgresql://user@host/database, redis://host:6379/0 or memory://"


def parse_url(url: str) -> Target:
    """Return what ``url`` says, or raise `ConfigurationError`."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        raise ConfigurationError(
            f"{shown(url)} is not a store URL{_suggestion(scheme.lower(), _SCHEMES)}; write {_EXAMPLES}."
        )
    scheme = scheme.lower()
    server = _SCHEMES[scheme].server
    try:
        parts = urlsplit(url)
    except ValueError as error:
        why = "its host can't be read" if server else error  # urllib repeats the host, and a password with it
        raise ConfigurationError(f"{shown(url)} is not a store URL ({why}); write {_EXAMPLES}.") from None
    if parts.fragment:
        raise ConfigurationError(f"{shown(url)}: write %23 for a # in a {'password' if server else 'file name'}.")
    if server and "@" in parts.query and "@" not in parts.netloc:  # its words may be a password's
        raise ConfigurationError(f"{shown(url)}: write %3F for a ? in a password, and %40 for an @.")
    options = _options(scheme, parts.query)
    if server:
        return Target(scheme, "", options, _without(url, _SCHEMES[scheme].options))
    if scheme == "memory":
        if parts.netloc or parts.path.strip("/"):
            raise ConfigurationError(f"{shown(url)}: the memory store has no name; write memory://.")
        return Target(scheme, "", options)
    return Target(scheme, _file(url, parts.netloc, parts.path), options)


def _file(url: str, host: str, path: str) -> str:
    if host:
        raise ConfigurationError(
            f"{shown(url)} names a host; write sqlite:///{host}{path} with three slashes for a relative file, "
            "four for an absolute one."
        )
    name = unquote(path.removeprefix("/"), errors="surrogateescape")
    if not name or name.endswith("/"):
        raise ConfigurationError(f"{shown(url)} names no file; write sqlite:///keys.db.")
    return name


def _options(scheme: str, query: str) -> dict[str, Any]:
    known = _SCHEMES[scheme]
    options: dict[str, Any] = {}
    seen: set[str] = set()
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known.options and name not in known.passed_on:
            raise ConfigurationError(
                f"The {scheme} store has no option {name!r}{_suggestion(name, known.known)};"
                f" it knows {', '.join(known.known)}."
            )
        if name in seen:
            raise ConfigurationError(f"The option {name!r} is given twice; keep one.")
        seen.add(name)
        if name in known.options:
            options[name] = known.options[name](name, value)
    return options


def _without(url: str, options: Iterable[str]) -> str:
    """Return ``url`` without these options, and the rest as it was written."""
    address, _, query = url.partition("?")
    left = [part for part in query.split("&") if part and unquote_plus(part.partition("=")[0]) not in options]
    return "?".join([address, "&".join(left)]) if left else address


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def shown(url: str) -> str:
    """Return ``url`` for a message, without what could be a password: all of it, where it is no URL and no name."""
    if "://" not in url:
        return repr(url) if _HARMLESS.fullmatch(url) or not url else "This"
    before, at, after = url.rpartition("@")
    if "?" in before:  # the @ of a password, among the options or before them
        after = "…"
    return repr(_SECRET.sub(r"\1=…", f"{before.partition('://')[0]}://…@{after}" if at else url))
