"""The OpenAPI document of a protected application is the one it had without the mark."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

from fastapi import Body, Cookie, Depends, FastAPI, Header, Query, Request

from tests.support.fastapi_service import Calls, Order, Receipt, Tokens
from twiceproof.server.fastapi import Idempotency


def described(mark: Callable[..., Any], principal: Any) -> FastAPI:
    app = FastAPI()

    @app.post("/orders/{order_id}", status_code=201, response_model=Receipt, tags=["a"])
    @mark()
    async def create(order_id: int, order: Order, x_trace: Annotated[str, Header()] = "") -> Any:
        """Create an order.

        At length.
        """
        return {}

    @app.post("/asking")
    @mark()
    async def asking(request: Request, account: Annotated[str, Depends(principal)]) -> Receipt | None: ...

    @app.patch("/cookies", description="said")
    @mark()
    def cookies(name: Annotated[str, Cookie()], n: Annotated[int, Query(ge=2)]) -> dict[str, int] | None: ...

    @app.post("/lines")
    @mark()
    async def lines(n: Annotated[int, Body(embed=True)]) -> AsyncIterator[Receipt]:
        yield Receipt(effect=n)

    @app.post("/plain-lines")
    @mark()
    def plain_lines(order: Order) -> Iterator[Receipt]:
        yield Receipt(effect=order.n)

    app.post("/object")(mark()(Calls(lambda: 0)))
    return app


def test_the_document_is_the_same_with_and_without_the_mark():
    """Neither the request nor the principal shows: names, summaries, models and security are what they were."""
    idempotency = Idempotency(store="memory://", accept_volatile=True, principal=Tokens())
    tokens = Tokens()
    marked = described(idempotency.operation, tokens)
    bare = described(lambda: lambda endpoint: endpoint, tokens)
    assert marked.openapi() == bare.openapi()
    assert sorted(bare.openapi()["paths"]) == sorted(
        ["/orders/{order_id}", "/asking", "/cookies", "/lines", "/plain-lines", "/object"]
    )


def test_a_security_scheme_that_the_route_already_has_is_documented_once():
    """The principal dependency that an endpoint asks for itself adds nothing to the document."""
    from fastapi.security import OAuth2PasswordBearer

    scheme = OAuth2PasswordBearer(tokenUrl="token")

    def current_user(token: Annotated[str, Depends(scheme)]) -> str:
        return token

    documents = []
    idempotency = Idempotency(store="memory://", accept_volatile=True, principal=current_user)
    for mark in (idempotency.operation, lambda: lambda endpoint: endpoint):
        app = FastAPI()

        @app.post("/orders")
        @mark()
        async def create(account: Annotated[str, Depends(current_user)]) -> None: ...

        documents.append(app.openapi())
    assert documents[0] == documents[1]
