"""A record as commands show it: never the key, never the principal, only what was stored of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from twiceproof.cli._output import moments, span
from twiceproof.core._codec import decode
from twiceproof.core._messages import Response
from twiceproof.core._record import FORMAT, Guarantee, Held, Record, State
from twiceproof.errors import UnknownFormat
from twiceproof.stores._answers import held_or_found

UNSETTLED: Final = "unsettled"
UNKNOWN: Final = "unknown"
HEADS: Final = ("id", "state", "operation", "path", "guarantee", "attempts", "age", "expires in", "answer")
SHOWN_ID: Final = 12
STYLES: Final = {"in_flight": "cyan", UNSETTLED: "bold yellow", "waiting": "cyan", UNKNOWN: "red"}


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of a record in the words of the contract; ``cause`` says why nobody knows its outcome."""

    state: str
    cause: str | None = None

    def __str__(self) -> str:
        return f"{self.state} ({self.cause})" if self.cause else self.state


def condition(record: Record) -> Condition:
    """Return the state: parked and lapsed records are unsettled (R28), one of a newer release is unknown (R17)."""
    if record.format > FORMAT:
        return Condition(UNKNOWN, "newer format")
    if record.lapsed:
        return Condition(UNSETTLED, "lapsed")
    if record.state is State.PARKED:
        return Condition(UNSETTLED, record.cause or "parked")
    return Condition(str(record.state))


def stored_answer(record: Record) -> Response | None:
    """Return the stored answer, or None where there is none that this release can read."""
    if record.answer is None or record.format > FORMAT:
        return None
    try:
        return decode(record.answer)
    except UnknownFormat:
        return None


def row(record: Record) -> tuple[str, ...]:
    """Return the cells of one line of ``keys list``, under `HEADS`."""
    answer = stored_answer(record)
    status = "-" if answer is None else f"{answer.status}" if answer.body is not None else f"{answer.status} no body"
    return (
        record.id.hex()[:SHOWN_ID],
        str(condition(record)),
        record.operation,
        record.path,
        str(record.guarantee),
        str(record.attempts),
        span(record.now - record.created_at),
        span(record.expires_at - record.now),
        status,
    )


def data(record: Record) -> dict[str, Any]:
    """Return a record as plain data, for JSON."""
    shown = condition(record)
    answer = stored_answer(record)
    return {
        "id": record.id.hex(),
        "state": shown.state,
        "cause": shown.cause,
        "reconciling": record.reconciling,
        "operation": record.operation,
        "path": record.path,
        "namespace": record.namespace,
        "principal_digest": record.principal.hex(),
        "key_digest": record.key.hex(),
        "fingerprint": record.fingerprint.decode("ascii", "backslashreplace"),
        "guarantee": str(record.guarantee),
        "token_number": record.token.number,
        "attempts": record.attempts,
        **moments(
            created_at=record.created_at,
            granted_at=record.granted_at,
            lease_until=record.lease_until,
            completed_at=record.completed_at,
            next_attempt_at=record.next_attempt_at,
            reconcile_asked_at=record.reconcile_asked_at,
            expires_at=record.expires_at,
        ),
        "age_seconds": round(record.now - record.created_at, 3),
        "expires_in_seconds": round(record.expires_at - record.now, 3),
        "answer_status": None if answer is None else answer.status,
        "answer_body_kept": None if answer is None else answer.body is not None,
        "format": record.format,
    }


def what_a_retry_gets(record: Record) -> str:
    """Say what the same request with the same key is answered now."""
    if record.format > FORMAT:
        return "503 store-unavailable: a newer release wrote this record (R17)"
    if record.state is State.COMPLETED:
        answer = stored_answer(record)
        if answer is None:
            return "503 store-unavailable: a newer release wrote this answer (R17)"
        if answer.body is None:
            return f"409 replay-unavailable, original_status {answer.status}: the body was not kept (R26)"
        return f"{answer.status} from the record, marked Idempotent-Replayed (R25)"
    if isinstance(held_or_found(record), Held):
        return "409 in-progress (R23)"
    if record.lapsed and record.guarantee is Guarantee.AT_LEAST_ONCE:
        return "the handler's answer: under at_least_once a retry takes it over and runs (R27)"
    return "500 outcome-unknown, unless a reconcile hook decides it (R28)"
