"""``twiceproof keys resolve``: the way out for a record whose outcome nobody knows (R28)."""

from __future__ import annotations

import mimetypes
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

import click

from twiceproof.cli._operator import reason_option, refuse, refuse_newer, report
from twiceproof.cli._output import Cannot, span
from twiceproof.cli._store import duration, opened, parse_id, store_options
from twiceproof.core._codec import encode
from twiceproof.core._kept import to_store
from twiceproof.core._messages import Response
from twiceproof.core._policy import DAY, Policy
from twiceproof.core._record import Absent, Done, Fenced, Found, Granted, Held, Record, State

if TYPE_CHECKING:
    from twiceproof.stores import Store

LEASE: Final = 30.0  # of the second claim: if we die between its two statements, the record is free again after it
LARGEST_BODY: Final = 16 * 1024 * 1024
EPILOG: Final = """
\b
Examples:
  twiceproof keys resolve sqlite:///keys.db 3f9a0c41d2e8 --nothing-happened --reason "no such payment at the bank"
  twiceproof keys resolve sqlite:///keys.db 3f9a0c41d2e8 --completed --reason "paid; nobody has the answer any more"
  twiceproof keys resolve sqlite:///keys.db 3f9a0c41d2e8 --completed --status 201 --location /transfers/81 \\
      --body-file answer.json --reason "the bank says paid"
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the operator says: an answer, or that nothing happened (None)."""

    answer: Response | None
    sentence: str
    retention: float = 0.0

    @property
    def can_repeat(self) -> bool:
        """Whether a retry runs the handler again."""
        return self.answer is None


@click.command(epilog=EPILOG)
@store_options
@click.argument("id")
@click.option("--completed", is_flag=True, help="It took effect: a retry never runs it again.")
@click.option("--nothing-happened", is_flag=True, help="It had no effect: a retry runs it again.")
@reason_option(required=True)
@click.option("--status", type=click.IntRange(200, 599), help="With --completed: the status of the replay.")
@click.option("--location", help="With --completed: its Location field.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="With --completed: a field; repeat.")
@click.option("--body-file", metavar="FILE", help="With --completed: its body; - reads standard input.")
@click.option("--retention", type=duration(low=1.0), help="With --completed: how long it answers, 24h unless given.")
@click.option("--force", is_flag=True, help="Also while a lease is live: what runs is fenced, not stopped.")
def resolve(
    url: str,
    timeout: float,
    id: str,
    reason: str,
    status: int | None,
    location: str | None,
    headers: tuple[str, ...],
    body_file: str | None,
    retention: float | None,
    *,
    completed: bool,
    nothing_happened: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Decide a record whose outcome nobody knows, so that its key has an end.

    Find out first what happened: ask the system where the effect would be.

    --completed can't repeat an effect: a retry of the original request is answered from the record. Without --status
    and --body-file there is no answer to send again, and a retry gets 409 replay-unavailable.

    --nothing-happened CAN repeat an effect: the record goes, and a retry runs the handler. Say it only where the
    first attempt had no effect and can no longer have one.

    Refused while a lease is live, while a reconcile hook is asked (both yield to --force), and once it is completed.
    """
    if completed == nothing_happened:
        raise click.UsageError("Say what happened: --completed or --nothing-happened, one of them.")
    if nothing_happened:
        if status is not None or location is not None or headers or body_file is not None or retention is not None:
            raise click.UsageError("--status, --location, --header, --body-file and --retention go with --completed.")
        verdict = Verdict(None, "Released as not executed: a retry with this key runs the handler again.")
    else:
        verdict = _completed(status, location, headers, body_file, DAY if retention is None else retention)
    with opened(url, timeout) as store:
        record = parse_id(store, id)
        refuse_newer(record)
        _settle(store, record, verdict, force=force, as_json=as_json)
    forced = force and not record.unsettled
    sentences = [f"{record.id.hex()}  {record.operation}", verdict.sentence]
    if forced:
        sentences.append(
            "A lease was live: its holder is fenced, but what it runs is not stopped, and may take effect."
        )
    report(
        "resolve",
        record,
        [*sentences, _repeats(verdict), f"Reason: {reason}"],
        as_json=as_json,
        verdict="nothing_happened" if verdict.answer is None else "completed",
        forced=forced,
        can_repeat_an_effect=verdict.can_repeat,
        status=None if verdict.answer is None else verdict.answer.status,
        body_kept=None if verdict.answer is None else verdict.answer.body is not None,
        reason=reason,
    )


def _repeats(verdict: Verdict) -> str:
    if verdict.can_repeat:
        return "This can repeat an effect, if the first attempt had one after all."
    return "This can't repeat an effect."


def _settle(store: Store, record: Record, verdict: Verdict, *, force: bool, as_json: bool) -> None:
    """Take the second claim beside the record's token, then settle under it (R28)."""
    nonce = os.urandom(16)
    claimed = store.claim_unsettled(record.id, LEASE, nonce, 0.0, force=force)
    match claimed:
        case Granted():
            pass
        case Absent():
            refuse(record, "absent", "The record is gone: released, forgotten or expired meanwhile.", as_json=as_json)
        case Held(record=now) if now.reconciling and now.unsettled:
            left = span((now.reconcile_until or now.now) - now.now)
            refuse(
                record,
                "reconciling",
                f"A reconcile hook is asked about it, for {left} at most; wait, or give --force.",
                as_json=as_json,
            )
        case Held(record=now):
            refuse(record, "lease-live", _live(now), as_json=as_json)
        case Found(record=now):
            if now.state is State.COMPLETED:
                refuse(
                    record,
                    "completed",
                    "It is completed already; 'keys show' prints its answer, 'keys forget' deletes it.",
                    as_json=as_json,
                )
            refuse(
                record, "changed", "It changed meanwhile; look at it with 'keys show' and try again.", as_json=as_json
            )
        case _:
            assert_never(claimed)
    if verdict.answer is None:
        settled = store.release(record.id, nonce)
    else:
        settled = store.complete(record.id, nonce, encode(verdict.answer), verdict.retention)
    match settled:
        case Done():
            return
        case Fenced():  # R42: the token decides, never the time
            refuse(
                record,
                "fenced",
                "Its holder came back and renewed or settled it meanwhile: what the holder says stands.",
                as_json=as_json,
            )
        case _:
            assert_never(settled)


def _live(record: Record) -> str:
    if record.state is State.WAITING:
        return "It waits for its next attempt; let it, or give --force."
    return (
        f"It is still in flight: its lease is live for {span(record.lease_until - record.now)}. Wait until its holder "
        "has answered or its lease has run out; or stop the holder and give --force."
    )


def _completed(
    status: int | None, location: str | None, lines: tuple[str, ...], body_file: str | None, retention: float
) -> Verdict:
    """Return the verdict with the answer that a replay will send, cut down to what is stored (R46)."""
    fields = [_field(line) for line in lines]
    if location is not None:
        fields.append(_field(f"Location: {location}"))
    if status is None and body_file is None:
        if any(name.lower() != b"location" for name, _ in fields):
            raise click.UsageError("--header goes with --status or --body-file: without them no answer is sent again.")
        answer = to_store(Response(200, fields, None), Policy())  # R26
        says = "Completed without an answer: a retry gets 409 replay-unavailable."
        return Verdict(answer, f"{says} It is kept for {span(retention)}.", retention)
    body = b"" if body_file is None else _read(body_file)
    if body and not any(name.lower() == b"content-type" for name, _ in fields):
        guessed, _ = mimetypes.guess_type(body_file or "")
        if guessed is not None:
            fields.append((b"content-type", guessed.encode("ascii")))
    answer = to_store(Response(status or 200, fields, body), Policy(max_response_bytes=len(body)))
    if len(answer.headers) != len(fields):
        kept = {name for name, _ in answer.headers}
        dropped = ", ".join(sorted({name.decode() for name, _ in fields if name not in kept}))
        raise Cannot(f"--header: {dropped} is never stored; leave it out.")
    size = len(answer.body or b"")  # of a 204 or 304, none is kept
    says = f"Completed: for {span(retention)} a retry is answered {answer.status} with a body of {size:,} bytes."
    return Verdict(answer, says, retention)


def _field(line: str) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(":")
    value = value.strip(" \t")
    if not colon or not re.fullmatch(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", name):
        raise click.UsageError(f"{line!r} is no field line; write --header 'Name: value'.")
    if not value.isascii() or not (value == "" or value.isprintable()):
        raise click.UsageError(f"The value of {name} holds a character that a field can't; use visible ASCII.")
    return name.encode("ascii"), value.encode("ascii")


def _read(name: str) -> bytes:
    try:
        if name == "-":
            body = sys.stdin.buffer.read(LARGEST_BODY + 1)
        else:
            with Path(name).open("rb") as file:
                body = file.read(LARGEST_BODY + 1)
    except (OSError, ValueError) as error:
        raise Cannot(f"--body-file {name} can't be read ({error}).") from None
    if len(body) > LARGEST_BODY:
        raise Cannot(f"--body-file {name} is over {LARGEST_BODY:,} bytes; leave it out, and replays say 409.")
    return body
