"""Stores as a release left them: raw contents, loaded past today's verbs, on a clock that stands at their moment.

``python -m tests.stores.format_ground`` writes what today's release leaves into the folder ``formats``. A release that
changes how records are written adds a folder of its own, and keeps those before it (R53).
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import redis

from tests.stores.postgresql_support import Place
from tests.stores.redis_support import own_prefix
from twiceproof.core._codec import encode
from twiceproof.core._messages import Response
from twiceproof.core._record import FORMAT, Guarantee, NewRecord
from twiceproof.stores.redis import RedisStore
from twiceproof.stores.sqlite import SqliteStore
from twiceproof.testing.servers import PostgresqlServer, ValkeyServer

FORMATS: Final = Path(__file__).with_name("formats")
MOMENT: Final = 1_790_000_000.0
"""When the fixtures were written; the clock of a store that reads them stands a minute later."""
LATER: Final = MOMENT + 60.0

ANSWER: Final = Response(201, ((b"content-type", b"application/json"), (b"x-a", b"1"), (b"x-a", b"2")), b'{"id": 1}')
NEW: Final = NewRecord(
    b"\x00" * 32,
    "tests",
    b"\xff" * 32,
    "POST /transfers",
    "/transfers/%C3%A4",
    b"\x80" * 32,
    b"f1\x00" + b"\x01" * 32,
    Guarantee.AT_MOST_ONCE,
    86_400.0 * 30,
)
NAMES: Final = ("completed", "in flight", "parked", "lapsed", "reconciled")


def id_of(name: str) -> bytes:
    """Return the id of the record of that name."""
    return bytes([NAMES.index(name) + 1]) * 32


def nonce_of(name: str) -> bytes:
    """Return the nonce of its claim."""
    return b"nonce of " + name.encode().ljust(12, b"\x00")


def write_all(store: Any) -> None:
    """Leave one record in each state."""
    for name in NAMES:
        lease = 0.001 if name == "lapsed" else 600.0
        guarantee = Guarantee.AT_LEAST_ONCE if name == "lapsed" else Guarantee.AT_MOST_ONCE
        store.claim(replace(NEW, id=id_of(name), guarantee=guarantee), lease, nonce_of(name))
    store.complete(id_of("completed"), nonce_of("completed"), encode(ANSWER), 86_400.0)
    store.park(id_of("parked"), nonce_of("parked"), "exception")
    store.park(id_of("reconciled"), nonce_of("reconciled"), "cut-short")
    store.claim_unsettled(id_of("reconciled"), 600.0, b"the second claim", 0.0)


def _plain(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _raw(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


class Sqlite:
    """A file."""

    name = "sqlite"

    def __init__(self, folder: Path, moment: float = LATER) -> None:
        self.path = folder / "keys.db"
        self.moment = moment

    def store(self) -> SqliteStore:
        """Return a store on the clock."""
        return SqliteStore(self.path, _clock=lambda: self.moment)

    def dump(self) -> list[str]:
        """Return it as SQL, the version in its header too."""
        with closing(sqlite3.connect(self.path)) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            return [*connection.iterdump(), f"PRAGMA user_version = {version};"]

    def load(self, dump: list[str]) -> None:
        """Make it of what `dump` returned."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript("\n".join(dump))

    def close(self) -> None:
        """Nothing is open."""

    def age(self, id: bytes) -> None:
        """Make the record one of a release to come."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("UPDATE twiceproof_record SET format = ? WHERE id = ?", (FORMAT + 1, id))


class Postgresql:
    """A schema of its own, with the table as `schema` makes it."""

    name = "postgresql"

    def __init__(self, url: str, moment: float = LATER) -> None:
        self.place = Place(url)
        execute = self.place.connection.execute
        execute(
            f"CREATE OR REPLACE FUNCTION {self.place.schema}.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
            f" 'SELECT to_timestamp({moment})'"
        )

    def store(self) -> Any:
        """Return a store on the clock."""
        return self.place.store()

    def dump(self) -> dict[str, Any]:
        """Return the statements that made the table, and its rows."""
        cursor = self.place.connection.execute(f"SELECT * FROM {self.place.table} ORDER BY id")
        assert cursor.description
        names = [column.name for column in cursor.description]
        made = self.store().schema().replace(self.place.schema, "THE_SCHEMA")
        rows = [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]
        return {"schema": made, "rows": rows}

    def load(self, dump: dict[str, Any]) -> None:
        """Make the table anew as that release made it, and fill it."""
        execute: Any = self.place.connection.execute
        execute(f"DROP TABLE {self.place.table}")
        execute(dump["schema"].replace("THE_SCHEMA", self.place.schema))
        for row in dump["rows"]:
            marks = ", ".join(["%s"] * len(row))
            execute(f"INSERT INTO {self.place.table} ({', '.join(row)}) VALUES ({marks})", [*map(_raw, row.values())])

    def age(self, id: bytes) -> None:
        """See `Sqlite.age`."""
        execute: Any = self.place.connection.execute
        execute(f"UPDATE {self.place.table} SET format = %s WHERE id = %s", (FORMAT + 1, id))

    def close(self) -> None:
        """Drop it."""
        self.place.remove()


class Redis:
    """A prefix of its own. The clock of its store is the server's, moved to the fixtures' moment."""

    name = "redis"

    def __init__(self, url: str, moment: float = LATER) -> None:
        self.url = url
        self.prefix = own_prefix()
        self.client: Any = redis.Redis.from_url(url, protocol=2)
        seconds, micros = self.client.time()
        self.shift = moment - (seconds + micros / 1e6)

    def store(self) -> RedisStore:
        """Return a store on the clock."""
        return RedisStore(self.url, prefix=self.prefix, _offset=lambda: self.shift)

    def dump(self) -> dict[str, Any]:
        """Return its hashes and sorted sets by the end of their keys."""
        found: dict[str, Any] = {}
        for key in sorted(self.client.keys(f"{{{self.prefix}}}:*")):
            end = key.decode().removeprefix(f"{{{self.prefix}}}")
            if self.client.type(key) == b"hash":
                found[end] = {name.decode(): _plain(value) for name, value in sorted(self.client.hgetall(key).items())}
            else:
                found[end] = [
                    [_plain(member), score] for member, score in self.client.zrange(key, 0, -1, withscores=True)
                ]
        return found

    def load(self, dump: dict[str, Any]) -> None:
        """Make the keys of what `dump` returned."""
        for end, value in dump.items():
            key = f"{{{self.prefix}}}{end}"
            if isinstance(value, dict):
                self.client.hset(key, mapping={name: _raw(field) for name, field in value.items()})
            else:
                self.client.zadd(key, {_raw(member): score for member, score in value})
            self.client.expire(key, 3600)

    def age(self, id: bytes) -> None:
        """See `Sqlite.age`."""
        (key,) = self.client.keys(f"{{{self.prefix}}}:*{id.hex()}")
        self.client.hset(key, "format", FORMAT + 1)

    def close(self) -> None:
        """Let go of the client."""
        self.client.close()


def main() -> None:
    """Write what today's release leaves."""
    folder = FORMATS / f"format-{FORMAT}"
    folder.mkdir(parents=True, exist_ok=True)
    with PostgresqlServer() as one, ValkeyServer() as other, tempfile.TemporaryDirectory() as place:
        for ground in (Sqlite(Path(place), MOMENT), Postgresql(one.url, MOMENT), Redis(other.url, MOMENT)):
            store: Any = ground.store()
            getattr(store, "init", store.open)()
            write_all(store)
            (folder / f"{ground.name}.json").write_text(json.dumps(ground.dump(), indent=1) + "\n")
            store.close()
            ground.close()


if __name__ == "__main__":
    main()
