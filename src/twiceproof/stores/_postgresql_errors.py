"""What PostgreSQL and its drivers report, as errors of ours: by SQLSTATE, and never with a value of a row."""

from __future__ import annotations

from typing import Final

from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable


class RolledBack(StoreUnavailable):
    """A serialization failure or a deadlock: nothing was written, and the same statement may be sent again at once."""


class RefusedRow(StoreUnavailable):
    """A value that the server does not take: nothing was written, neither this row nor those that came with it."""


_AGAIN: Final = frozenset({"40001", "40P01"})
_UNDECIDED: Final = frozenset({"40003", "57P01", "57P02", "57P04", "57P05"})  # the connection ends; who knows when
_ROW: Final = frozenset({"22", "23", "54"})  # data exceptions, violated constraints, too large
_SENTENCES: Final = {
    "25006": "it only reads: is it a standby?",
    "26000": "a prepared statement is gone: behind pgbouncer, add pgbouncer=true to the URL",
    "42P05": "a prepared statement is another's: behind pgbouncer, add pgbouncer=true to the URL",
    "42501": "this user may not read and write the table",
    "53100": "its disk is full",
    "53200": "it has no memory left",
    "53300": "it takes no more connections",
    "55P03": "somebody held the lock of a record, or of the table, for too long",
    "57014": "it took too long",
    "57P03": "it is starting up or shutting down",
}
_MISSING: Final = frozenset({"42P01", "3F000"})


def told(where: str, sqlstate: str | None) -> StoreUnavailable:
    """Return what to raise where the server answered a statement with an error, which undid it."""
    if sqlstate is None or sqlstate in _UNDECIDED or sqlstate.startswith("08"):
        return lost(where)
    if sqlstate in _AGAIN:
        return RolledBack()
    if sqlstate in _MISSING:
        return StoreUnavailable(missing_table(where))
    if sqlstate[:2] in _ROW:
        return RefusedRow(f"{where}: PostgreSQL refused the values of one record (SQLSTATE {sqlstate}).")
    sentence = _SENTENCES.get(sqlstate, "PostgreSQL refused the statement")
    return StoreUnavailable(f"{where}: {sentence} (SQLSTATE {sqlstate}).")


def lost(where: str) -> StoreOutcomeUnknown:
    """Return what to raise where the connection broke after something was sent."""
    return StoreOutcomeUnknown(f"{where}: the connection broke before PostgreSQL answered; it may have acted.")


def late(where: str, timeout: float) -> StoreOutcomeUnknown:
    """Return what to raise where no answer came in time."""
    return StoreOutcomeUnknown(f"{where}: PostgreSQL did not answer within {timeout:g} s; it may act yet.")


def unreachable(where: str, why: str) -> StoreUnavailable:
    """Return what to raise where no connection could be made."""
    hint = " Behind pgbouncer, add pgbouncer=true to the URL." if "unsupported startup parameter" in why else ""
    return StoreUnavailable(f"{where}: can't connect to PostgreSQL: {why.rstrip('.')}.{hint}")


def missing_table(where: str) -> str:
    """Return the sentence for a database in which the table was not made yet."""
    return f"{where}: the table of the records is missing; make it with 'twiceproof store init URL'."
