"""What is special about Redis and Valkey: keys with an end, few round trips, scripts that may be gone, odd bytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.stores.redis_support import COLOURS, called, client, commands, keys_of, own_prefix, record_key
from twiceproof.core._record import ClaimRef, Done, Fenced, Found, Granted, Held
from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable, UnknownFormat
from twiceproof.stores import Filter, Purged
from twiceproof.stores._redis_lanes import RedisLane
from twiceproof.stores._redis_scripts import GRACE
from twiceproof.stores.redis import AsyncRedisStore, RedisStore
from twiceproof.testing.servers import ValkeyServer
from twiceproof.testing.store_contract._ground import expect_found, expect_granted, kept, new_record

LONG = 600.0


@pytest.fixture
def prefix() -> str:
    return own_prefix()


@pytest.fixture
def store(valkey_server, prefix) -> Iterator[RedisStore]:
    store = RedisStore(valkey_server.url, prefix=prefix, timeout=10.0)
    yield store
    store.close()


@pytest.fixture(params=COLOURS)
def colour(request, valkey_server, prefix) -> RedisStore | AsyncRedisStore:
    return COLOURS[request.param](valkey_server.url, prefix=prefix, timeout=10.0)


def test_no_key_is_without_an_end(store, valkey_server, prefix):
    """B36: after every kind of verb each key has a time to live, that of a record a day longer than its keeping."""
    news = [new_record() for _ in range(6)]
    for new in news:
        store.claim(new, LONG, b"n1")
        assert -1 not in keys_of(valkey_server, prefix).values()
    completed, released, parked, asked, forgotten, renewed = news
    store.complete(completed.id, b"n1", b"answer", 5 * LONG)
    store.release(released.id, b"n1")
    store.park(parked.id, b"n1", "exception")
    store.park(asked.id, b"n1", "exception")
    store.claim_unsettled(asked.id, LONG, b"h1", 0.0)
    store.park(asked.id, b"h1", "ignored")
    store.forget(forgotten.id, b"n1")
    store.renew([ClaimRef(renewed.id, b"n1")], 2 * LONG)
    store.purge(10)
    keys = keys_of(valkey_server, prefix)
    assert len(keys) == 4 + 2
    assert min(keys.values()) > 0
    assert keys[record_key(prefix, completed.id).encode()] == pytest.approx(5 * LONG + GRACE, abs=5)
    assert keys[record_key(prefix, parked.id).encode()] == pytest.approx(parked.keep + GRACE, abs=5)
    assert keys[record_key(prefix, renewed.id).encode()] == pytest.approx(2 * LONG + renewed.keep + GRACE, abs=5)
    longest = max(keys.values())
    for index in ("expiry", "creation"):
        assert longest - GRACE <= keys[f"{{{prefix}}}:{index}".encode()] <= longest + GRACE


def test_a_first_request_is_two_commands_and_a_replay_one(store, valkey_server):
    """DESIGN 8: one script each for the claim, its completion and the replay."""
    warm, new = new_record(), new_record()
    store.claim(warm, LONG, b"n1")
    store.complete(warm.id, b"n1", b"answer", LONG)

    def first() -> None:
        store.claim(new, LONG, b"n1")
        store.complete(new.id, b"n1", b"answer", LONG)

    assert commands(valkey_server, first) == ["EVALSHA", "EVALSHA"]
    assert commands(valkey_server, lambda: store.claim(new, LONG, b"n2")) == ["EVALSHA"]


def test_a_script_that_the_server_forgot_is_sent_again(colour, valkey_server):
    """A restart or SCRIPT FLUSH costs one round trip more, also in the middle of a pile, and no answer."""
    new = new_record()
    assert type(called(colour, "claim", new, LONG, b"n1")[0]) is Granted
    with client(valkey_server) as other:
        other.script_flush()
    answers = called(colour, "claim", new, LONG, b"n2", times=12)
    assert [type(answer) for answer in answers] == [Held] * 12


def test_odd_bytes_come_back_as_they_were(colour):
    """R25, R54: NUL, line ends, invalid UTF-8 and lone surrogates in every field; empty ones, too."""
    odd = b"\x00\r\n\xff$1\r\n*\x80'\"{}"
    text = "\x00\r\n{}\ud800é"
    bytes_, texts = ("principal", "key", "fingerprint"), ("namespace", "operation", "path")
    odd_ones: dict[str, Any] = {"id": odd, **dict.fromkeys(bytes_, odd), **dict.fromkeys(texts, text)}
    empty_ones: dict[str, Any] = {**dict.fromkeys(bytes_, b""), **dict.fromkeys(texts, "")}
    new, empty = replace(new_record(), **odd_ones), replace(new_record(), **empty_ones)
    for record, nonce, cause in ((new, odd, text), (empty, b"n", "")):
        assert type(called(colour, "claim", record, LONG, nonce)[0]) is Granted
        (held,) = called(colour, "claim", record, LONG, b"other")
        for name in ("id", *bytes_, *texts):
            assert getattr(held.record, name) == getattr(record, name)
        assert (held.record.token.nonce, held.record.incarnation) == (nonce, nonce)
        assert called(colour, "park", record.id, nonce, cause) == [Done()]
        (parked,) = called(colour, "get", record.id)
        assert parked.cause == cause
        assert called(colour, "complete", record.id, nonce, odd, LONG) == [Done()]
        (page,) = called(colour, "scan", Filter(operation=record.operation, path=record.path))
        assert [(found.id, found.answer) for found in page.records] == [(record.id, odd)]


def test_huge_answers_pass_in_company(colour):
    """R43: a mebibyte each, at the same moment, over two connections."""
    answer = os.urandom(1 << 20)
    new = new_record()
    called(colour, "claim", new, LONG, b"n1")
    assert called(colour, "complete", new.id, b"n1", answer, LONG) == [Done()]
    found = called(colour, "claim", new, LONG, b"n2", times=16)
    assert [one.record.answer == answer for one in found] == [True] * 16


def test_one_that_fails_in_a_pipeline_fails_alone(store, valkey_server, prefix):
    """An error reply is the answer of its own verb; nothing of another program's key is in it."""
    news = [new_record() for _ in range(3)]
    with client(valkey_server) as other:
        other.set(record_key(prefix, news[1].id), "somebody else's secret", ex=60)
    lane = RedisLane(store._address)
    answers = lane.run([store._verbs.claim(new, LONG, b"n1", None) for new in news])
    assert [type(answer) for answer in answers] == [Granted, StoreOutcomeUnknown, Granted]
    assert "another program uses keys under our prefix" in str(answers[1])
    assert "secret" not in str(answers[1])
    assert lane.usable()
    lane.close()
    with pytest.raises(StoreUnavailable, match="another prefix"):
        store.get(news[1].id)


def test_the_indexes_outlive_every_record(store, valkey_server, prefix):
    """R33, B36: a retention longer than the keeping of the claim: `scan` finds the record to its end."""
    new = new_record()
    store.claim(new, LONG, b"n1")
    store.complete(new.id, b"n1", b"answer", new.keep + 10 * GRACE)
    keys = keys_of(valkey_server, prefix)
    for index in ("expiry", "creation"):
        assert keys[f"{{{prefix}}}:{index}".encode()] > new.keep + 9 * GRACE


def test_a_script_that_ends_midway_may_have_written(colour, valkey_server, prefix):
    """R48: a command that the access list forbids comes after one that it allows; the claim is then withdrawn."""
    with client(valkey_server) as other:
        other.acl_setuser(prefix, enabled=True, passwords=["+p"], keys=["*"], commands=["+@all", "-zadd"])
        limited = type(colour)(valkey_server.url.replace("127.0.0.1", f"{prefix}:p@127.0.0.1"), prefix=prefix)
        new = new_record()
        (answer,) = called(limited, "claim", new, LONG, b"n1")
        assert type(answer) is StoreOutcomeUnknown
        assert "its access list doesn't allow the user the keys or commands that the store needs" in str(answer)
        assert called(limited, "release", new.id, b"n1") == [Done()]
        assert keys_of(valkey_server, prefix) == {}
        other.acl_deluser(prefix)


def test_a_token_number_grows_over_incarnations(store):
    """DESIGN 4: what a handler shows downstream is greater after a release, too, and fits a double."""
    new = new_record()
    numbers = []
    for nonce in (b"n1", b"n2", b"n3"):
        numbers.append(expect_granted(store.claim(new, LONG, nonce)).token.number)
        store.release(new.id, nonce)
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 2**53


def test_a_record_of_a_later_release_is_left_alone(store, valkey_server, prefix):
    """R17, R53: found, never granted, asked or purged, and no field lost; its own nonce settles it."""
    new = new_record()
    store.claim(new, LONG, b"n1")
    with client(valkey_server) as other:
        key = record_key(prefix, new.id)
        other.hset(key, mapping={"format": 2, "mood": "cheerful", "expires_at": 1})
        other.zadd(f"{{{prefix}}}:expiry", {new.id.hex(): 1})
        before = other.hgetall(key)
        assert expect_found(store.claim(new, LONG, b"n2")).format == 2
        assert expect_found(store.claim(new, LONG, b"n1", b"n1")).format == 2
        expect_found(store.claim_unsettled(new.id, LONG, b"h1", 0.0, force=True))
        assert store.complete(new.id, b"n2", b"answer", LONG) == Fenced()
        expired = [new_record() for _ in range(3)]
        for one in expired:
            store.claim(one, LONG, b"n1")
            store.complete(one.id, b"n1", b"answer", -1.0)
        assert store.purge(100) == Purged(3)
        assert other.hgetall(key) == before
        assert store.complete(new.id, b"n1", b"answer", LONG) == Done()
        assert other.hget(key, "mood") == b"cheerful"
        other.hset(key, "state", "levitating")
        with pytest.raises(UnknownFormat):
            store.claim(new, LONG, b"n2")


def test_prefixes_keep_stores_apart(store, valkey_server):
    """R14: two services in one database don't see each other's records."""
    other = RedisStore(valkey_server.url, prefix=own_prefix())
    new = new_record()
    expect_granted(store.claim(new, LONG, b"n1"))
    expect_granted(other.claim(new, LONG, b"n1"))
    assert other.release(new.id, b"n1") == Done()
    assert kept(store, new.id).token.nonce == b"n1"
    other.close()


@pytest.mark.slow
def test_a_node_of_a_cluster_serves_if_the_keys_are_its_own(colour):
    """DESIGN 8: they share one hash tag, so that one node has them all; another's is named in a sentence."""
    new = new_record()
    with ValkeyServer({"cluster-enabled": True}) as node, client(node) as other:
        store = type(colour)(node.url, timeout=5.0)
        (early,) = called(store, "claim", new, LONG, b"n1")
        assert "its cluster is down" in str(early)
        slot: Any = other.execute_command("CLUSTER", "KEYSLOT", "{twiceproof}:")
        other.config_set("cluster-require-full-coverage", "no")
        other.execute_command("CLUSTER", "ADDSLOTS", slot)
        while b"cluster_state:ok" not in other.execute_command("CLUSTER", "INFO"):
            pass
        assert type(called(store, "claim", new, LONG, b"n1")[0]) is Granted
        assert called(store, "complete", new.id, b"n1", b"answer", LONG) == [Done()]
        assert len(called(store, "scan", Filter())[0].records) == 1
        assert called(store, "renew", [ClaimRef(new.id, b"n1")], LONG) == [[]]
        assert called(store, "purge", 10) == [Purged(0)]


def test_a_connection_that_the_server_closed_is_replaced(store, valkey_server):
    """R48: an idle connection may be gone; the next verb notices before it sends anything."""
    new = new_record()
    store.claim(new, LONG, b"n1")
    with client(valkey_server) as other:
        other.client_kill_filter(_type="normal", skipme=True)
    assert store.complete(new.id, b"n1", b"answer", LONG) == Done()


def test_an_asynchronous_connection_that_the_server_closed_is_replaced(valkey_server, prefix):
    """R48: the same on an event loop, as soon as the loop has heard of it."""

    async def scenario() -> None:
        store = AsyncRedisStore(valkey_server.url, prefix=prefix)
        new = new_record()
        await store.claim(new, LONG, b"n1")
        (slot,) = [slot for slot in store._lanes.mine.here._free if slot.lane is not None]
        assert slot.lane is not None
        with client(valkey_server) as other:
            other.client_kill_filter(_type="normal", skipme=True)
        while slot.lane.usable():  # noqa: ASYNC110  # nobody tells it
            await asyncio.sleep(0.001)
        assert await store.complete(new.id, b"n1", b"answer", LONG) == Done()
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_cancelled_call_leaves_no_reply_behind(valkey_server, prefix):
    """R40: its connection is closed, so that nobody else reads the answer that was meant for it."""

    async def scenario() -> None:
        store = AsyncRedisStore(valkey_server.url, prefix=prefix, connections=1)
        news = [new_record() for _ in range(20)]
        for new in news:
            task = asyncio.create_task(store.claim(new, LONG, new.id))
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for new in news:
            answer = await store.claim(new, LONG, new.id)
            assert type(answer) is Granted
            assert answer.token.nonce == new.id
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_forked_child_connects_anew(store):
    """R41: parent and child never share a connection, and neither closes the other's."""
    new, childs = new_record(), new_record()
    store.claim(new, LONG, b"n1")
    child = os.fork()
    if child == 0:
        try:
            ok = type(store.claim(childs, LONG, b"n1")) is Granted and type(store.claim(new, LONG, b"n2")) is Held
            store.close()
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.complete(new.id, b"n1", b"answer", LONG) == Done()
    assert type(store.claim(new, LONG, b"n3")) is Found
    assert kept(store, childs.id).token.nonce == b"n1"
