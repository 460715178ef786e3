"""``twiceproof keys`` and ``twiceproof store`` over every store that outlives a process, by its public verbs alone."""

import json
import subprocess
import time
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.cli_keys import KeysFile, command, document, invoke, run, seen_by
from twiceproof import Engine, Policy, Request, Response
from twiceproof.stores import Filter, open_store
from twiceproof.stores._protocol import HasSchema
from twiceproof.testing.servers import ValkeyServer

STORES = ("sqlite", "postgresql", "redis")


class Keys(KeysFile):
    """The application's side of any store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_store(url)  # type: ignore[assignment]  # whichever it is
        if isinstance(self.store, HasSchema):
            self.store.init()
        self.store.open()
        self._made = 0


@pytest.fixture(params=STORES)
def url(request, tmp_path) -> str:
    """A store of the test's own, empty; its table is yet to be made."""
    own = f"t{uuid.uuid4().hex[:12]}"
    match request.param:
        case "postgresql":
            return f"{request.getfixturevalue('postgresql_server').url}?table={own}"
        case "redis":
            return f"{request.getfixturevalue('valkey_server').url}?prefix={own}"
        case _:
            return f"sqlite:///{tmp_path}/keys.db"


@pytest.fixture
def keys(url) -> Iterator[Keys]:
    made = Keys(url)
    yield made
    made.close()


# ---------------------------------------------------------------------- keys


def test_records_are_selected_by_state_operation_path_and_age(keys):
    """The same selections everywhere: `in_flight` leaves lapsed ones out, `unsettled` is parked and lapsed (R28)."""
    live = keys.claim().hex
    lapsed = keys.lapsed().hex
    parked = keys.parked().hex
    completed = keys.completed(operation="orders.create", path="/orders/7").hex
    states = ("in_flight", "completed", "parked", "waiting", "unsettled", "lapsed")
    assert {state: seen_by("--state", state, url=keys.url) for state in states} == {
        "in_flight": [live],
        "completed": [completed],
        "parked": [parked],
        "waiting": [],
        "unsettled": [lapsed, parked],
        "lapsed": [lapsed],
    }
    assert seen_by("--operation", "orders.create", url=keys.url) == [completed]
    assert seen_by("--path", "/orders/7", url=keys.url) == [completed]
    assert seen_by("--older-than", "1h", url=keys.url) == []
    assert len(seen_by("--older-than", "0s", url=keys.url)) == 4


def test_pages_stay_where_they_are_while_others_come_and_go(keys):
    """A cursor names a place: what comes later is on later pages, what goes leaves no gap, and it can be used again."""
    made = [keys.completed() for _ in range(7)]
    first = document("keys", "list", keys.url, "--limit", "3")
    keys.store.forget(made[1].id, made[1].nonce)
    keys.store.forget(made[4].id, made[4].nonce)
    late = keys.completed()
    rest = ["keys", "list", keys.url, "--limit", "3", "--cursor", first["cursor"]]
    second, again = document(*rest), document(*rest)
    third = document("keys", "list", keys.url, "--limit", "3", "--cursor", second["cursor"])
    pages = [[each["id"] for each in page["records"]] for page in (first, second, third)]
    assert pages == [[each.hex for each in some] for some in (made[:3], [made[3], made[5], made[6]], [late])]
    assert [each["id"] for each in again["records"]] == pages[1]
    assert third["cursor"] is None


def test_a_cursor_that_no_page_carried_is_told_in_a_sentence(keys):
    """Exit code 2, whatever the store's cursors look like."""
    for cursor in ("", "0", "nonsense", "AAAA"):
        result = invoke("keys", "list", keys.url, "--cursor", cursor)
        assert (result.exit_code, result.stderr.startswith("Error: --cursor: ")) == (2, True)


def test_a_record_is_shown_by_its_prefix_and_by_what_made_it(keys):
    """R14, R25: with the stored answer, and with what a retry gets."""
    kept = keys.completed("order-42", Response(201, [(b"location", b"/transfers/81")], b'{"id": 81}'))
    by_prefix = document("keys", "show", keys.url, kept.hex[:12], "--body")
    named = ["--key", "order-42", "--principal", "acct_1", "--operation", "POST /transfers"]
    by_key = document("keys", "show", keys.url, *named, "--body")
    assert by_prefix["id"] == by_key["id"] == kept.hex
    assert by_key["answer"]["headers"] == [["location", "/transfers/81"]]
    assert by_key["answer"]["body"] == '{"id": 81}'
    assert by_prefix["retry_gets"].startswith("201 from the record")


def test_an_unsettled_record_is_resolved_and_the_engine_goes_by_it(keys):
    """R28: completed, a retry replays what the operator said; released, it runs; a live lease refuses both."""
    engine = Engine(keys.url, namespace="default", purge_every=0)
    request = Request("POST", b"/transfers", b"", [(b"idempotency-key", b"paid")], b"{}")
    freed = Request("POST", b"/transfers", b"", [(b"idempotency-key", b"freed")], b"{}")

    def fail(request: Request, attempt: object) -> Response:
        raise ZeroDivisionError

    def work(request: Request, attempt: object) -> Response:
        return Response(202, [], b"ran")

    with engine:
        for each in (request, freed):
            with pytest.raises(ZeroDivisionError):
                engine.handle(each, "acct_1", Policy(), fail)
        paid, nothing = seen_by("--state", "unsettled", url=keys.url)
        say = ["--reason", "looked it up", "--json"]
        completed = ["--completed", "--status", "201", "--header", "x-by: hand"]
        assert invoke("keys", "resolve", keys.url, paid, *completed, *say).exit_code == 0
        assert invoke("keys", "resolve", keys.url, nothing, "--nothing-happened", *say).exit_code == 0
        live = keys.claim()
        refused = invoke("keys", "resolve", keys.url, live.hex, "--nothing-happened", *say)
        assert (refused.exit_code, json.loads(refused.stdout)["refused"]) == (1, "lease-live")
        replayed = engine.handle(request, "acct_1", Policy(), fail)
        assert (replayed.status, replayed.header(b"x-by")) == (201, b"hand")
        assert engine.handle(freed, "acct_1", Policy(), work).body == b"ran"


def test_a_forgotten_record_is_gone(keys):
    """In whatever state; a live lease needs --force."""
    parked, live = keys.parked(), keys.claim()
    forget = ["keys", "forget", keys.url, "--reason", "test data"]
    assert invoke(*forget, parked.hex[:10]).exit_code == 0
    assert invoke(*forget, live.hex).exit_code == 1
    assert invoke(*forget, live.hex, "--force").exit_code == 0
    assert list(keys.store.scan(Filter()).records) == []


# ---------------------------------------------------------------------- store


def test_what_expired_is_purged_and_counted(keys):
    """R33, R42: whether the store sweeps by itself or not, none is told twice, and what is live stays."""
    alive = keys.completed()
    for _ in range(3):
        keys.completed(retention=0.001)
    keys.parked(keep=0.001)
    end = time.monotonic() + 10
    while len(list(keys.store.scan(Filter()).records)) > 1:
        assert time.monotonic() < end
    purged = document("store", "purge", keys.url)
    assert (purged["records"], purged["unsettled"]) == (4, 1)
    assert document("store", "purge", keys.url)["records"] == 0
    assert seen_by(url=keys.url) == [alive.hex]


def test_two_purges_at_once_tell_of_each_record_once(keys):
    """As the application's own and a job's: whoever deletes it counts it, and between them they leave nothing."""
    for _ in range(60):
        keys.completed(retention=0.001)
    alive = keys.completed()
    jobs = [
        subprocess.Popen(command("store", "purge", keys.url, "--json"), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    counts = [json.loads(job.communicate(timeout=60)[0])["records"] for job in jobs]
    assert sum(counts) + document("store", "purge", keys.url)["records"] == 60
    assert seen_by(url=keys.url) == [alive.hex]


def test_a_store_is_made_ready_once_and_found_to_work(url, request):
    """init, init again, check: what it promises, and how long a look takes; it holds nothing then."""
    for _ in range(2):
        assert invoke("store", "init", url).exit_code == 0
    found = document("store", "check", url)
    server = "sqlite" not in request.node.callspec.id
    assert (found["works"], found["durable"], found["shared"]) == (True, True, server)
    assert 0 < found["round_trip_seconds"] < 1
    assert seen_by(url=url) == []


def test_the_printed_schema_makes_a_table_that_works(postgresql_server):
    """R54: as a migration would run it, in one go and again; before that each command says what is missing."""
    url = f"{postgresql_server.url}?schema=s{uuid.uuid4().hex[:8]}&table=kept"
    found = invoke("store", "check", url)
    listed = invoke("keys", "list", url)
    assert (found.exit_code, listed.exit_code) == (1, 2)
    assert "twiceproof store init" in found.stderr
    assert "twiceproof store init" in listed.stderr
    sql = invoke("store", "schema", url).stdout
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        for _ in range(2):
            connection.execute(sql)
    assert document("store", "check", url)["works"] is True
    assert document("keys", "list", url)["records"] == []


def test_a_password_is_in_no_output(postgresql_server):
    """Neither in what is done nor in what fails, in either spelling of it."""
    bare = postgresql_server.url.replace("postgres@", "postgres:s3cret-word@")
    urls = (f"{bare}?table=t{uuid.uuid4().hex[:8]}", f"{postgresql_server.url}?password=s3cret-word&table=gone")
    results = [
        invoke(*words, url, *rest)
        for url in urls
        for words, *rest in (
            (("store", "check"),),
            (("store", "schema"), "--json"),
            (("store", "init"), "--json"),
            (("store", "check"), "--json"),
            (("store", "purge"),),
            (("keys", "list"),),
            (("keys", "show"), "0123456789"),
            (("keys", "list"), "--cursor", "nonsense"),
        )
    ]
    assert {result.exit_code for result in results} == {0, 1, 2}
    assert [result for result in results if "s3cret" in result.stdout + result.stderr] == []


def test_a_server_that_may_forget_is_found_to_work_and_not_to_be_durable():
    """CONTRACT 5: the note names the setting; exit code 0, since requests are served if one accepts that."""
    with ValkeyServer({"appendonly": False}) as server:
        shown = invoke("store", "check", server.url)
        found = document("store", "check", server.url)
    assert (shown.exit_code, found["works"], found["durable"], found["shared"]) == (0, True, False, True)
    assert "accept_volatile=True" in shown.stdout
    assert "appendonly no" in found["notes"][0]


def test_explain_names_the_store_without_its_password(postgresql_server, tmp_path):
    """Whatever it is; which database it is can be read."""
    url = f"{postgresql_server.url.replace('postgres@', 'postgres:s3cret@')}?table=e{uuid.uuid4().hex[:12]}"
    assert invoke("store", "init", url).exit_code == 0
    (tmp_path / "app_on_postgresql.py").write_text(
        "from flask import Flask\n"
        "from twiceproof.server.flask import Idempotency, anonymous\n"
        "app = Flask(__name__)\n"
        f"idempotency = Idempotency(store={url!r}, namespace='shop', principal=anonymous)\n"
        "idempotency.install(app)\n"
        "@app.post('/orders')\n"
        "@idempotency.operation()\n"
        "def order():\n"
        "    return ''\n"
    )
    explained = run("explain", "app_on_postgresql:app", "--json", cwd=tmp_path)
    assert (explained.returncode, explained.stderr) == (0, "")
    store = json.loads(explained.stdout)["operations"][0]["store"]
    assert (store["name"], store["durable"]) == (f"postgresql, 127.0.0.1:{postgresql_server.port}/postgres", True)
    assert "s3cret" not in explained.stdout
