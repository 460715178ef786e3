"""The store that a command works on: opened from its URL, its troubles told in one sentence."""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from twiceproof.cli._output import Cannot, Refused
from twiceproof.errors import ConfigurationError, StoreOutcomeUnknown, StoreUnavailable, UnknownFormat
from twiceproof.stores import Filter, open_store
from twiceproof.stores._url import parse_url

if TYPE_CHECKING:
    from twiceproof.core._record import Record
    from twiceproof.stores import Store

ID_BYTES: Final = 32
SHORTEST_PREFIX: Final = 8
_OTHER_NAMES: Final = {"postgres": "postgresql", "rediss": "redis", "valkey": "redis", "valkeys": "redis"}
_SECRET: Final = re.compile(r"([?&][^=&]*(?:pass|secret|token)[^=&]*)=[^&]*", re.IGNORECASE)
_SLOW: Final = re.compile(r"within [0-9.e-]+ s|too long")  # a larger time-out may help, and nothing else
PAGE: Final = 100  # records read at once: each may bear an answer of a mebibyte

_UNIT: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)", re.ASCII)


def duration(low: float = 0.0, high: float = 10 * 366 * 86_400.0) -> Callable[[str | float], float]:
    """Return an option's type: seconds, or amounts with units, such as ``90``, ``15m``, ``1h30m``, ``7d``."""

    def duration(value: str | float) -> float:  # click shows its name
        if not isinstance(value, str):
            return value  # a default
        parts = _PART.findall(value)
        if (
            "".join(map("".join, parts)) != value
            or not parts
            or (len(parts) > 1 and any(not unit for _, unit in parts))
        ):
            raise click.BadParameter(f"{value!r} is not a duration; write 90s, 15m, 24h, 7d or 1h30m.")
        seconds = math.fsum(float(amount) * _UNIT[unit] for amount, unit in parts)
        if not low <= seconds <= high:
            raise click.BadParameter(f"{value} must lie between {low:g} s and {high:g} s.")
        return seconds

    return duration


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its URL, ``--timeout`` and ``--json``."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
        click.option(
            "--timeout",
            type=duration(low=0.01, high=3600.0),
            default=10.0,
            help="How long one call of the store may take, 10 s unless given.",
        ),
        click.argument("url"),
    ):
        command = option(command)
    return command


def made(url: str, timeout: float) -> Store:
    """Return the store that a URL names, not opened; the exit code is 2 where it names none or a package is missing."""
    try:
        return open_store(url, timeout=timeout)
    except (ConfigurationError, ImportError) as error:  # the latter says what to install
        raise Cannot(str(error)) from None


@contextlib.contextmanager
def opened(url: str, timeout: float) -> Generator[Store]:
    """Open an existing store, close it afterwards, and map its errors to sentences (exit code 2)."""
    store = made(url, timeout)
    if kind_of(url) == "memory":
        raise Cannot("A memory store lives inside the process that made it; there is nothing to see from here.")
    check_file(url)
    with told(store):
        store.open()
        yield store


@contextlib.contextmanager
def told(store: Store) -> Generator[None]:
    """Map what a store raises to sentences (exit code 2), and close it at the end."""
    try:
        yield
    except ConfigurationError as error:
        raise Cannot(str(error)) from None
    except StoreUnavailable as error:
        raise _unavailable(error) from None
    except UnknownFormat as error:
        raise Cannot(f"{error} Upgrade twiceproof to read it.") from None
    finally:
        store.close()


def kind_of(url: str) -> str:
    """Return what the store of a URL is called, whichever driver or transport the URL asks for."""
    scheme = url.partition("://")[0].lower().partition("+")[0]
    return _OTHER_NAMES.get(scheme, scheme)


def shown_url(url: str) -> str:
    """Return ``url`` without what could be a password: whoever reads a terminal or a log needs none."""
    before, at, after = url.rpartition("@")
    if at:
        scheme, _, user = before.partition("://")
        name, colon, _ = user.partition(":")
        url = f"{scheme}://{name}{colon and ':…'}@{after}"
    return _SECRET.sub(r"\1=…", url)


def _unavailable(error: StoreUnavailable) -> Cannot:
    if isinstance(error, StoreOutcomeUnknown):
        return Cannot(f"{error} 'twiceproof keys show' tells whether it did.")
    advice = " Nothing was written; try again, with a larger --timeout." if _SLOW.search(str(error)) else ""
    return Cannot(f"{error}{advice}")


def check_file(url: str) -> None:
    """Refuse a SQLite file that is missing, or in which no keys were ever kept: looking must not make one."""
    target = parse_url(url)
    if target.scheme != "sqlite":
        return
    path = Path(target.path)
    if not path.exists():
        raise Cannot(f"There is no file {path}; correct the URL (four slashes begin an absolute path).")
    if not path.is_file():
        raise Cannot(f"{path} is not a file; name the database, such as {path}/keys.db.")
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=1.0)
        ) as connection:
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'twiceproof_record'").fetchone()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return  # the store itself knows how to wait
        raise Cannot(f"{path} can't be read as a SQLite database ({error}); name the file of the store.") from None
    if not version and not found[0]:
        raise Cannot(f"No keys were ever kept in {path}; name the file that the application's store= names.")


def parse_id(store: Store, text: str) -> Record:
    """Return the live record that an id, or a unique prefix of one, names; `Refused` where there is none."""
    prefix = text.lower()
    if not re.fullmatch(r"[0-9a-f]+", prefix) or len(prefix) > 2 * ID_BYTES:
        raise Cannot(f"{text!r} is not a record id: up to {2 * ID_BYTES} hexadecimal digits, as 'keys list' prints it.")
    if len(prefix) < SHORTEST_PREFIX:
        raise Cannot(f"{text!r} is too short to name a record; give at least {SHORTEST_PREFIX} digits of its id.")
    if len(prefix) == 2 * ID_BYTES:
        record = store.get(bytes.fromhex(prefix))
        found = [] if record is None else [record]
    else:
        found = _beginning_with(store, prefix)
    if not found:
        raise Refused(f"There is no live record {prefix}: it expired, was released or forgotten, or never was.")
    if len(found) > 1:
        names = " and ".join(record.id.hex()[: len(prefix) + 8] for record in found)
        raise Cannot(f"{text!r} names more than one record, such as {names}; give more digits.")
    return found[0]


def _beginning_with(store: Store, prefix: str) -> list[Record]:
    """Return the first two records with that prefix: a page at a time, however many there are."""
    found: list[Record] = []
    cursor: str | None = None
    while True:
        page = store.scan(Filter(), cursor, PAGE)
        found += [record for record in page.records if record.id.hex().startswith(prefix)]
        cursor = page.cursor
        if cursor is None or len(found) > 1:
            return found
