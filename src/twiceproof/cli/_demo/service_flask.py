"""The demo's payments API once more, as its users would write it with Flask; the same endpoints on the same books.

It runs on its own too: ``gunicorn "twiceproof.cli._demo.service_flask:make_app()"``. Settings as for the other one.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

from flask import Blueprint, Flask, abort, g, request
from flask.typing import ResponseReturnValue

from twiceproof.cli._demo.ledger import Ledger
from twiceproof.server.flask import Idempotency

STORE = os.environ.get("TWICEPROOF_DEMO_STORE", "sqlite:///keys.db")
NAMESPACE = "payments"
LEASE = float(os.environ.get("TWICEPROOF_DEMO_LEASE", "30"))
STORE_TIMEOUT = float(os.environ.get("TWICEPROOF_DEMO_STORE_TIMEOUT", "2"))

View = Callable[..., ResponseReturnValue]

ledger = Ledger(os.environ.get("TWICEPROOF_DEMO_EFFECTS", "effects.db"))
idempotency = Idempotency(store=STORE, namespace=NAMESPACE, principal=lambda: g.account, store_timeout=STORE_TIMEOUT)
payments = Blueprint("payments", __name__)


@dataclass(frozen=True, slots=True)
class Payment:
    """What an account asks for. ``intent`` is the caller's own name for it, such as an order number."""

    intent: str
    to: str
    amount: int

    @classmethod
    def asked(cls) -> Self:
        """Return what the request asks for; 422 where it makes no sense."""
        document: Any = request.get_json()
        try:
            payment = cls(**document)
            sensible = 0 < len(payment.intent) <= 100 and 0 < len(payment.to) <= 100 and payment.amount > 0
        except TypeError:
            sensible, payment = False, None
        if payment is None or not sensible:
            abort(422, "Send an intent and a receiver of up to 100 characters, and an amount above 0.")
        return payment


def account_required(view: View) -> View:
    """Refuse a request whose bearer token stands for no account, or for none any more."""

    @functools.wraps(view)
    def guarded(*args: Any, **values: Any) -> ResponseReturnValue:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        g.account = ledger.account_of(token.strip()) if scheme.lower() == "bearer" else None
        if g.account is None:
            return {"detail": "Send the bearer token of an account."}, 401, {"WWW-Authenticate": "Bearer"}
        return view(*args, **values)

    return guarded


def delay() -> None:
    """Take the time that the request asks for."""
    time.sleep(min(60.0, max(0.0, request.headers.get("Demo-Delay", 0.0, type=float))))


@payments.post("/transfers")
@account_required
@idempotency.operation(required=True, lease=LEASE)  # guarantee="at_most_once" is the default
def create_transfer() -> ResponseReturnValue:
    """Move money: one effect per run, so it must not run twice."""
    payment = Payment.asked()
    number = ledger.transfer(g.account, payment.intent, payment.amount, os.getpid())
    delay()
    return {"id": f"tr_{number}", "account": g.account, **asdict(payment)}, 201


@payments.post("/refunds")
@account_required
@idempotency.operation(required=True, lease=LEASE, guarantee="at_least_once")
def create_refund() -> ResponseReturnValue:
    """Pay back: the books take an intent once, so it may run again after a crash."""
    payment = Payment.asked()
    number = ledger.refund(g.account, payment.intent, payment.amount, os.getpid())
    delay()
    return {"id": f"re_{number}", "account": g.account, **asdict(payment)}, 201


@payments.post("/tokens")
@account_required
def create_token() -> ResponseReturnValue:
    """Give the account another token: credentials change, the principal stays (R12)."""
    return {"token": ledger.grant(g.account)}, 201


@payments.delete("/tokens/<token>")
@account_required
def revoke_token(token: str) -> ResponseReturnValue:
    """Revoke a token of the account."""
    if ledger.account_of(token) == g.account:
        ledger.revoke(token)
    return "", 204


@payments.get("/effects")
def effects() -> ResponseReturnValue:
    """Count what really happened, from the books and not from the keys."""
    counts = ledger.counts(request.args.get("intent"))
    return {
        "effects": sum(count.effects for count in counts),
        "runs": sum(count.runs for count in counts),
        "intents": [asdict(count) for count in counts],
    }


@payments.get("/workers")
def workers() -> ResponseReturnValue:
    """Name the worker processes so far, in the order of their start."""
    return {"pids": ledger.workers()}


def make_app() -> Flask:
    """Return the application, and open the books: every worker makes its own."""
    app = Flask("payments")
    idempotency.install(app)
    app.register_blueprint(payments)
    ledger.create()
    ledger.enter(os.getpid())
    return app
