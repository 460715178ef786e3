"""Redis URLs: what each means, and a sentence for what none does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from twiceproof.stores import open_async_store, open_store
from twiceproof.stores.redis import AsyncRedisStore, RedisStore

WITHOUT = """
import sys
sys.modules["redis"] = None
from twiceproof.stores import open_store
try:
    open_store("redis://host")
except ImportError as error:
    print(error)
"""


def test_urls_name_the_store():
    """``valkey://`` is the same; the options in the URL win, and a password is not shown."""
    url = "rediss://user:p%40ss@cache.example:6380/3?prefix=mine&connections=5&ssl_ca_certs=/ca.pem"
    for opener, kind in ((open_store, RedisStore), (open_async_store, AsyncRedisStore)):
        store: Any = opener(url, timeout=3.0)
        assert type(store) is kind
        assert str(store) == "redis, cache.example:6380/3"
        address = store._address
        assert (address.tls, address.timeout, address.connections, address.prefix) == (True, 3.0, 5, "mine")
        assert address.options == {
            "host": "cache.example",
            "port": 6380,
            "db": 3,
            "username": "user",
            "password": "p@ss",
            "ssl_ca_certs": "/ca.pem",
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
        }
        assert "p@ss" not in repr(address)
    plain: Any = open_store("valkey://[::1]")
    assert (plain._address.where, plain._address.tls) == ("[::1]:6379/0", False)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis://host?conections=3", "no option 'conections'; did you mean 'connections'?"),
        ("redis://host?ssl_ca_certs=x", "no option 'ssl_ca_certs'"),
        ("redis://host?connections=0", "at least 1"),
        ("redis://host?connections=65", "from 1 to 64"),
        ("redis://host/keys", "the number of a database, such as /0"),
        ("redis://host:port/0", "its port is not a number"),
        ("redis://:se#cret@host/0", "write %23 for a # in a password"),
        ("redis://:se?cret@host/0", "write %3F for a ? in a password"),
        ("redis://:se?db=cret@host/0", "write %3F for a ? in a password"),
        ("redis://user:p@host/0?password=s@cret", "has no option 'password'"),
        ("redis://host?prefix=a{b}", "no braces"),
        ("redis://host?prefix=", "1 to 100 characters"),
        ("rediss://host?ssl_cert_reqs=maybe", "none, optional or required"),
        ("rediss://host?ssl_check_hostname=maybe", "true or false"),
        ("sqlite:///keys.db", "is not the URL of a Redis server"),
    ],
)
def test_a_url_that_makes_no_sense_is_a_sentence(url, sentence):
    """R41: at construction, without a word of the password."""
    for kind in (RedisStore, AsyncRedisStore):
        with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
            kind(url)
        assert sentence in str(caught.value)
        assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import sys, twiceproof.stores; print('redis' in sys.modules)", "False"),
        (WITHOUT, "The Redis store needs redis: pip install 'twiceproof[redis]'"),
    ],
    ids=["not imported", "not installed"],
)
def test_redis_py_is_needed_by_this_store_alone(program, says):
    """Nobody else imports it, and a missing package is a sentence."""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout.strip(), ran.stderr) == (says, "")


@pytest.mark.parametrize("timeout", [0.0, float("nan"), float("inf")])
def test_a_timeout_that_bounds_nothing_is_refused(timeout):
    """Every verb answers within a real bound."""
    with pytest.raises(ValueError, match="timeout must be"):
        RedisStore("redis://localhost", timeout=timeout)
