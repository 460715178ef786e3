"""An application whose annotations are texts, as ``from __future__ import annotations`` makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import BackgroundTasks, Depends, FastAPI, Request, Response
from pydantic import BaseModel

from twiceproof import Attempt
from twiceproof.server.fastapi import Idempotency, anonymous

if TYPE_CHECKING:
    from decimal import Decimal as Amount

app = FastAPI()
idempotency = Idempotency(store="memory://", accept_volatile=True, principal=anonymous)
idempotency.install(app)


class Order(BaseModel):
    n: int


class Receipt(BaseModel):
    n: int
    path: str
    key: str | None


@app.post("/orders/{where}", status_code=201)
@idempotency.operation()
async def create(
    where: str,
    order: Order,
    incoming: Request,
    outgoing: Response,
    tasks: BackgroundTasks,
    attempt: Annotated[Attempt, Depends(idempotency.attempt)],
) -> Receipt:
    outgoing.headers["x-where"] = where
    return Receipt(n=order.n, path=incoming.url.path, key=attempt.key)


@app.post("/typed", response_model=None)
@idempotency.operation()
def typed(order: Order) -> Amount:
    """Its result is named for type checkers only, which FastAPI need not know here."""
    return order.n  # type: ignore[return-value]
