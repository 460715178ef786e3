"""A worker that dies between the payment and the record, and a hook that asks the provider what became of it.

python examples/reconcile_hook.py
"""

from twiceproof import Attempt, Completed, DontKnow, Engine, NothingHappened, Policy, Record, Request, Response

provider: dict[str, str] = {}  # somebody else's books: they outlive our crash


def pay(request: Request, attempt: Attempt) -> Response:
    provider[request.body.decode()] = "paid"  # the effect
    raise ConnectionError("the reply of the provider was lost")


def ask_the_provider(record: Record, request: Request) -> Completed | NothingHappened | DontKnow:
    if provider.get(request.body.decode()) == "paid":
        return Completed(Response(201, [(b"content-type", b"text/plain")], b"paid"))
    return NothingHappened()


def main() -> None:
    request = Request("POST", b"/payments", headers=[(b"idempotency-key", b"order-17")], body=b"order-17")
    blind, asking = Policy(), Policy(reconcile=ask_the_provider)
    with Engine("memory://", accept_volatile=True) as engine:
        try:
            engine.handle(request, principal="acct_1", policy=blind, handler=pay)
        except ConnectionError as error:
            print("first attempt:", error)
        unknown = engine.handle(request, principal="acct_1", policy=blind, handler=pay)
        print("retry without a hook:", unknown.status)
        answer = engine.handle(request, principal="acct_1", policy=asking, handler=pay)
        print("retry with a hook:", answer.status, answer.body)


if __name__ == "__main__":
    main()
