"""Who a request acts for: any dependency of FastAPI can say so, and there is no default (R12)."""

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import pytest
from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPBearer, SecurityScopes

from tests.support.asgi_client import in_loop, post
from tests.support.fastapi_service import ANN, BOB, Service, Tokens, with_orders
from twiceproof import ConfigurationError, TwiceproofWarning
from twiceproof.server.fastapi import by_authorization


class Finder:
    """A dependency that is an object, and a generator of another."""

    async def __call__(self, x_user: Annotated[str, Header()] = "") -> str:
        return x_user

    async def closing(self, x_user: Annotated[str, Header()] = "") -> AsyncIterator[str]:
        yield x_user

    def plainly_closing(self, x_user: Annotated[str, Header()] = "") -> Iterator[str]:
        yield x_user

    def plain(self, request: Request) -> str:
        return request.headers.get("x-user", "")


def nested(found: Annotated[str, Depends(Finder())], scopes: SecurityScopes) -> str:
    return found + "".join(scopes.scopes)


FINDERS = {
    "object": Finder(),
    "async generator": Finder().closing,
    "generator": Finder().plainly_closing,
    "function": Finder().plain,
    "dependency of dependencies": nested,
    "Security": Security(nested, scopes=["write"]),
    "Depends": Depends(nested, use_cache=False),
}


@pytest.mark.parametrize("principal", FINDERS.values(), ids=FINDERS.keys())
@in_loop
async def test_any_dependency_can_say_who_asks(principal):
    """R12: functions, generators, objects, and such as have dependencies of their own; accounts stay apart."""
    async with with_orders(Service(principal)) as service:
        answers = [await post(service, "k", (b"x-user", who)) for who in (b"ann", b"bob", b"ann")]
    assert [answer.brief[1:] for answer in answers] == [
        (False, b'{"effect":1,"n":1}'),
        (False, b'{"effect":2,"n":1}'),
        (True, b'{"effect":1,"n":1}'),
    ]


@in_loop
async def test_the_principal_dependency_runs_once_per_request():
    """An endpoint that asks for the same dependency shares its result, and so does a test's override."""
    tokens = Tokens()
    async with Service(tokens) as service:

        @service.app.post("/orders")
        @service.idempotency.operation()
        async def create(account: Annotated[str, Depends(tokens)]) -> str:
            return account

        first = await post(service, "k", ANN)
        asked = tokens.asked
        service.app.dependency_overrides[tokens] = lambda: "eve"
        other = await post(service, "k")
    assert (first.body, asked) == (b'"ann"', 1)
    assert other.brief == (200, False, b'"eve"')


@pytest.mark.parametrize(
    ("found", "option", "status"),
    [
        ("ann", None, 201),
        (7, None, 201),
        (0, None, 201),
        (uuid.UUID(int=7), None, 201),
        ({"id": 7}, lambda user: user["id"], 201),
        (None, None, 401),
        ("", None, 401),
        (None, lambda user: user["id"], 401),
        ({"id": None}, lambda user: user["id"], 401),
    ],
)
@in_loop
async def test_an_account_is_a_stable_id_and_nobody_is_401(found, option, status):
    """R12: str, int and UUID are accounts, account= takes one from anything else; None and "" are nobody."""
    async with with_orders(Service(lambda: found, account=option)) as service:
        answer = await post(service, "k")
    assert answer.status == status
    assert service.effects == (1 if status == 201 else 0)


@pytest.mark.parametrize("found", [{"id": 7}, object(), True, 1.5, b"ann"])
@in_loop
async def test_an_object_is_no_account(found):
    """An object's text may differ between processes, so the door refuses to guess, and nothing runs."""
    async with with_orders(Service(lambda: found)) as service:
        with pytest.raises(ConfigurationError, match=r"account=lambda user: user\.id"):
            await post(service, "k")
    assert service.effects == 0


@in_loop
async def test_a_static_credential_can_be_the_account():
    """R12: by_authorization keeps credentials apart, answers 401 without one, and refuses a per-request scheme."""
    with pytest.warns(TwiceproofWarning):
        service = Service(by_authorization)
    async with with_orders(service):
        fields = [(ANN,), (BOB,), (ANN,), (), ((b"authorization", b"DPoP abc"),)]
        answers = [await post(service, "k", *field) for field in fields]
    assert [(answer.status, answer.replayed) for answer in answers] == [
        (201, False),
        (201, False),
        (201, True),
        (401, False),
        (401, False),
    ]


def test_the_security_scheme_of_the_principal_is_documented_as_any_dependency_is():
    """The dependency is the author's own: what it asks of clients belongs into the document."""
    service = Service(HTTPBearer(), account=lambda found: found.credentials)
    with_orders(service)
    assert service.app.openapi()["paths"]["/orders"]["post"]["security"] == [{"HTTPBearer": []}]
