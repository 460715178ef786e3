"""What an engine is told: whatever can't work fails when it is made, with one sentence that says what to change."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.engines import Bench, World, brief
from twiceproof import AsyncEngine, ConfigurationError, Engine, Policy
from twiceproof.engine._options import check_policy
from twiceproof.stores import Capabilities
from twiceproof.stores.memory import AsyncMemoryStore, MemoryStore
from twiceproof.stores.sqlite import SqliteStore


@pytest.fixture(params=[Engine, AsyncEngine], ids=["blocking", "async"])
def kind(request):
    return request.param


class Shared(MemoryStore):
    """A store that several hosts may use."""

    @property
    def capabilities(self):
        return Capabilities(durable=True, shared=True)


class AsyncShared(AsyncMemoryStore):
    """Its other colour."""

    @property
    def capabilities(self):
        return Capabilities(durable=True, shared=True)


NUMBERS = [
    float("nan"),
    float("inf"),
    -float("inf"),
    -1,
    True,
    "5",
    b"5",
    [],
    10**400,
    timedelta(days=-1),
    timedelta.max,
]


@pytest.mark.parametrize("value", [*NUMBERS, 0], ids=repr)
def test_a_store_timeout_must_be_a_duration(kind, value):
    """R48: 0 is not *none*, and neither is anything else that bounds nothing."""
    with pytest.raises(ConfigurationError, match=r"^store_timeout must "):
        kind("memory://", accept_volatile=True, store_timeout=value)


@pytest.mark.parametrize("name", ["complete_retry", "drain", "purge_every"])
@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_other_durations_may_be_none_at_all_but_must_be_durations(kind, name, value):
    """R33, R41, R47: 0 turns each of them off."""
    with pytest.raises(ConfigurationError, match=f"^{name} must "):
        kind("memory://", accept_volatile=True, **{name: value})
    kind("memory://", accept_volatile=True, **{name: 0})


def test_durations_may_be_timedeltas(kind):
    """Seconds or a `timedelta`."""
    engine = kind("memory://", accept_volatile=True, drain=timedelta(minutes=1), store_timeout=timedelta(seconds=0.5))
    assert (engine.settings.drain, engine.settings.store_timeout) == (60.0, 0.5)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "5", None], ids=repr)
def test_a_backlog_must_be_a_number_of_answers(kind, value):
    """R47."""
    with pytest.raises(ConfigurationError, match=r"^complete_backlog must be a whole number of 1 or more, not "):
        kind("memory://", accept_volatile=True, complete_backlog=value)


@pytest.mark.parametrize("value", [None, False, 0, 1, "yes"], ids=repr)
def test_a_store_that_may_forget_must_be_accepted(kind, value):
    """CONTRACT 5: said as True, not as something that happens to be true."""
    with pytest.raises(ConfigurationError, match="accept_volatile"):
        kind("memory://", accept_volatile=value)
    with pytest.raises(ConfigurationError, match=r"^this store forgets its records.*accept_volatile=True$"):
        kind("memory://")


def test_a_durable_store_needs_no_acceptance(kind, tmp_path):
    """CONTRACT 5."""
    assert kind(f"sqlite:///{tmp_path}/keys.db").settings.site.namespace == "default"


@pytest.mark.parametrize("value", ["", 5, b"payments", "a\nb", "a\x00b", "\ud800"], ids=repr)
def test_a_namespace_must_be_a_name(kind, value):
    """R14."""
    with pytest.raises(ConfigurationError, match=r"^give namespace= a name"):
        kind("memory://", accept_volatile=True, namespace=value)


def test_a_shared_store_needs_a_namespace():
    """R14: applications that share a store must not share keys by accident."""
    made: list[tuple[Any, Any]] = [(Engine, Shared()), (AsyncEngine, AsyncShared())]
    for kind, store in made:
        with pytest.raises(ConfigurationError, match=r"^give namespace= a name"):
            kind(store)
        assert kind(store, namespace="payments").settings.site.namespace == "payments"


@pytest.mark.parametrize("value", ["", b"", 5, True, ["x"]], ids=repr)
def test_a_secret_must_hold_something(kind, value):
    """R54: and it is not repeated."""
    with pytest.raises(ConfigurationError, match=r"^secret must be a text or bytes that is not empty"):
        kind("memory://", accept_volatile=True, secret=value)


def test_a_secret_keys_what_is_stored(colour):
    """R54: without it nobody can tell which key a record is for; text and bytes are one."""
    digests = []
    for secret in (b"one", "one", b"two", None):
        bench = Bench(colour, World(), **({} if secret is None else {"secret": secret}))
        bench.handle()
        digests.append((bench.world.record().key, bench.world.record().principal, bench.world.record().id))
        bench.close()
    assert digests[0] == digests[1]
    for at in range(3):
        assert len({digest[at] for digest in digests}) == 3


@pytest.mark.parametrize(
    "value", ["", "errors", "/errors", "ftp://x", "https://", "https://x/#y", "https://x/a b", "https://x/\r\nX: y", 5]
)
def test_a_docs_url_must_be_an_address(kind, value):
    """It becomes part of a field and of a URI."""
    with pytest.raises(ConfigurationError, match=r"^docs_url must be an address"):
        kind("memory://", accept_volatile=True, docs_url=value)


@pytest.mark.parametrize("value", [5, "print", []], ids=repr)
def test_on_event_must_be_a_function(kind, value):
    """One that can be called."""
    with pytest.raises(ConfigurationError, match=r"^on_event must be a plain function"):
        kind("memory://", accept_volatile=True, on_event=value)


def test_on_event_must_not_be_asynchronous(kind):
    """Nobody would await it."""

    async def tell(event):
        raise AssertionError

    with pytest.raises(ConfigurationError, match=r"^on_event must be a plain function"):
        kind("memory://", accept_volatile=True, on_event=tell)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("name_space", "there is no option name_space; did you mean namespace?"),
        ("on_events", "there is no option on_events; did you mean on_event?"),
        ("zzz", "there is no option zzz; there are accept_volatile, "),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_that_exists(kind, name, sentence):
    """A misspelt option never goes unnoticed."""
    with pytest.raises(ConfigurationError) as caught:
        kind("memory://", accept_volatile=True, **{name: 1})
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("store", [None, 5, {}, "keys.db", "rediz://x", Ellipsis], ids=repr)
def test_a_store_must_be_one(kind, store):
    """A URL that a store understands, or a store."""
    with pytest.raises(ConfigurationError, match=r"store|URL"):
        kind(store, accept_volatile=True)


def test_a_store_must_be_of_the_engines_colour():
    """A blocking store would stop the loop, and an asynchronous one would do nothing."""
    with pytest.raises(ConfigurationError, match="AsyncMemoryStore is of the asynchronous colour"):
        Engine(AsyncMemoryStore(), accept_volatile=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="MemoryStore is of the blocking colour"):
        AsyncEngine(MemoryStore(), accept_volatile=True)  # type: ignore[arg-type]


def test_a_store_that_cannot_work_fails_at_once_and_leaves_nothing_open(kind, tmp_path):
    """R41: checked when the engine is made."""
    with pytest.raises(ConfigurationError):
        kind(f"sqlite:///{tmp_path}/no/such/folder/keys.db")


def test_a_blocking_engine_refuses_an_asynchronous_hook():
    """Nobody would await it."""

    async def hook(record, request):
        raise AssertionError

    bench = Bench("blocking")
    try:
        with pytest.raises(ConfigurationError, match=r"^reconcile is an async function"):
            bench.handle(Policy(reconcile=hook))
        assert bench.faults.foreground() == []
    finally:
        bench.close()


def test_what_an_operator_should_know_is_kept(kind, caplog):
    """The store's own notices; that it forgets was accepted, and is no news."""
    [notice] = kind("memory://", accept_volatile=True).notices
    assert "forgets" in notice
    assert caplog.records == []


def test_what_an_operator_should_know_of_a_durable_store_is_logged(caplog, tmp_path, monkeypatch):
    """R41: a warning each, at start-up, since nobody reads an attribute."""
    monkeypatch.setattr(SqliteStore, "check", lambda _: ["It may lose the last second."])
    engine = Engine(f"sqlite:///{tmp_path}/keys.db")
    assert engine.notices == ("It may lose the last second.",)
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("twiceproof.engine", "WARNING", "It may lose the last second.")
    ]


def test_namespaces_keep_applications_apart_in_one_store(make):
    """R14: the same account, operation and key are another record."""
    one = make(namespace="one")
    other = make(one.world, namespace="other")
    assert [brief(one.handle()), brief(other.handle())] == [(201, "", False)] * 2
    assert len(one.world.records()) == 2


def test_docs_url_is_where_problems_are_explained(make):
    """CONTRACT 7: type and Link of every problem document."""
    bench = make(docs_url="https://example.com/p")
    answer = bench.handle(request=bench.request(key="no good"))
    assert b'"type": "https://example.com/p#idempotency-key-invalid"' in (answer.body or b"")
    assert answer.header(b"link") == b'<https://example.com/p>; rel="describedby"'


class AsyncHook:
    async def __call__(self, *args):
        """Never awaited by a blocking engine."""


def test_an_object_that_is_called_asynchronously_is_no_plain_hook():
    """R28: told at start-up or at the first request, not by a verdict that is silently none."""
    hook: Any = AsyncHook()
    with pytest.raises(ConfigurationError, match="on_event must be a plain function"):
        Engine("memory://", accept_volatile=True, on_event=hook)
    with pytest.raises(ConfigurationError, match="reconcile is an async function"):
        check_policy(Policy(reconcile=hook), asynchronous=False)
