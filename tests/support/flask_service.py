"""A Flask application behind its door, with a memory store that can be looked into and made to fail."""

from __future__ import annotations

import functools
from typing import Any, Self

from flask import Flask, abort, g, request
from werkzeug.test import TestResponse

from tests.support.engines import FakeClock
from tests.support.faulty_store import Faults, FaultyStore
from twiceproof import Event, Record
from twiceproof.core._problems import PROBLEM_JSON
from twiceproof.server.flask import Idempotency, anonymous
from twiceproof.stores._protocol import Filter
from twiceproof.stores.memory import MemoryStore

ACCOUNTS = {"Bearer ann-1": "ann", "Bearer ann-2": "ann", "Bearer bob-1": "bob"}


class Service:
    """An application, its `Idempotency` and its effects. Leaving it closes the engine."""

    def __init__(self, principal: Any = anonymous, *, app: Flask | None = None, **options: Any) -> None:
        self.memory = MemoryStore(FakeClock())
        self.faults = Faults()
        self.events: list[tuple[str, str]] = []
        self.effects = 0
        self.accounts = dict(ACCOUNTS)
        given: dict[str, Any] = {
            "accept_volatile": True,
            "purge_every": 0,
            "drain": 1,
            "on_event": self._note,
        } | options
        self.idempotency = Idempotency(store=FaultyStore(self.memory, self.faults), principal=principal, **given)
        self.app = Flask("service") if app is None else app
        self.app.secret_key = "secret"
        self.idempotency.install(self.app)

    def _note(self, event: Event) -> None:
        self.events.append((event.name, event.code))

    def effect(self) -> int:
        self.effects += 1
        return self.effects

    def login_required(self, view: Any) -> Any:
        """A decorator as applications write it: it refuses before the view, and leaves the account in g."""

        @functools.wraps(view)
        def guarded(*args: Any, **values: Any) -> Any:
            g.account = self.accounts.get(request.headers.get("Authorization", ""))
            if g.account is None:
                abort(401)
            return view(*args, **values)

        return guarded

    def post(self, path: str = "/orders", key: str | None = "k1", **options: Any) -> Answer:
        """Send a POST, a JSON body in it unless told otherwise."""
        if "data" not in options:
            options.setdefault("json", {"n": 1})
        headers = [*options.pop("headers", ()), *([] if key is None else [("Idempotency-Key", key)])]
        method = options.pop("method", "POST")
        with self.app.test_client(use_cookies=False) as client:
            return Answer(client.open(path, method=method, headers=headers, **options))

    def records(self) -> list[Record]:
        return list(self.memory.scan(Filter()).records)

    def states(self) -> list[str]:
        return [str(record.state) for record in self.records()]

    @property
    def causes(self) -> list[str | None]:
        return [record.cause for record in self.records()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.idempotency.engine.close()


class Answer:
    """What came back, read to its end."""

    def __init__(self, response: TestResponse) -> None:
        self.status = response.status_code
        self.headers = list(response.headers)
        self.body = response.get_data()
        self.json: Any = response.get_json(silent=True)
        response.close()

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.headers if field.lower() == name]

    @property
    def replayed(self) -> bool:
        return self.all("idempotent-replayed") == ["true"]

    @property
    def brief(self) -> tuple[int, bool, Any]:
        return self.status, self.replayed, self.json

    @property
    def problem(self) -> str:
        return str(self.json["code"]) if self.all("content-type") == [PROBLEM_JSON.decode()] else ""


def with_orders(service: Service, **options: Any) -> Service:
    """Give a service one protected operation."""

    @service.app.post("/orders")
    @service.idempotency.operation(**options)
    def create() -> Any:
        return {"effect": service.effect(), **request.get_json()}, 201

    return service
