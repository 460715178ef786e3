"""Store URLs: what each means, and a sentence for what none does."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof.errors import ConfigurationError
from twiceproof.stores import open_async_store, open_store
from twiceproof.stores.memory import AsyncMemoryStore, MemoryStore
from twiceproof.stores.sqlite import AsyncSqliteStore, SqliteStore

OPENERS = {"blocking": open_store, "async": open_async_store}


@pytest.fixture(params=OPENERS)
def opener(request):
    return OPENERS[request.param]


@pytest.mark.parametrize(
    ("url", "blocking", "asynchronous"),
    [
        ("memory://", MemoryStore, AsyncMemoryStore),
        ("MEMORY://?max_records=5", MemoryStore, AsyncMemoryStore),
        ("sqlite:///keys.db", SqliteStore, AsyncSqliteStore),
    ],
)
def test_a_url_names_a_store_in_both_colours(url, blocking, asynchronous):
    """The scheme chooses the store; its case doesn't matter."""
    assert type(open_store(url)) is blocking
    assert type(open_async_store(url)) is asynchronous


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///keys.db", "{here}/keys.db"),
        ("sqlite:///data/my%20keys%23%3F.db?synchronous=NORMAL", "{here}/data/my keys#?.db"),
        ("sqlite:////var/lib/app/keys.db", "/var/lib/app/keys.db"),
    ],
)
def test_three_slashes_are_relative_four_absolute(opener, url, path, tmp_path, monkeypatch):
    """The path is percent-decoded, and fixed at once: a later change of the working folder doesn't move the file."""
    monkeypatch.chdir(tmp_path)
    store = opener(url)
    monkeypatch.chdir("/")
    assert store._database.file.path == path.format(here=tmp_path)


def test_constructing_opens_nothing(opener, tmp_path, monkeypatch):
    """A store at import time makes no file, thread or connection."""
    monkeypatch.chdir(tmp_path)
    opener("sqlite:///keys.db")
    assert list(tmp_path.iterdir()) == []


def test_options_reach_the_store(opener):
    """Timeout by argument, the rest by query; FULL unless told otherwise."""
    file = opener("sqlite:///keys.db?synchronous=normal", timeout=0.25)._database.file
    assert (file.synchronous, file.timeout) == ("NORMAL", 0.25)
    assert opener("sqlite:///keys.db")._database.file.synchronous == "FULL"


def test_max_records_reaches_the_memory_store():
    """The bound is the URL's."""
    assert vars(open_store("memory://?max_records=5"))["_max_records"] == 5


def test_the_class_takes_a_url_too(tmp_path):
    """`SqliteStore` understands what `open_store` does."""
    store = SqliteStore(f"sqlite:///{tmp_path}/keys.db?synchronous=NORMAL")
    assert store._database.file.path == f"{tmp_path}/keys.db"
    assert store._database.file.synchronous == "NORMAL"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "'' is not a store URL"),
        ("keys.db", "is not a store URL; write sqlite:///keys.db"),
        ("sqlit:///keys.db", "did you mean 'sqlite'?"),
        ("mysql://localhost", "is not a store URL"),
        ("sqlite:keys.db", "is not a store URL"),
        ("sqlite://[keys.db", "is not a store URL"),
        ("sqlite://keys.db", "names a host; write sqlite:///keys.db with three slashes"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite:///:memory:", "use memory:// for records in memory"),
        ("sqlite:///file:keys.db", "no file of its own"),
        ("sqlite:///a%00b", "can't hold a NUL"),
        ("sqlite:///keys.db#1", "write %23 for a #"),
        ("sqlite:///keys.db?synchronus=FULL", "no option 'synchronus'; did you mean 'synchronous'?"),
        ("sqlite:///keys.db?max_records=5", "no option 'max_records'; it knows synchronous"),
        ("sqlite:///keys.db?synchronous=OFF", "must be FULL or NORMAL"),
        ("sqlite:///keys.db?synchronous=", "must be FULL or NORMAL"),
        ("sqlite:///keys.db?synchronous=FULL&synchronous=FULL", "given twice"),
        ("memory://here", "the memory store has no name"),
        ("memory:///here", "the memory store has no name"),
        ("memory://?max_records=0", "at least 1"),
        ("memory://?max_records=-1", "at least 1"),
        ("memory://?max_records=1e3", "at least 1"),
        ("memory://?max_records=" + "9" * 5000, "at least 1"),
        ("memory://?max_record=5", "did you mean 'max_records'?"),
    ],
)
def test_a_url_that_no_store_understands_is_a_sentence(opener, url, sentence):
    """The sentence says what to write instead."""
    with pytest.raises(ConfigurationError) as caught:
        opener(url)
    assert sentence in str(caught.value)


def test_a_password_is_not_repeated(opener):
    """A URL of another product by mistake: what stands before the @ stays out of logs."""
    with pytest.raises(ConfigurationError) as caught:
        opener("mysql://user:hunter2@db.example/keys")
    assert "hunter2" not in str(caught.value)
    assert "db.example" in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
def test_a_timeout_that_bounds_nothing_is_refused(opener, timeout):
    """Every verb answers within a real bound."""
    with pytest.raises(ConfigurationError, match="timeout must be"):
        opener("sqlite:///keys.db", timeout=timeout)


def test_an_unknown_synchronous_is_refused():
    """OFF would break the promise of a durable claim."""
    off: Any = "OFF"
    with pytest.raises(ConfigurationError, match="'FULL' or 'NORMAL'"):
        SqliteStore("keys.db", synchronous=off)


@pytest.mark.parametrize(
    "url", ["host=127.0.0.1 password=hunter2 dbname=x", "postgresql:u:hunter2@h", "redis:/x:hunter2@h", "u:hunter2@h"]
)
def test_what_is_no_url_may_be_a_password_and_is_not_repeated(url):
    """R41: libpq's own words, and slips of the pen."""
    with pytest.raises(ConfigurationError, match=r"^This is not a store URL") as caught:
        open_store(url)
    assert "hunter" not in str(caught.value)


def test_a_name_that_is_no_url_is_repeated():
    """It is what one types first."""
    with pytest.raises(ConfigurationError, match=r"^'keys.db' is not a store URL; write sqlite:///keys.db"):
        open_store("keys.db")
