"""A Redis server that fails: what each verb raises, how soon, and what is still there afterwards."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest
from redis.exceptions import NoScriptError

from tests.stores.redis_support import CERTIFICATE, COLOURS, ScriptedServer, called, client, own_prefix
from twiceproof.core._record import Done, Found, Granted
from twiceproof.errors import StoreFull, StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores import Store
from twiceproof.stores._redis_address import address
from twiceproof.stores._redis_errors import Refused
from twiceproof.stores._redis_lanes import AsyncRedisLane, exchange
from twiceproof.stores._redis_verbs import Verbs
from twiceproof.stores.redis import AsyncRedisStore, RedisStore
from twiceproof.testing import Driven
from twiceproof.testing.servers import ValkeyServer
from twiceproof.testing.store_contract._ground import expect_found, expect_granted, new_record

LONG = 600.0
STORES: dict[str, Any] = {
    "blocking": RedisStore,
    "async": lambda url, **options: Driven(AsyncRedisStore(url, **options)),
}


@pytest.fixture(params=COLOURS)
def colour(request) -> Any:
    return COLOURS[request.param]


@pytest.fixture(params=STORES)
def opened(request) -> Any:
    """Return what opens a store, closed at the end."""
    stores: list[Any] = []

    def open_one(url: str, **options: Any) -> Store:
        stores.append(STORES[request.param](url, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        getattr(store, "stop", store.close)()


@pytest.mark.slow
def test_a_paused_server_is_not_waited_for(opened):
    """R48: a verb ends within the time-out, in company too, its outcome unknown; then the store works again."""
    with ValkeyServer() as server:
        store = opened(server.url, timeout=0.4)
        new = new_record()
        expect_granted(store.claim(new, LONG, b"n1"))
        server.pause()
        began = time.monotonic()
        with pytest.raises(StoreOutcomeUnknown, match="no answer in time"):
            store.complete(new.id, b"n1", b"answer", LONG)
        assert 0.3 < time.monotonic() - began < 0.8
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):  # a new connection is accepted by the system, and then nothing
            store.complete(new.id, b"n1", b"x" * (1 << 22), LONG)
        assert time.monotonic() - began < 0.8
        server.resume()
        time.sleep(0.3)  # until a connection is tried again
        assert store.complete(new.id, b"n1", b"answer", LONG) == Done()


def test_a_crowd_before_a_silent_server_ends_in_time(colour):
    """R48: those that were never sent are told so, and nobody waits longer than two turns."""
    with ScriptedServer(lambda command: b"") as silent:
        store = colour(silent.url, timeout=0.3, connections=1)
        began = time.monotonic()
        answers = called(store, "get", b"id", times=8)
        assert time.monotonic() - began < 1.5
        assert {type(answer) for answer in answers} <= {StoreOutcomeUnknown, StoreUnavailable}


@pytest.mark.slow
def test_what_was_acknowledged_outlives_a_kill(opened):
    """CONTRACT 5, R21: under ``appendfsync always``, kill -9 in the middle of many writes loses none of those told."""
    with ValkeyServer({"appendfsync": "always"}) as server:
        store = opened(server.url, timeout=5.0, prefix="kill")
        claimed: list[Any] = []
        completed: list[Any] = []

        def work() -> None:
            try:
                while True:
                    new = new_record()
                    claimed.append((new, store.claim(new, LONG, new.id)))
                    if store.complete(new.id, new.id, b"answer", LONG) == Done():
                        completed.append(new)
            except StoreUnavailable:
                return

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        while len(completed) < 200:
            time.sleep(0.01)
        server.kill()
        for thread in threads:
            thread.join()
        server.start()
        again = opened(server.url, timeout=5.0, prefix="kill")
        assert again.check() == []
        for new, answer in claimed:
            assert type(answer) is Granted
            found = again.get(new.id)
            assert found is not None
            assert found.token == answer.token
        for new in completed:
            assert expect_found(again.claim(new, LONG, b"n2")).answer == b"answer"


def test_a_server_that_is_not_there_is_unavailable(opened):
    """R48: nothing was written, and the same call may be made again."""
    store = opened("redis://:hunter2@127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable, match=r"^127\.0\.0\.1:1/0: no connection \(") as caught:
        store.claim(new_record(), LONG, b"n1")
    assert type(caught.value) is StoreUnavailable
    assert "hunter2" not in str(caught.value)


def test_a_full_server_takes_no_new_record_but_lets_go(opened):
    """R48: ``noeviction``: nothing is written, in whole or in part; release and purge still work."""
    with ValkeyServer({"appendonly": False}) as server:
        store = opened(server.url, prefix="full")
        first, expired, second = new_record(), new_record(), new_record()
        expect_granted(store.claim(first, LONG, b"n1"))
        store.claim(expired, LONG, b"n1")
        store.complete(expired.id, b"n1", b"answer", -1.0)
        with client(server) as other:
            before = {key: other.dump(key) for key in other.scan_iter()}
            other.config_set("maxmemory", 1)
            for verb, values in (
                ("claim", (second, LONG, b"n1")),
                ("claim", (expired, LONG, b"n2")),
                ("claim", (first, LONG, b"n1")),
                ("complete", (first.id, b"n1", b"answer", LONG)),
                ("park", (first.id, b"n1", "exception")),
            ):
                with pytest.raises(StoreFull, match="its memory is full"):
                    getattr(store, verb)(*values)
            assert {key: other.dump(key) for key in other.scan_iter()} == before
            assert store.purge(10).records == 1
            assert store.release(first.id, b"n1") == Done()
            assert other.dbsize() == 0
            other.config_set("maxmemory", 0)
        expect_granted(store.claim(second, LONG, b"n1"))


def test_a_replica_writes_nothing(opened):
    """R48: after a failover the old primary may be one."""
    with ValkeyServer() as server, client(server) as other:
        store = opened(server.url, prefix="replica")
        new = new_record()
        store.claim(new, LONG, b"n1")
        other.replicaof("127.0.0.1", 1)
        for verb, values in (("claim", (new_record(), LONG, b"n1")), ("complete", (new.id, b"n1", b"answer", LONG))):
            with pytest.raises(StoreUnavailable, match="it is a replica that can't be written") as caught:
                getattr(store, verb)(*values)
            assert not isinstance(caught.value, StoreOutcomeUnknown)
        other.replicaof("NO", "ONE")
        assert store.complete(new.id, b"n1", b"answer", LONG) == Done()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (b"LOADING Redis is loading the dataset in memory", "it is still loading its data"),
        (b"BUSY Redis is busy running a script. You can only call SCRIPT KILL", "somebody's script keeps it busy"),
        (b"MISCONF Redis is configured to save RDB snapshots", "it can't save to its disk"),
        (b"NOAUTH Authentication required.", "it refuses the user or the password"),
        (b"NOPERM User x has no permissions to run 'hset'", "its access list"),
        (b"MASTERDOWN Link with MASTER is down", "it has lost its primary"),
        (b"CLUSTERDOWN Hash slot not served", "its cluster is down"),
        (b"MOVED 3999 127.0.0.1:6381", "another node of its cluster"),
        (b"ASK 3999 127.0.0.1:6381", "another node of its cluster"),
        (b"TRYAGAIN Multiple keys request during rehashing of slot", "another node of its cluster"),
        (b"NOREPLICAS Not enough good replicas to write.", "too few replicas"),
        (b"OOM command not allowed when used memory > 'maxmemory'.", "its memory is full"),
        (b"ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write", "it is a replica"),
        (b"ERR Error running script (call to f_1): @user_script:1: -OOM command not", "its memory is full"),
        (b"ERR max number of clients reached", "it has too many clients"),
        (b"ERR some words: the secret of a record", "it answered with the error ERR"),
    ],
    ids=lambda value: value.split()[0].decode() if isinstance(value, bytes) else "",
)
def test_each_error_of_a_server_is_a_sentence(colour, error, sentence):
    """R48: what a server answers with an error, it has not done; nothing of its own words is repeated."""
    with ScriptedServer(lambda command: b"-" + error + b"\r\n") as server:
        (answer,) = called(colour(server.url), "get", b"id")
        assert type(answer) in {StoreUnavailable, StoreFull, Refused}
        assert sentence in str(answer)
        assert "secret" not in str(answer)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (b"ERR user_script:12: the secret of a record", "it answered with the error ERR"),
        (b"ERR Error running script (call to f_1): @user_script:1: -WRONGTYPE Operation", "choose another prefix"),
        (b"NOPERM User x may not 'zadd' secret script: 12ab, on @user_script:9.", "its access list"),
        (b"ERR ACL failure in script: 'zadd' script: 12ab, on @user_script:9.", "its access list"),
    ],
    ids=["ERR", "WRONGTYPE", "NOPERM", "ACL"],
)
def test_an_error_in_the_middle_of_a_script_is_an_unknown_outcome(colour, error, sentence):
    """R48: a script is not rolled back; what it wrote before stays."""
    with ScriptedServer(lambda command: b"-" + error + b"\r\n") as server:
        (answer,) = called(colour(server.url), "get", b"id")
        assert type(answer) is StoreOutcomeUnknown
        assert sentence in str(answer)
        assert "secret" not in str(answer)


def test_a_pipeline_that_broke_off_is_not_sent_again():
    """R48: a script that was not known did not run, and is not sent over a connection that is broken."""
    verbs = Verbs("p")
    at = address("redis://host", timeout=1.0, connections=1, prefix="p")
    steps = exchange(at, [verbs.release(b"1", b"n"), verbs.release(b"2", b"n")])
    next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send([NoScriptError("No matching script."), StoreOutcomeUnknown("lost")])
    assert [type(answer) for answer in ended.value.value] == [StoreUnavailable, StoreOutcomeUnknown]


@pytest.mark.parametrize("reply", [None, b"?what\r\n", b"$5\r\nab"], ids=["closed", "nonsense", "cut short"])
def test_a_reply_that_does_not_come_whole_is_an_unknown_outcome(colour, reply):
    """R48: it may have been done; the connection is not used again."""
    replies = iter([reply])
    with ScriptedServer(lambda command: next(replies, b"$-1\r\n")) as server:
        store = colour(server.url, timeout=0.3)
        (answer,) = called(store, "get", b"id")
        assert type(answer) is StoreOutcomeUnknown
        assert called(store, "get", b"id") == [None]
        assert server.connections == 2


def test_bytes_that_trickle_in_do_not_prolong_the_time_out(colour):
    """R48: the time-out is for the whole reply, not for each read of it."""
    with ScriptedServer(lambda command: b"$100\r\n" + b"x" * 100 + b"\r\n", pause=0.05) as server:
        began = time.monotonic()
        (answer,) = called(colour(server.url, timeout=0.4), "get", b"id")
        assert type(answer) is StoreOutcomeUnknown
        assert time.monotonic() - began < 1.0


def test_a_pipeline_that_breaks_off_answers_those_that_were_told(opened):
    """R48: what was answered is answered; of the others nobody knows; and the connection is not used again."""
    gate = threading.Event()
    asked: list[bytes] = []

    def answer(command: list[bytes]) -> bytes | None:
        asked.append(command[-1])
        if len(asked) == 1:
            assert gate.wait(5)
        return None if len(asked) == 3 else b"$-1\r\n"

    with ScriptedServer(answer) as server:
        store = opened(server.url, timeout=3.0, connections=1)
        answers: dict[int, object] = {}

        def get(number: int) -> None:
            try:
                answers[number] = store.get(bytes([number]))
            except StoreUnavailable as error:
                answers[number] = error

        threads = [threading.Thread(target=get, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
            while thread is threads[0] and not asked:
                pass
        while _piled(store) < 3:
            pass
        gate.set()
        for thread in threads:
            thread.join()
        told = [answer for answer in answers.values() if answer is None]
        lost = [answer for answer in answers.values() if isinstance(answer, StoreOutcomeUnknown)]
        assert (len(told), len(lost)) == (2, 2)
        assert store.get(b"id") is None
        assert server.connections == 2


def _piled(store: Any) -> int:
    """Return how many verbs wait for the connection."""
    inner = getattr(store, "_store", store)
    lanes = inner._lanes.mine
    if hasattr(lanes, "_pile"):
        return len(lanes._pile)
    return sum(len(found._pile) for found in list(lanes._lanes.values()))


@pytest.mark.parametrize("name", ["blocking", "async"])
def test_a_claim_whose_reply_was_lost_is_repeated_by_its_nonce(name):
    """R48: the server had granted it: the same token, no attempt more."""
    with ValkeyServer() as server:
        new, prefix = new_record(), own_prefix()
        real = RedisStore(server.url, prefix=prefix)
        first = expect_granted(real.claim(new, LONG, b"n1"))
        (again,) = called(COLOURS[name](server.url, prefix=prefix), "claim", new, LONG, b"n1")
        assert again == first
        (second,) = called(COLOURS[name](server.url, prefix=prefix), "complete", new.id, b"n1", b"answer", LONG)
        (third,) = called(COLOURS[name](server.url, prefix=prefix), "claim", new, LONG, b"n1")
        assert (second, type(third)) == (Done(), Found)
        real.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # nobody closed them, and it is said
def test_loops_that_ended_leave_no_connection_open(valkey_server):
    """R41: a store that is never closed, on one event loop after another: ``asyncio.run`` for each job."""
    store = AsyncRedisStore(valkey_server.url, prefix=own_prefix(), connections=1)
    for _ in range(5):
        assert asyncio.run(store.get(b"id")) is None
    assert len(store._lanes.mine._lanes) == 1
    asyncio.run(store.close())  # on a loop that is not the one that ended
    gc.collect()
    assert [found for found in gc.get_objects() if type(found) is AsyncRedisLane and not found._broken] == []


def test_a_store_of_a_loop_that_ended_works_on_the_next(valkey_server):
    """R41: each event loop has its own connections."""
    store = AsyncRedisStore(valkey_server.url, prefix=own_prefix())
    new = new_record()

    async def one(verb: str, *values: Any) -> Any:
        answer = await getattr(store, verb)(*values)
        await store.close()
        return answer

    assert type(asyncio.run(one("claim", new, LONG, b"n1"))) is Granted
    assert asyncio.run(one("complete", new.id, b"n1", b"answer", LONG)) == Done()


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (f"?ssl_ca_certs={CERTIFICATE}", None),
        ("?ssl_cert_reqs=none", None),
        ("", "certificate verify failed"),
    ],
)
def test_tls_reaches_only_a_server_that_proves_its_name(opened, options, answer):
    """``rediss://``: a certificate that nobody vouches for is refused, unless the URL says otherwise."""
    with ScriptedServer(lambda command: b"$-1\r\n", tls=True) as server:
        store = opened(server.url + options)
        if answer is None:
            assert [store.get(b"id") for _ in range(3)] == [None] * 3
            assert server.connections == 1
        else:
            with pytest.raises(StoreUnavailable, match=answer):
                store.get(b"id")
        with pytest.raises(StoreUnavailable, match="no connection"):
            opened(server.url.replace("localhost", "127.0.0.1") + f"?ssl_ca_certs={CERTIFICATE}").get(b"id")


def test_bytes_that_trickle_in_over_tls_do_not_prolong_the_time_out(colour):
    """R48: the same as without."""
    with ScriptedServer(lambda command: b"$100\r\n" + b"x" * 100 + b"\r\n", pause=0.05, tls=True) as server:
        began = time.monotonic()
        (answer,) = called(colour(f"{server.url}?ssl_cert_reqs=none", timeout=0.4), "get", b"id")
        assert type(answer) is StoreOutcomeUnknown
        assert time.monotonic() - began < 1.0
