"""What a store URL says: ``sqlite:///keys.db``, ``sqlite:////var/lib/app/keys.db``, ``memory://``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from twiceproof.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Target:
    """What a store URL says: the file's path where there is one, and keyword arguments of the store's class."""

    scheme: str
    path: str
    options: dict[str, Any]


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 12 and int(text) > 0:
        return int(text)
    raise ConfigurationError(f"max_records={text[:20]!r} must be a whole number of at least 1, in at most 12 digits.")


def _synchronous(text: str) -> str:
    if text.upper() in {"FULL", "NORMAL"}:
        return text.upper()
    raise ConfigurationError(f"synchronous={text!r} must be FULL or NORMAL.")


_OPTIONS: Final[Mapping[str, Mapping[str, Callable[[str], object]]]] = {
    "memory": {"max_records": _count},
    "sqlite": {"synchronous": _synchronous},
}
_EXAMPLES: Final = "sqlite:///keys.db, sqlite:////var/lib/app/keys.db or memory://"


def parse_url(url: str) -> Target:
    """Return what ``url`` says, or raise `ConfigurationError`."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in _OPTIONS:
        raise ConfigurationError(
            f"{_shown(url)} is not a store URL{_suggestion(scheme.lower(), _OPTIONS)}; write {_EXAMPLES}."
        )
    scheme = scheme.lower()
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{_shown(url)} is not a store URL ({error}); write {_EXAMPLES}.") from None
    if parts.fragment:
        raise ConfigurationError(f"{_shown(url)}: write %23 for a # in a file name.")
    options = _options(scheme, parts.query)
    if scheme == "memory":
        if parts.netloc or parts.path.strip("/"):
            raise ConfigurationError(f"{_shown(url)}: the memory store has no name; write memory://.")
        return Target(scheme, "", options)
    return Target(scheme, _file(url, parts.netloc, parts.path), options)


def _file(url: str, host: str, path: str) -> str:
    if host:
        raise ConfigurationError(
            f"{_shown(url)} names a host; write sqlite:///{host}{path} with three slashes for a relative file, "
            "four for an absolute one."
        )
    name = unquote(path.removeprefix("/"), errors="surrogateescape")
    if not name or name.endswith("/"):
        raise ConfigurationError(f"{_shown(url)} names no file; write sqlite:///keys.db.")
    return name


def _options(scheme: str, query: str) -> dict[str, Any]:
    known = _OPTIONS[scheme]
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ConfigurationError(
                f"The {scheme} store has no option {name!r}{_suggestion(name, known)}; it knows {', '.join(known)}."
            )
        if name in options:
            raise ConfigurationError(f"The option {name!r} is given twice; keep one.")
        options[name] = known[name](value)
    return options


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(url: str) -> str:
    """Return ``url`` for a message, without what could be a password."""
    before, at, after = url.rpartition("@")
    return repr(f"{before.partition('://')[0]}://…@{after}" if at else url)
