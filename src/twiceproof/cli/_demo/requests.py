"""Scenes that need nothing but requests: duplicates, changed payloads, bad keys, other accounts, slow handlers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from typing import Final

from twiceproof.cli._demo.scene import Checks, Play, distinct, tally
from twiceproof.cli._demo.stage import BOB, LIVELY, Stage
from twiceproof.cli._demo.wire import Reply

DUPLICATES: Final = 50
KEY: Final = "Idempotency-Key"


def first_request(stage: Stage, _: Checks) -> str:
    """One request, one effect, no marker (R21)."""
    return str(stage.order().ask())


def reply_lost(stage: Stage, _: Checks) -> str:
    """The client goes away after it has sent everything; the handler goes on, and a retry reads its answer (R44)."""
    order = stage.order()
    with order.send(delay=0.4) as sent:
        order.until_running(sent)
        sent.cut()
    return str(order.retry().reply)


def duplicates(stage: Stage, checks: Checks) -> str:
    """Send the same request on many connections, all but the last byte; then all the last bytes together (R22)."""
    order = stage.order()
    with contextlib.ExitStack() as connections:
        sent = [connections.enter_context(order.send(delay=0.4, hold=1)) for _ in range(DUPLICATES)]
        time.sleep(0.2)  # the workers have read the rest of all of them, and wait for a byte each
        for one in sent:
            one.release()
        replies = [one.reply() for one in sent]
    first = [reply for reply in replies if reply.status == 201 and not reply.replayed]
    checks.that(len(first) == 1, f"{len(first)} requests were carried out instead of 1")
    for reply in replies:
        replayed = reply.replayed and reply.body == next((one.body for one in first), None)
        known = reply in first or replayed or reply.code == "in-progress"
        checks.that(known, f"a duplicate was answered with {reply}")
        _check_retry_after(reply, checks)
    return tally(replies)


def changed_during(stage: Stage, checks: Checks) -> str:
    """Send another payload under the key while the first is at work; the first is none the worse (R24, R32)."""
    order = stage.order()
    with order.send(delay=0.6) as sent:
        order.until_running(sent)
        changed = order.changed(amount=9999).ask()
        first = sent.reply()
    checks.that(str(first) == "201", f"the first request was answered with {first}")
    return f"{changed}, then {order.ask()}"


def changed_after(stage: Stage, checks: Checks) -> str:
    """Send another payload under the key when the first is done; the original still replays (R24, R32)."""
    order = stage.order()
    first = order.ask()
    changed = order.changed(amount=9999).ask()
    again = order.ask()
    _check_same(first, again, checks)
    return f"{changed}, then {again}"


def json_order(stage: Stage, checks: Checks) -> str:
    """Send the same JSON with its members the other way round and other white space (R18)."""
    order = stage.order()
    first = order.ask()
    turned = json.dumps(dict(reversed(order.document.items())), indent=2).encode()
    again = order.ask(body=turned)
    _check_same(first, again, checks)
    return str(again)


def quoted_and_bare(stage: Stage, checks: Checks) -> str:
    """Send the key bare, then as a structured-field String: it is the same key (R5)."""
    order = stage.order()
    first = order.ask(keys=[(KEY, order.key)])
    again = order.ask(keys=[(KEY, f'"{order.key}"')])
    _check_same(first, again, checks)
    return str(again)


def bad_key(*ways: Sequence[str]) -> Play:
    """Return a scene that sends a request with each of these lists of key fields; none has an effect (R3, R6, R8)."""

    def play(stage: Stage, checks: Checks) -> str:
        order = stage.order()
        replies: list[Reply] = []
        for values in ways:
            reply = order.ask(keys=[(KEY, value) for value in values])
            checks.that(
                not any(value.strip('"') and value.encode() in reply.body for value in values),
                "the answer echoes the key",
            )
            replies.append(reply)
        return distinct(replies)

    return play


def another_account(stage: Stage, checks: Checks) -> str:
    """Two accounts use the same key and payload: each has its own effect, its own receipt, its own replay (R15)."""
    mine = stage.order()
    theirs = mine.changed(token=BOB)
    first, other = mine.ask(), theirs.ask()
    checks.that(first.body != other.body, "both accounts got the same receipt")
    _check_same(first, mine.ask(), checks)
    _check_same(other, theirs.ask(), checks)
    return f"{first} and {other}"


def revoked_token(stage: Stage, checks: Checks) -> str:
    """A revoked token reads no replay; a fresh token of the same account does (R12, R49)."""
    order = stage.order()
    revoked = order.changed(token=stage.new_token())
    first = revoked.ask()
    stage.revoke(revoked.token)
    refused = revoked.ask()
    checks.that(refused.body != first.body, "the refusal gives the receipt away")
    again = order.ask()
    _check_same(first, again, checks)
    return f"{refused}, then {again}"


def outlives_leases(stage: Stage, checks: Checks) -> str:
    """The handler takes longer than three leases: renewal keeps the claim, and duplicates wait outside (R31)."""
    order = stage.order()
    held: list[Reply] = []
    with order.send(delay=3.2 * stage.lease) as sent:
        order.until_running(sent)
        end = time.monotonic() + 3.2 * stage.lease + LIVELY
        while not sent.answered and time.monotonic() < end:
            reply = order.ask()
            if not reply.replayed:  # the first may just have ended
                held.append(reply)
                _check_retry_after(reply, checks)
            time.sleep(stage.lease / 4)
        first = sent.reply()
    again = order.ask()
    _check_same(first, again, checks)
    return f"{distinct(held)} meanwhile, {first}, then {again}"


def _check_same(first: Reply, again: Reply, checks: Checks) -> None:
    checks.that(str(first) == "201", f"the first request was answered with {first}")
    checks.that(again.body == first.body, "the replay is another answer than the first")


def _check_retry_after(reply: Reply, checks: Checks) -> None:
    if reply.status == 409:
        wait = reply.field("Retry-After") or ""
        checks.that(wait.isdecimal() and int(wait) >= 1, "a 409 says not when to come back")
