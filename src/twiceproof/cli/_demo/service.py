"""A small payments API whose POSTs are safe to retry, as its users would write it with FastAPI.

It is what `twiceproof demo` plays against, and runs on its own too: ``uvicorn twiceproof.cli._demo.service:app``. The
``Demo-Delay`` field makes a handler take its time after the effect; everything else is an ordinary service. Settings
come from the environment: TWICEPROOF_DEMO_STORE, _EFFECTS, _LEASE and _STORE_TIMEOUT.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel, Field

from twiceproof.cli._demo.ledger import Ledger
from twiceproof.server.fastapi import Idempotency

STORE = os.environ.get("TWICEPROOF_DEMO_STORE", "sqlite:///keys.db")
NAMESPACE = "payments"
LEASE = float(os.environ.get("TWICEPROOF_DEMO_LEASE", "30"))
STORE_TIMEOUT = float(os.environ.get("TWICEPROOF_DEMO_STORE_TIMEOUT", "2"))

ledger = Ledger(os.environ.get("TWICEPROOF_DEMO_EFFECTS", "effects.db"))


class Payment(BaseModel):
    """What an account asks for. ``intent`` is the caller's own name for it, such as an order number."""

    intent: str = Field(min_length=1, max_length=100)
    to: str = Field(min_length=1, max_length=100)
    amount: int = Field(gt=0)


class Receipt(BaseModel):
    """What it gets."""

    id: str
    account: str
    intent: str
    to: str
    amount: int


async def current_account(authorization: Annotated[str | None, Header()] = None) -> str:
    """Return the account whose bearer token came with the request; 401 where there is none, or no more."""
    scheme, _, token = (authorization or "").partition(" ")
    account = await asyncio.to_thread(ledger.account_of, token.strip()) if scheme.lower() == "bearer" else None
    if account is None:
        raise HTTPException(401, "Send the bearer token of an account.", headers={"WWW-Authenticate": "Bearer"})
    return account


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Open the books."""
    ledger.create()
    ledger.enter(os.getpid())
    yield


Account = Annotated[str, Depends(current_account)]
Delay = Annotated[float, Header(alias="Demo-Delay", ge=0, le=60)]

app = FastAPI(title="Payments", lifespan=lifespan)
idempotency = Idempotency(store=STORE, namespace=NAMESPACE, principal=current_account, store_timeout=STORE_TIMEOUT)
idempotency.install(app)


@app.post("/transfers", status_code=201)
@idempotency.operation(required=True, lease=LEASE)  # guarantee="at_most_once" is the default
async def create_transfer(payment: Payment, account: Account, delay: Delay = 0) -> Receipt:
    """Move money: one effect per run, so it must not run twice."""
    number = await asyncio.to_thread(ledger.transfer, account, payment.intent, payment.amount, os.getpid())
    await asyncio.sleep(delay)
    return Receipt(id=f"tr_{number}", account=account, **payment.model_dump())


@app.post("/refunds", status_code=201)
@idempotency.operation(required=True, lease=LEASE, guarantee="at_least_once")
def create_refund(payment: Payment, account: Account, delay: Delay = 0) -> Receipt:
    """Pay back: the books take an intent once, so it may run again after a crash."""
    number = ledger.refund(account, payment.intent, payment.amount, os.getpid())
    time.sleep(delay)
    return Receipt(id=f"re_{number}", account=account, **payment.model_dump())


open_routes = APIRouter()
"""What needs no key."""


@open_routes.post("/tokens", status_code=201)
def create_token(account: Account) -> dict[str, str]:
    """Give the account another token: credentials change, the principal stays (R12)."""
    return {"token": ledger.grant(account)}


@open_routes.delete("/tokens/{token}", status_code=204)
def revoke_token(token: str, account: Account) -> Response:
    """Revoke a token of the account."""
    if ledger.account_of(token) == account:
        ledger.revoke(token)
    return Response(status_code=204)


@open_routes.get("/effects")
def effects(intent: str | None = None) -> dict[str, Any]:
    """Count what really happened, from the books and not from the keys."""
    counts = ledger.counts(intent)
    return {
        "effects": sum(count.effects for count in counts),
        "runs": sum(count.runs for count in counts),
        "intents": [
            {
                "account": count.account,
                "intent": count.intent,
                "effects": count.effects,
                "runs": count.runs,
                "workers": count.workers,
            }
            for count in counts
        ],
    }


@open_routes.get("/workers")
def workers() -> dict[str, list[int]]:
    """Name the worker processes so far, in the order of their start."""
    return {"pids": ledger.workers()}


app.include_router(open_routes)
