"""A FastAPI application whose keys and transfers are in PostgreSQL, so that any number of hosts may serve it.

export DATABASE_URL=postgresql://app@localhost/app
twiceproof store init "$DATABASE_URL"
python examples/postgresql_app.py, then twice:

curl -i http://127.0.0.1:8000/transfers -H 'Authorization: Bearer t-alice' -H 'Idempotency-Key: order-42' \
     -H 'Content-Type: application/json' -d '{"to": "bob", "amount": 5}'
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import psycopg
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

from twiceproof.server.fastapi import Idempotency

DATABASE = os.environ["DATABASE_URL"]
TOKENS = {"t-alice": "alice", "t-bob": "bob"}
TABLE = """
SELECT pg_advisory_xact_lock(1);
CREATE TABLE IF NOT EXISTS transfers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payer text NOT NULL, payee text NOT NULL, amount bigint NOT NULL
)
"""
INSERT = "INSERT INTO transfers (payer, payee, amount) VALUES (%s, %s, %s) RETURNING id"


def current_user(authorization: Annotated[str, Header()] = "") -> str:
    account = TOKENS.get(authorization.removeprefix("Bearer "))
    if account is None:
        raise HTTPException(401)
    return account


class Transfer(BaseModel):
    to: str
    amount: int


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    with psycopg.connect(DATABASE) as connection:
        connection.execute(TABLE)  # in a real service, a migration
    yield


app = FastAPI(lifespan=lifespan)
idempotency = Idempotency(store=DATABASE, namespace="payments", principal=current_user)
idempotency.install(app)


@app.post("/transfers", status_code=201)
@idempotency.operation(required=True)
def create_transfer(transfer: Transfer, account: Annotated[str, Depends(current_user)]) -> dict[str, str]:
    with psycopg.connect(DATABASE) as connection:  # the effect: once per key and account
        row = connection.execute(INSERT, (account, transfer.to, transfer.amount)).fetchone()
    assert row is not None
    return {"id": f"tr_{row[0]}", "from": account}


if __name__ == "__main__":
    uvicorn.run(app)
