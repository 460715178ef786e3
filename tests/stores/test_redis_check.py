"""What a check finds out about a Redis server, and what an engine makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.stores.redis_support import COLOURS, ScriptedServer, client
from twiceproof.core._record import Granted
from twiceproof.engine import AsyncEngine, Engine
from twiceproof.errors import ConfigurationError
from twiceproof.stores import _redis_scripts
from twiceproof.stores._redis_rehearsal import REHEARSAL
from twiceproof.stores.redis import AsyncRedisStore, RedisStore
from twiceproof.testing.servers import ValkeyServer
from twiceproof.testing.store_contract._ground import new_record


@pytest.fixture(scope="module")
def server():
    """One that these tests set up differently one after the other."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def configured(server):
    """Return what changes the server's settings for one test."""
    before: dict[str, Any] = {}
    with client(server) as other:

        def configure(**settings: Any) -> None:
            for name, value in settings.items():
                known: Any = other.config_get(name)
                before.update(known)
                other.config_set(name, value)

        yield configure
        for name, value in before.items():
            other.config_set(name, value)
        while other.info("persistence")["aof_rewrite_in_progress"]:  # of appendonly; it would not stop meanwhile
            pass


@pytest.fixture(params=COLOURS)
def colour(request) -> Any:
    return COLOURS[request.param]


def checked(store: Any) -> tuple[bool, list[str]]:
    """Return whether the store is durable now, and its notes without the name of the server."""
    assert store.capabilities.durable is False  # until somebody has looked
    assert store.capabilities.shared is True
    notes = store.check()
    assert all(note.endswith(".") for note in notes)
    return store.capabilities.durable, [note.partition("/0")[2].lstrip(": ") for note in notes]


EVERY_SECOND = "appendfsync everysec: a crash of its host may lose the last second."


NO_LOG = "it writes no log (appendonly no), so a restart loses what its last snapshot doesn't have"
NO_SYNC = "it never waits for its disk (appendfsync no), so a crash of its host loses the last half minute"
EVICTS = "it evicts keys when its memory is full (maxmemory-policy volatile-ttl)"
HIDDEN = "it doesn't show its settings ({}), so they can't be relied on"


def forgets(why: str) -> list[str]:
    return [f"may forget records: {why}; accept_volatile=True accepts that."]


@pytest.mark.parametrize(
    ("settings", "durable", "notes"),
    [
        ({"appendfsync": "always"}, True, []),
        ({"appendfsync": "everysec"}, True, [EVERY_SECOND]),
        ({"appendfsync": "always", "maxmemory": "1gb", "maxmemory-policy": "noeviction"}, True, []),
        ({"appendfsync": "always", "maxmemory": "0", "maxmemory-policy": "allkeys-lru"}, True, []),
        ({"appendfsync": "no"}, False, forgets(NO_SYNC)),
        ({"appendonly": "no"}, False, forgets(NO_LOG)),
        ({"appendonly": "no", "save": "60 1"}, False, forgets(NO_LOG)),
        ({"maxmemory": "1gb", "maxmemory-policy": "volatile-ttl"}, False, forgets(EVICTS)),
        (
            {"appendonly": "no", "maxmemory": "1gb", "maxmemory-policy": "volatile-ttl"},
            False,
            [*forgets(NO_LOG), *forgets(EVICTS)],
        ),
    ],
)
def test_a_store_is_durable_as_its_server_is_set_up(configured, server, colour, settings, durable, notes):
    """CONTRACT 5: a log of every change and no eviction; what may be lost is a sentence each."""
    configured(**settings)
    assert checked(colour(server.url)) == (durable, notes)


def test_a_check_leaves_nothing_open_and_nothing_behind(server, colour):
    """R41: no connection stays, and no key was made."""
    with client(server) as other:
        before = len(other.client_list())
        colour(server.url).check()
        assert len(other.client_list()) == before
        assert other.dbsize() == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (":wrong@", "it refuses the user or the password"),
        ("nobody:wrong@", "it refuses the user or the password"),
        ("reader:secret@", "its access list doesn't allow the user the keys or commands that the store needs"),
    ],
)
def test_wrong_credentials_fail_at_construction(server, colour, change, sentence):
    """R41: the sentence has no password in it."""
    with client(server) as other:
        other.acl_setuser("reader", enabled=True, passwords=["+secret"], keys=["*"], commands=["+get"])
        store = colour(server.url.replace("127.0.0.1", f"{change}127.0.0.1"))
        with pytest.raises(ConfigurationError, match=sentence) as caught:
            store.check()
        assert "wrong" not in str(caught.value)
        assert "secret" not in str(caught.value)
        other.acl_deluser("reader")


def test_a_missing_password_fails_at_construction(configured, server, colour):
    """R41: a server that wants one."""
    with client(server) as other:  # connected before it wants one
        other.config_set("requirepass", "hunter2")
        try:
            with pytest.raises(ConfigurationError, match="it refuses the user or the password"):
                colour(server.url).check()
            assert colour(server.url.replace("127.0.0.1", ":hunter2@127.0.0.1")).check() != []
        finally:
            other.config_set("requirepass", "")


def test_a_database_that_is_not_there_fails_at_construction(server, colour):
    """R41: sixteen of them are there, unless it was set up otherwise."""
    with pytest.raises(ConfigurationError, match=r"/99: it has no database of this number\."):
        colour(server.url.replace("/0", "/99")).check()


@pytest.mark.parametrize(
    ("rights", "names"),
    [
        (["+@all", "-config"], "appendfsync"),
        (["+@all", "-config", "-info"], "appendonly, appendfsync, maxmemory, maxmemory-policy"),
    ],
)
def test_a_server_that_hides_its_settings_is_volatile(server, colour, rights, names):
    """CONTRACT 5: managed services allow no CONFIG; what can't be seen is not promised."""
    with client(server) as other:
        other.acl_setuser("managed", enabled=True, passwords=["+s"], keys=["*"], commands=rights)
        durable, notes = checked(colour(server.url.replace("127.0.0.1", "managed:s@127.0.0.1")))
        assert (durable, notes) == (False, forgets(HIDDEN.format(names)))
        other.acl_deluser("managed")


def test_an_unreachable_server_is_a_note_and_volatile(colour):
    """R41: it may come up later; an engine that needs it durable must wait for that."""
    durable, notes = checked(colour("redis://127.0.0.1:1/0"))
    assert durable is False
    assert len(notes) == 1
    assert "no connection (Error 111 connecting to 127.0.0.1:1" in notes[0]
    assert notes[0].endswith("So it can't be seen whether it keeps its records; accept_volatile=True accepts that.")


def test_a_silent_server_is_a_note_in_time(colour):
    """R48: it accepts the connection and says nothing."""
    with ScriptedServer(lambda command: b"") as silent:
        durable, notes = checked(colour(silent.url, timeout=0.2))
    assert durable is False
    assert [note.partition(" So ")[0] for note in notes] == ["no answer within 0.2 s."]


def test_a_server_that_falls_silent_is_a_note(colour):
    """R41: it answers the first question, and then the connection breaks."""
    with ScriptedServer(lambda command: b"*0\r\n" if command[0] == b"EVAL" else None) as server:
        durable, notes = checked(colour(server.url, timeout=0.3))
    assert durable is False
    assert "it doesn't show its settings" in notes[0]


@pytest.mark.parametrize("version", ["6.0.16", "5.0.7", "2.8"])
def test_a_server_that_is_too_old_fails_at_construction(colour, version):
    """R41: scripts that read the clock and then write need effects replication, and 6.2 is the oldest we try."""
    info = f"# Server\r\nredis_version:{version}\r\n".encode()

    def answer(command: list[bytes]) -> bytes:
        return b"$%d\r\n%b\r\n" % (len(info), info) if command[0] == b"INFO" else b"*0\r\n"

    with ScriptedServer(answer) as old, pytest.raises(ConfigurationError, match=f"{version}; the store needs 6.2"):
        colour(old.url).check()


EVERYTHING = sorted(set(re.findall(rb"try\('([A-Z]+)'", REHEARSAL)))


def test_the_rehearsal_calls_whatever_the_scripts_call():
    """R41: a right that one of them needs is seen before the first request."""
    scripts = [value.text for value in vars(_redis_scripts).values() if isinstance(value, _redis_scripts.Script)]
    assert len(scripts) > 8
    assert sorted({call for text in scripts for call in re.findall(rb"redis.call\('([A-Z]+)'", text)}) == EVERYTHING


@pytest.mark.parametrize("lacks", ["evalsha", *(name.decode().lower() for name in EVERYTHING)])
def test_a_user_who_lacks_a_right_fails_at_construction(server, lacks):
    """R41, R48: else each claim would fail, and the first perhaps midway. Nothing is left behind."""
    with client(server) as other:
        other.acl_setuser("lacking", enabled=True, passwords=["+s"], keys=["*"], commands=["+@all", f"-{lacks}"])
        with pytest.raises(ConfigurationError, match="its access list doesn't allow the user"):
            RedisStore(server.url.replace("127.0.0.1", "lacking:s@127.0.0.1")).check()
        other.acl_deluser("lacking")
        assert other.dbsize() == 0


def test_the_rights_of_the_docs_are_enough(server):
    """R41: a user with those alone finds nothing to say about them, and keeps a record."""
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    (rule,) = re.findall(r"ACL SETUSER app (.*)", page)
    with client(server) as other:
        other.execute_command("ACL", "SETUSER", "app", *rule.split())
        store = RedisStore(server.url.replace("127.0.0.1", "app:secret@127.0.0.1"))
        assert [note for note in store.check() if "appendfsync everysec" not in note] == []
        assert type(store.claim(new_record(), 30.0, b"n1")) is Granted
        store.close()
        other.flushdb()
        other.acl_deluser("app")


@pytest.mark.parametrize(
    ("setting", "value", "usual", "said"),
    [
        ("min-replicas-to-write", "1", "0", "too few replicas are connected (min-replicas-to-write)"),
        ("maxmemory", "1", "0", "its memory is full (maxmemory) and it may not evict anything"),
    ],
)
def test_a_server_that_takes_no_writes_just_now_is_a_note(server, colour, setting, value, usual, said):
    """R48: it may pass; requests are answered 503 meanwhile."""
    with client(server) as other:
        other.config_set(setting, value)
        try:
            notes = colour(server.url).check()
        finally:
            other.config_set(setting, usual)
    assert notes[-1].endswith(f"{said}. Requests are answered 503 while that is so.")


@pytest.mark.slow
def test_replicas_are_told_of_and_refused(colour):
    """CONTRACT 5: a failover may lose the last writes; a replica can't take any."""
    with (
        ValkeyServer({"appendfsync": "always", "repl-diskless-sync-delay": 0}) as primary,
        ValkeyServer() as replica,
        client(primary) as other,
        client(replica) as another,
    ):
        another.replicaof("127.0.0.1", primary.port)
        while other.info("replication")["connected_slaves"] == 0:
            pass
        assert checked(colour(primary.url)) == (
            True,
            ["it has replicas; a failover may lose the last writes, which they had not seen yet."],
        )
        with pytest.raises(ConfigurationError, match="it is a replica, which can't be written; name the primary"):
            colour(replica.url).check()


def test_an_engine_needs_a_durable_server_or_your_word(configured, server):
    """CONTRACT 5, R14: it asks the server before it judges, and its refusal says what was found."""
    configured(appendfsync="always")
    Engine(RedisStore(server.url), namespace="tests").close()
    assert AsyncEngine(AsyncRedisStore(server.url), namespace="tests").notices == ()
    configured(appendonly="no")
    for make in (lambda **more: Engine(RedisStore(server.url), **more), lambda **more: Engine(server.url, **more)):
        with pytest.raises(ConfigurationError, match=r"may forget its records.*appendonly no.*accept_volatile=True"):
            make(namespace="tests")
        engine = make(namespace="tests", accept_volatile=True)
        assert len(engine.notices) == 1
        engine.close()
    with pytest.raises(ConfigurationError, match=r"^this store may forget.*can't be seen whether it keeps"):
        Engine(RedisStore("redis://127.0.0.1:1"), namespace="tests")
    with pytest.raises(ConfigurationError, match="give namespace="):
        Engine(RedisStore(server.url), accept_volatile=True)
