"""A plain ASGI application, no framework, whose orders are safe to retry.

python examples/asgi_orders.py, then twice:

curl -i http://127.0.0.1:8000/orders -H 'Idempotency-Key: k-1' -d 'two pears'
"""

import uvicorn

from twiceproof import Policy
from twiceproof.server.asgi import IdempotencyMiddleware, anonymous

orders: list[bytes] = []


async def application(scope, receive, send):
    assert scope["type"] == "http"
    message = await receive()
    orders.append(message["body"])  # the effect: once per key
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"order %d\n" % len(orders)})


app = IdempotencyMiddleware(
    application,
    store="sqlite:///keys.db",
    principal=anonymous,
    policy={"POST /orders": Policy(required=True), "*": None},
)

if __name__ == "__main__":
    uvicorn.run(app)
