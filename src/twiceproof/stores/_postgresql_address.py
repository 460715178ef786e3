"""A PostgreSQL database and how a store speaks to it: what the URL and the arguments say."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, Unpack, cast
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from twiceproof.errors import ConfigurationError
from twiceproof.stores._postgresql_schema import full_name
from twiceproof.stores._postgresql_statements import CLOCK, Statements, statements
from twiceproof.stores._url import parse_url

_MOST_CONNECTIONS: Final = 64
_LOCK_WAIT: Final = 0.8  # of the time-out: the server then says itself that nothing was written,
_STATEMENT: Final = 0.9  # before we have to give up without knowing
_SCHEME: Final = re.compile(r"\Apostgres(ql)?(\+asyncpg)?://", re.IGNORECASE)


class Options(TypedDict, total=False):
    """What the stores take beside the URL, whose options of the same name win."""

    timeout: float
    """How many seconds a verb may take: 2."""
    connections: int
    """How many connections a process has at most, on each event loop: 2, which is enough."""
    schema: str
    """Where the table is: ``public``."""
    table: str
    """What it is called: ``twiceproof_record``."""
    pgbouncer: bool
    """Leave out what pgbouncer does not take in its transaction mode."""
    _clock: str


@dataclass(frozen=True, slots=True)
class Address:
    """Where the records are. ``where`` is for messages; ``url`` and ``parameters`` may hold a password."""

    where: str
    url: str = field(repr=False)
    parameters: Mapping[str, Any] = field(repr=False)
    timeout: float = 2.0
    connections: int = 2
    schema: str = "public"
    table: str = "twiceproof_record"
    pgbouncer: bool = False
    _clock: str = CLOCK

    @classmethod
    def of(cls, url: str, **options: Unpack[Options]) -> Address:
        """Return what a URL, or libpq's connection string, and the options say; raise `ConfigurationError`."""
        if "://" in url:
            target = parse_url(url)
            options |= cast("Options", cast("object", target.options))
            url = _SCHEME.sub("postgresql://", target.url)
        parameters = _parsed(url)
        made = cls(_where(parameters), url, parameters, **options)
        if not (math.isfinite(made.timeout) and made.timeout > 0):
            raise ConfigurationError(f"timeout must be a number of seconds above 0, not {made.timeout}.")
        if not 1 <= made.connections <= _MOST_CONNECTIONS:
            raise ConfigurationError(
                f"connections={made.connections} must be a whole number from 1 to {_MOST_CONNECTIONS}."
            )
        full_name(made.schema, made.table)
        return made

    @property
    def options(self) -> Options:
        """What `of` was given beside the URL."""
        return {
            "timeout": self.timeout,
            "connections": self.connections,
            "schema": self.schema,
            "table": self.table,
            "pgbouncer": self.pgbouncer,
            "_clock": self._clock,
        }

    @property
    def name(self) -> str:
        """The table's full, quoted name."""
        return full_name(self.schema, self.table)

    @property
    def statements(self) -> Statements:
        """The statements for its table."""
        return statements(self.name, self._clock)

    @property
    def settings(self) -> dict[str, str]:
        """The settings of our own connections; pgbouncer lets none pass."""
        if self.pgbouncer:
            return {}
        return {
            "default_transaction_isolation": "read committed",  # a lost race is then never an error
            "default_transaction_read_only": "off",
            "lock_timeout": f"{math.ceil(self.timeout * 1000 * _LOCK_WAIT)}",
            "statement_timeout": f"{math.ceil(self.timeout * 1000 * _STATEMENT)}",
            # A plan is made once for each connection, perhaps over an empty table, and must stay right when that grows.
            "plan_cache_mode": "force_generic_plan",
            "enable_seqscan": "off",
            "jit": "off",
        }

    @property
    def application(self) -> str:
        """What the server's lists call our connections."""
        return str(self.parameters.get("application_name") or "twiceproof")

    def conninfo(self, **changes: str) -> str:
        """Return libpq's connection string, with our settings after those that the URL gives."""
        options = " ".join("-c {}={}".format(name, value.replace(" ", r"\ ")) for name, value in self.settings.items())
        given = self.parameters.get("options")
        parameters = {**self.parameters, "application_name": self.application, "client_encoding": "utf8", **changes}
        parameters.pop("options", None)
        return make_conninfo("", **parameters, options=f"{given} {options}".strip() if given else options)


def _parsed(url: str) -> dict[str, Any]:
    """Return what libpq makes of it; nothing of what it can't read is repeated, since that may be of a password."""
    try:
        parameters: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        parameters = {"port": "?"}
    ports = str(parameters.get("port") or "").split(",")
    # a / in a password ends the host, and an @ begins it too early
    misread = "://" in url and ("@" in urlsplit(url).path or "@" in str(parameters.get("host") or "")[1:])
    if misread or not all(port == "" or _is_port(port) for port in ports):
        raise ConfigurationError(
            "This PostgreSQL URL can't be read; write postgresql://user:password@host:5432/database, with %40 for"
            " an @, %2F for a / and %25 for a % in a password, and %3D for a = in an option's value."
        )
    return parameters


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


def _where(parameters: Mapping[str, Any]) -> str:
    """Return host, port and database, as far as they are given."""
    hosts = str(parameters.get("host") or parameters.get("hostaddr") or "localhost").split(",")
    ports = str(parameters.get("port") or "5432").split(",")
    if len(ports) < len(hosts):
        ports = ports[:1] * len(hosts)
    pairs = ",".join(
        f"{f'[{host}]' if ':' in host else host}:{port or 5432}" for host, port in zip(hosts, ports, strict=False)
    )
    return f"{pairs}/{parameters.get('dbname') or ''}".rstrip("/")
