"""Which operation a request at the WSGI door is: R1, R16 and the policy table."""

import logging

import pytest

from tests.support.wsgi_door import Counter, Door, call, environ_of
from twiceproof import Policy
from twiceproof.server import _setup
from twiceproof.server._wsgi_environ import raw_path


def path(info, *, sent=None, root="", name="REQUEST_URI"):
    """The raw path of an environ; ``info`` and ``root`` as text, as a server decodes them."""
    names = {"REQUEST_URI": None, name: sent}
    recoded = [text.encode("utf-8", "surrogateescape").decode("latin-1") for text in (info, root)]
    return raw_path(environ_of(path=recoded[0], SCRIPT_NAME=recoded[1], **names))


@pytest.mark.parametrize("name", ["REQUEST_URI", "RAW_URI"])
@pytest.mark.parametrize(
    ("info", "sent", "root", "expected"),
    [
        ("/a/b", "/a%2Fb?x=1", "", b"/a%2Fb"),
        ("/caf\xe9", "/caf%C3%A9", "", b"/caf%C3%A9"),
        ("/b", "/api/b", "/api", b"/api/b"),
        ("/b/c", "/api/b%2fc", "/api", b"/api/b%2fc"),
        ("/b/c", "/b%2Fc", "/proxy", b"/proxy/b%2Fc"),  # a prefix that only the environ knows
        ("/a", "http://t:80/a?x=1", "", b"/a"),
        ("/a/b", "HTTP://t/a%2Fb", "", b"/a%2Fb"),
        ("/", "http://t", "", b"/"),
        ("/new", "/old", "", b"/new"),  # rewritten on its way
        ("/a", "/a#x", "", b"/a"),
    ],
)
def test_the_path_as_sent_counts_where_it_is_this_path(name, info, sent, root, expected):
    """R16: %2F stays %2F; a prefix counts; what a middleware has rewritten is taken from what it made of it."""
    assert path(info, sent=sent, root=root, name=name) == expected


@pytest.mark.parametrize(
    ("info", "root", "expected"),
    [
        ("/a/b", "", b"/a/b"),
        ("/a b?", "", b"/a%20b%3F"),
        ("/caf\xe9", "/m", b"/m/caf%C3%A9"),
        ("/\udcff", "", b"/%FF"),
        ("", "/m", b"/m"),
    ],
)
def test_a_server_that_tells_the_decoded_path_only_gets_it_encoded_again_and_is_told(info, root, expected, caplog):
    """R16: bytes that are no UTF-8 too; the log says once what that folds."""
    _setup.tell_no_raw_path.cache_clear()
    with caplog.at_level(logging.WARNING, "twiceproof.server"):
        seen = path(info, root=root), path(info, root=root)
    assert seen == (expected, expected)
    assert [record.getMessage().count("/a%2Fb and /a/b") for record in caplog.records] == [1]


def test_two_paths_are_two_operations_and_a_mount_prefix_counts():
    """R16."""
    with Door(app := Counter()) as door:
        paths = [("/a/b", "/a/b"), ("/a/b", "/a%2Fb"), ("/a/b/", "/a/b/"), ("/a/b", "/a/%62")]
        seen = [door.call(path=info, REQUEST_URI=sent).replayed for info, sent in paths]
        assert seen == [False, False, False, True]
        assert not door.call(path="/a/b", SCRIPT_NAME="/m", REQUEST_URI="/m/a/b").replayed
    assert app.effects == 4


def test_the_table_is_looked_up_with_the_path_that_the_application_sees():
    """Below the mount prefix, and however it was spelled: no spelling gets around a row."""
    policy = {"POST /orders/{id}/cancel": Policy(required=True), "POST /metrics": None, "*": Policy(methods=("POST",))}
    with Door(app := Counter(), policy=policy) as door:
        refused = [
            door.call(key=None, path="/orders/1/cancel", REQUEST_URI=sent, SCRIPT_NAME=root).problem
            for sent, root in [("/orders/1/cancel", ""), ("/orders/1%2Fcancel", ""), ("/m/orders/1/cancel", "/m")]
        ]
        assert refused == ["idempotency-key-missing"] * 3
        assert [door.call(path="/metrics").replayed for _ in range(2)] == [False, False]
        assert [door.call(path="/other").replayed for _ in range(2)] == [False, True]
        assert [door.call(path="/other", method="PATCH").replayed for _ in range(2)] == [False, False]
    assert app.effects == 5


def test_a_named_operation_stands_for_method_and_path():
    """R16: the path is part of the fingerprint then."""
    with Door(app := Counter(), policy=Policy(operation="orders.create")) as door:
        call(door, environ_of())
        seen = [door.call().replayed, door.call(path="/v2/orders", REQUEST_URI="/v2/orders").problem]
    assert (seen, app.effects) == ([True, "idempotency-key-reuse"], 1)
