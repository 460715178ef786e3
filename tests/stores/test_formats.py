"""R53: what every release left in a store, read and settled by this one; and what a release to come leaves is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.stores.format_ground import ANSWER, FORMATS, LATER, NAMES, NEW, Postgresql, Redis, Sqlite, id_of, nonce_of
from twiceproof.core._codec import decode, encode
from twiceproof.core._record import FORMAT, Done, Fenced, Found, Granted, Guarantee, Held, State
from twiceproof.stores import Filter

RELEASES = sorted(folder.name for folder in FORMATS.iterdir())
STORES: dict[str, Any] = {
    "sqlite": lambda request: Sqlite(request.getfixturevalue("tmp_path")),
    "postgresql": lambda request: Postgresql(request.getfixturevalue("postgresql_server").url),
    "redis": lambda request: Redis(request.getfixturevalue("valkey_server").url),
}


def new(name: str, **changes: Any) -> Any:
    return replace(NEW, **{"id": id_of(name), **changes})


@pytest.fixture(params=RELEASES)
def release(request) -> str:
    return request.param


@pytest.fixture(params=STORES)
def ground(request, release) -> Iterator[Any]:
    ground = STORES[request.param](request)
    ground.load(json.loads((FORMATS / release / f"{ground.name}.json").read_text()))
    yield ground
    ground.close()


@pytest.fixture
def store(ground) -> Iterator[Any]:
    store = ground.store()
    store.open()
    yield store
    store.close()


def test_today_s_format_has_its_fixtures():
    """A release that writes another format leaves a folder of fixtures behind."""
    assert f"format-{FORMAT}" in RELEASES


def test_every_record_is_read_as_it_was_written(store):
    """R53, R54: no field is lost or changed."""
    records = {record.id: record for record in store.scan(Filter()).records}
    assert [records[id_of(name)].state for name in NAMES] == [
        *(State.COMPLETED, State.IN_FLIGHT, State.PARKED, State.IN_FLIGHT, State.PARKED),
    ]
    for name in NAMES:
        record = records[id_of(name)]
        guarantee = Guarantee.AT_LEAST_ONCE if name == "lapsed" else Guarantee.AT_MOST_ONCE
        read = (record.namespace, record.principal, record.operation, record.path, record.key, record.fingerprint)
        assert read == (NEW.namespace, NEW.principal, NEW.operation, NEW.path, NEW.key, NEW.fingerprint)
        assert (record.token.nonce, record.incarnation, record.attempts) == (nonce_of(name), nonce_of(name), 1)
        assert (record.guarantee, record.format) == (guarantee, 1)
        assert record.created_at == pytest.approx(LATER - 60.0, abs=5.0)
    answer = decode(records[id_of("completed")].answer or b"")
    assert (answer.status, list(answer.headers), answer.body) == (201, list(ANSWER.headers), ANSWER.body)
    assert [records[id_of(name)].cause for name in ("parked", "reconciled")] == ["exception", "cut-short"]
    assert records[id_of("lapsed")].lapsed
    assert records[id_of("reconciled")].reconciling
    assert records[id_of("completed")].expires_at == pytest.approx(LATER - 60.0 + 86_400.0, abs=5.0)


def test_every_record_is_answered_for_and_settled(store):
    """R53: replayed, held, unsettled, taken over, completed by its holder, as if this release had written it."""
    assert type(store.claim(new("completed"), 30.0, b"other")) is Found
    assert type(store.claim(new("in flight"), 30.0, b"other")) is Held
    assert type(store.claim(new("parked"), 30.0, b"other")) is Found
    assert type(store.claim(new("reconciled"), 30.0, b"other")) is Held
    taken = store.claim(new("lapsed", guarantee=Guarantee.AT_LEAST_ONCE), 30.0, b"other")
    assert isinstance(taken, Granted)
    assert (taken.attempts, taken.incarnation) == (2, nonce_of("lapsed"))
    assert store.complete(id_of("lapsed"), nonce_of("lapsed"), encode(ANSWER), 60.0) == Fenced()
    for name in ("in flight", "parked"):
        assert store.complete(id_of(name), nonce_of(name), encode(ANSWER), 60.0) == Done()
    assert store.complete(id_of("reconciled"), b"the second claim", encode(ANSWER), 60.0) == Done()
    assert type(store.get(id_of("reconciled")).answer) is bytes


def test_a_record_of_a_release_to_come_is_found_and_left_alone(ground, store):
    """R17, R53: never granted, changed but by its own nonce, or purged; two adjacent releases may share a store."""
    ground.age(id_of("lapsed"))
    ground.age(id_of("completed"))
    found = store.claim(new("lapsed", guarantee=Guarantee.AT_LEAST_ONCE), 30.0, b"other")
    assert type(found) is Found
    assert found.record.format == FORMAT + 1
    assert store.release(id_of("lapsed"), b"other") == Fenced()
    assert type(store.claim_unsettled(id_of("lapsed"), 30.0, b"hook", 0.0)) is Found
    assert store.purge(1000).records == 0
    assert store.get(id_of("completed")).format == FORMAT + 1
