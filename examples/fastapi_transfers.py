"""A FastAPI application whose transfers are safe to retry.

python examples/fastapi_transfers.py, then twice:

curl -i http://127.0.0.1:8000/transfers -H 'Authorization: Bearer t-alice' -H 'Idempotency-Key: order-42' \
     -H 'Content-Type: application/json' -d '{"to": "bob", "amount": 5}'
"""

from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

from twiceproof.server.fastapi import Idempotency

TOKENS = {"t-alice": "alice", "t-bob": "bob"}


def current_user(authorization: Annotated[str, Header()] = "") -> str:
    account = TOKENS.get(authorization.removeprefix("Bearer "))
    if account is None:
        raise HTTPException(401)
    return account


class Transfer(BaseModel):
    to: str
    amount: int


app = FastAPI()
idempotency = Idempotency(store="sqlite:///keys.db", principal=current_user)
idempotency.install(app)
moved: list[tuple[str, Transfer]] = []


@app.post("/transfers", status_code=201)
@idempotency.operation(required=True)
async def create_transfer(transfer: Transfer, account: Annotated[str, Depends(current_user)]) -> dict[str, str]:
    moved.append((account, transfer))  # the effect: once per key and account
    return {"id": f"tr_{len(moved)}", "from": account}


if __name__ == "__main__":
    uvicorn.run(app)
