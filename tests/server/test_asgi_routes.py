"""Which operation a request belongs to behind the ASGI door (R10, R16)."""

from typing import Any

import pytest

from tests.support.asgi_client import Client, Counted, http_scope, in_loop, keyed, post
from tests.support.asgi_door import Door
from twiceproof import Policy
from twiceproof.server import _setup

TABLE = {
    "POST /orders": Policy(required=True, missing_status=400),
    "POST /orders/{id}/cancel": Policy(required=True, missing_status=422),
    "POST /orders/latest/cancel": Policy(required=True, missing_status=428),
    "POST /files/{rest:path}": Policy(required=True, missing_status=422),
    "POST /caf\u00e9": Policy(required=True, missing_status=428),
    "POST /orders:run": Policy(required=True, missing_status=428),
    "POST /open": None,
}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/orders", 400),
        ("/orders/", 201),
        ("/orders/7/cancel", 422),
        ("/orders/a%2Fb/cancel", 201),
        ("/orders/1%2Fcancel", 422),
        ("/orders%3Arun", 428),
        ("/orders/latest/cancel", 428),
        ("/orders/%6Catest/cancel", 428),
        ("/orders/7/cancel/now", 201),
        ("/orders//cancel", 201),
        ("/files/a", 422),
        ("/files/a/b/c", 422),
        ("/caf%C3%A9", 428),
        ("/caf%c3%a9", 428),
        ("/open", 201),
        ("/nothing", 201),
    ],
)
@in_loop
async def test_the_table_finds_the_row_that_a_path_belongs_to(path, status):
    """One segment, the rest, a literal before a placeholder; what no row names is uncovered without a rest row.

    A path is looked up as the application routes it, decoded: no spelling of it gets around its row.
    """
    async with Door(Counted(), policy=TABLE) as door:
        assert (await post(door, None, path=path)).status == status


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("/api", "/api/orders", 400),
        ("/api/", "/api/orders", 400),
        ("/api", "/%61pi/orders", 400),
        ("/a b", "/a%20b/orders", 400),
        ("/api", "/orders", 400),
        ("/api", "/apis/orders", 201),
        ("/api", "/other/orders", 201),
        ("", "/orders", 400),
    ],
)
@in_loop
async def test_the_table_names_paths_below_the_mount_prefix(root, path, status):
    """R16: in whichever spelling the prefix came, and whether or not the server counts it to the path."""
    async with Door(Counted(), policy=TABLE) as door:
        answer = await post(door, None, path=path, root_path=root)
    assert answer.status == status


@in_loop
async def test_the_mount_prefix_is_part_of_the_operation():
    """R16: one application mounted twice has two operations."""
    app = Counted()
    async with Door(app) as door:
        one = await post(door, "k1", path="/a/orders", root_path="/a")
        two = await post(door, "k1", path="/b/orders", root_path="/b")
    assert [one.replayed, two.replayed, app.effects] == [False, False, 2]


@in_loop
async def test_a_key_is_free_on_every_other_path_method_and_only_there():
    """R16: never another route's answer; escapes that mean the same are one path, anything else is another."""
    app = Counted()
    async with Door(app) as door:
        await post(door, "k1", path="/orders/a-b")
        same = [await post(door, "k1", path=path) for path in ("/orders/a%2Db", "/orders/a%2db")]
        others = [
            await post(door, "k1", path=path)
            for path in ("/orders/a-b/", "/orders/A-b", "/orders/a%2Fb", "/orders/a/b", "/orders//a-b", "/orders/1")
        ]
        patch = await post(door, "k1", path="/orders/a-b", method="PATCH")
        query = await post(door, "k1", path="/orders/a-b", query_string=b"x=1")
    assert [answer.replayed for answer in same] == [True, True]
    assert [answer.replayed for answer in others] == [False] * 6
    assert (patch.replayed, query.code) == (False, "idempotency-key-reuse")
    assert app.effects == 8


@in_loop
async def test_a_query_that_a_server_leaves_on_the_raw_path_is_no_part_of_it():
    """R16: the path is cut at the question mark."""
    app = Counted()
    async with Door(app, policy={"POST /orders": Policy()}) as door:
        for raw_path in (b"/orders?a=1", b"/orders"):
            client = Client()
            await door(http_scope(headers=keyed("k1"), query=b"a=1", raw_path=raw_path), client.receive, client.send)
    assert app.effects == 1


@pytest.mark.parametrize("missing", [None, b"", ...])
@in_loop
async def test_a_server_without_raw_paths_is_served_and_the_log_says_what_that_means(missing, caplog):
    """R16: the decoded path is encoded again; /a%2Fb and /a/b are then one, which is said once."""
    _setup.tell_no_raw_path.cache_clear()
    app = Counted()
    clients = [Client() for _ in range(4)]
    async with Door(app, policy={"POST /caf\u00e9": Policy(), "*": Policy()}) as door:
        for client, path in zip(clients, ("/caf\u00e9", "/caf\u00e9", "/a/b", "/a/b"), strict=True):
            scope = http_scope(path=path, headers=keyed("k1"))
            scope["raw_path"] = missing
            if missing is ...:
                del scope["raw_path"]
            await door(scope, client.receive, client.send)
    assert [client.answer.replayed for client in clients] == [False, True, False, True]
    assert app.effects == 2
    assert [record.message.count("/a%2Fb") for record in caplog.records if "decoded" in record.message] == [1]


@in_loop
async def test_a_named_operation_is_one_on_every_path_and_the_path_is_compared():
    """R16: the name replaces method and path in the scope; another concrete path is another request."""
    app = Counted()
    policy = {"POST /orders/{id}/cancel": Policy(operation="orders.cancel"), "POST /v2/cancel": Policy(operation="x")}
    async with Door(app, policy=policy) as door:
        await post(door, "k1", path="/orders/1/cancel")
        same = await post(door, "k1", path="/orders/1/cancel")
        other = await post(door, "k1", path="/orders/2/cancel")
        elsewhere = await post(door, "k1", path="/v2/cancel")
    assert (same.replayed, other.code, elsewhere.status, app.effects) == (True, "idempotency-key-reuse", 201, 2)


@in_loop
async def test_other_methods_are_covered_where_the_policy_says_so():
    """R1: the option."""
    app = Counted()
    table: dict[str, Any] = {"PUT /orders/{id}": Policy(methods=("PUT",)), "*": Policy()}
    async with Door(app, policy=table) as door:
        puts = [await post(door, "k1", path="/orders/1", method="PUT") for _ in range(2)]
        elsewhere = [await post(door, "k1", path="/notes/1", method="PUT") for _ in range(2)]
    assert [answer.replayed for answer in puts + elsewhere] == [False, True, False, False]
    assert app.effects == 3
