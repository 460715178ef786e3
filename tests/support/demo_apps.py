"""The demo's payments API, broken on purpose: what it looks like when a promise is not kept."""

from inspect import unwrap

from fastapi import FastAPI

from twiceproof.cli._demo import service
from twiceproof.server.fastapi import Idempotency, anonymous

transfer, refund = unwrap(service.create_transfer), unwrap(service.create_refund)

unprotected = FastAPI(lifespan=service.lifespan)
unprotected.include_router(service.open_routes)
unprotected.post("/transfers", status_code=201)(transfer)
unprotected.post("/refunds", status_code=201)(refund)

one_space = FastAPI(lifespan=service.lifespan)
one_space.include_router(service.open_routes)
_idempotency = Idempotency(store=service.STORE, principal=anonymous, store_timeout=service.STORE_TIMEOUT)
_idempotency.install(one_space)
one_space.post("/transfers", status_code=201)(_idempotency.operation(required=True, lease=service.LEASE)(transfer))
one_space.post("/refunds", status_code=201)(_idempotency.operation(required=True, lease=service.LEASE)(refund))
