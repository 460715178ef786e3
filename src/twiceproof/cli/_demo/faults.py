"""Scenes in which something breaks: a worker dies in mid-handler, the store goes away and comes back."""

from __future__ import annotations

import contextlib
import json
from typing import Final

from twiceproof.cli._demo.resolving import resolve
from twiceproof.cli._demo.scene import Checks
from twiceproof.cli._demo.stage import ACCOUNTS, LIVELY, Order, Retried, Stage, until
from twiceproof.cli._demo.wire import Lost, Reply, Sent

NOT_YET: Final = {"in-progress", "store-unavailable", "outcome-unknown"}
SLACK: Final = 0.5
"""Seconds that a killed process may live on before the kernel has ended it."""


def killed_at_most_once(stage: Stage, checks: Checks) -> str:
    """The outcome is unknown and stays so; no 409 after the lease; an operator resolves it by the books (R28, R29)."""
    order = stage.order()
    retried = _retry_after_a_kill(order, checks)
    unknown = retried.reply
    checks.that(unknown.document.get("may_have_taken_effect") is True, "nothing says that it may have taken effect")
    checks.that(unknown.document.get("retryable") is False, "nothing says that a retry is no use")
    checks.that(str(order.ask()) == str(unknown), "the same question got another answer")
    if unknown.code != "outcome-unknown":
        return _told(retried)
    answer = json.dumps({"account": ACCOUNTS[order.token], **order.document}).encode()
    resolve(stage, order, answer)
    resolved = order.ask()
    checks.that(resolved.body == answer, "the replay is not what the operator said")
    return f"{_told(retried)}, resolved: {resolved}"


def killed_at_least_once(stage: Stage, checks: Checks) -> str:
    """After the lease one retry takes over and runs again, which its handler has declared to be safe (R27)."""
    order = stage.order("/refunds")
    retried = _retry_after_a_kill(order, checks)
    runs = order.books().runs
    checks.that(runs == 2, f"the handler ran {runs} times instead of twice")
    checks.note("the handler ran twice and the money moved once: its books take an intent once, as this guarantee asks")
    return f"{_told(retried)}, then {order.ask()}"


def store_gone_at_claim(stage: Stage, checks: Checks) -> str:
    """Without the store nothing runs; when it is back, the same key does (R48)."""
    order = stage.order()
    with stage.outage() as outage:
        outage.take()
        refused = order.ask()
        outage.give()
    checks.that(refused.field("Retry-After") is not None, "the 503 says not when to come back")
    checks.that(order.books().runs == 0, "the handler ran without a claim")
    return f"{refused}, then {_when_back(order, checks)}"


def store_gone_at_complete(stage: Stage, checks: Checks) -> str:
    """The answer goes out although it can't be stored yet; it is stored later, and the retry replays it (R47)."""
    order = stage.order()
    with stage.outage() as outage, _begun(order, outage.notice) as sent:
        outage.take()
        checks.that(not sent.answered, "the store was taken too late for this scene")
        first = sent.reply()
        meanwhile = order.ask()
        outage.give()
    checks.that(str(meanwhile) == outage.meanwhile, f"before it was stored, a retry was answered with {meanwhile}")
    again = _when_back(order, checks)
    checks.that(again.body == first.body, "the replay is another answer than the first")
    return f"{first}, then {again}"


def _begun(order: Order, delay: float) -> Sent:
    """Send the order until its handler runs; a worker that is not back from the last outage refuses it at first."""

    def running() -> Sent | None:
        sent = order.send(delay=delay)
        until(lambda: order.books().runs or sent.answered, f"the handler of {order.intent} never ran")
        if order.books().runs:
            return sent
        reply = sent.reply()
        if reply.code != "store-unavailable":
            raise Lost(f"the handler of {order.intent} never ran; it was answered with {reply}")
        return None

    sent = until(running, "the service never came back to its store")
    assert sent is not None
    return sent


def _when_back(order: Order, checks: Checks) -> Reply:
    """Ask until the service has its store again and has stored what it owes it."""
    told: set[str] = set()

    def asked() -> Reply | None:
        reply = order.ask()
        if reply.code not in NOT_YET:
            return reply
        told.add(reply.code)
        return None

    back = until(asked, "the service never came back to its store")
    assert back is not None
    if "outcome-unknown" in told:  # R28, until its holder settles it after all (R42)
        checks.note("the store was away for longer than a lease: until it was back, retries were told outcome-unknown")
    return back


def _retry_after_a_kill(order: Order, checks: Checks) -> Retried:
    """Start the order, kill -9 its worker in mid-handler, retry at once; a new worker takes the old one's place."""
    stage = order.stage
    with order.send(delay=LIVELY) as sent:
        worker = order.until_running(sent)
        started = len(stage.workers())
        killed_at = stage.kill(worker)
        with contextlib.suppress(Lost):
            checks.differ(f"the killed worker answered with {sent.reply()}")
    retried = order.retry()
    late = retried.last_held_at is not None and retried.last_held_at > killed_at + stage.lease + SLACK
    checks.that(not late, "a retry was held off for longer than one lease after the death (R29)")
    until(lambda: len(stage.workers()) > started, "the killed worker was not started again")
    return retried


def _told(retried: Retried) -> str:
    return f"409, then {retried.reply}" if retried.held else str(retried.reply)
