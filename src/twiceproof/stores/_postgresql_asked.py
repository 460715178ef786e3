"""The columns of the PostgreSQL store's table, and how its statements name the rows that they are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

COLUMNS: Final = {
    "id": "bytea",
    "namespace": "text",
    "principal": "bytea",
    "operation": "text",
    "path": "text",
    "key": "bytea",
    "fingerprint": "bytea",
    "guarantee": "text",
    "incarnation": "bytea",
    "state": "text",
    "number": "bigint",
    "nonce": "bytea",
    "lease_until": "double precision",
    "attempts": "integer",
    "created_at": "double precision",
    "granted_at": "double precision",
    "expires_at": "double precision",
    "completed_at": "double precision",
    "next_attempt_at": "double precision",
    "cause": "text",
    "reconcile_nonce": "bytea",
    "reconcile_until": "double precision",
    "reconcile_asked_at": "double precision",
    "answer": "bytea",
    "format": "integer",
}  # R54
OPTIONAL: Final = frozenset(
    ["completed_at", "next_attempt_at", "cause", "reconcile_nonce", "reconcile_until", "reconcile_asked_at", "answer"]
)


def columns_of(alias: str) -> str:
    """Return the columns of a table by this name in the statement."""
    return ", ".join(f"{alias}.{column}" for column in COLUMNS)


@dataclass(frozen=True, slots=True)
class Asked:
    """The rows that a statement is about, as a table `a`: defined once in ``head``, then ``rows``."""

    head: str
    rows: str
    clock: str
    many: bool

    @property
    def now(self) -> str:
        """Them with the clock, read for each."""
        return f"SELECT asked.*, {self.clock} AS now FROM asked" if self.many else f"{self.rows}, {self.clock} AS now"

    def found(self, id: str) -> str:
        """Look a row up. The array keeps a plan that was made over an empty table from reading a large one whole."""
        return f"{id} = a.id AND {id} = ANY ($1::bytea[])" if self.many else f"{id} = $1::bytea"

    def same(self, left: str, right: str) -> str:
        """Pick the row of the same id, where there are several."""
        return f"{left} = {right}" if self.many else "true"

    def sorted(self, id: str) -> str:
        """Go through them in the order of ids, where there are several."""
        return f"ORDER BY {id}" if self.many else ""


def asked_one(values: Mapping[str, str], clock: str, constants: str = "") -> Asked:
    """Return the row of a statement that takes a value for each placeholder; ``constants`` are columns more."""
    rows = "SELECT " + ", ".join(f"${at}::{kind} AS {name}" for at, (name, kind) in enumerate(values.items(), 1))
    return Asked("", rows + constants, clock, many=False)


def asked_many(values: Mapping[str, str], clock: str, constants: str = "") -> Asked:
    """Return the rows of a statement that takes an array for each placeholder, in the order of their ids."""
    arrays = ", ".join(f"${at}::{kind}[]" for at, kind in enumerate(values.values(), 1))
    rows = f"SELECT a.*{constants} FROM unnest({arrays}) AS a ({', '.join(values)}) ORDER BY a.id"
    return Asked(f"asked AS MATERIALIZED ({rows}),", "SELECT * FROM asked", clock, many=True)
