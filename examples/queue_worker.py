"""A queue that delivers a message twice, without HTTP: the invoice goes out once.

python examples/queue_worker.py
"""

import asyncio

from twiceproof import AsyncEngine, Attempt, Policy, Request, Response

DELIVERED = [("m-1", b"customer 4"), ("m-2", b"customer 9"), ("m-1", b"customer 4")]  # m-1 twice
POLICY = Policy(required=True)
sent: list[bytes] = []


async def send_invoice(request: Request, attempt: Attempt) -> Response:
    sent.append(request.body)  # the effect
    return Response(200, body=b"invoice %d" % len(sent))


async def main() -> None:
    async with AsyncEngine("sqlite:///jobs.db", namespace="invoices") as engine:
        for message_id, body in DELIVERED:
            request = Request("POST", b"/invoices", headers=[(b"idempotency-key", message_id.encode())], body=body)
            answer = await engine.handle(request, principal="billing", policy=POLICY, handler=send_invoice)
            replayed = answer.header(b"idempotent-replayed") == b"true"
            print(message_id, answer.status, answer.body.decode(), "(replayed)" if replayed else "")
    print(len(sent), "sent by this run")


if __name__ == "__main__":
    asyncio.run(main())
