"""The promises of ``twiceproof explain``, on applications that are really imported."""

import itertools
import json
import re
import subprocess
import sys
import textwrap

import pytest

from tests.support.cli_keys import command, invoke, on_a_terminal
from twiceproof import FingerprintOptions, Policy, Response
from twiceproof.cli._explain_text import MIND, NEVER, TWICE, Setting, can_happen_twice, cannot_happen, to_mind, words
from twiceproof.core._guarantee import SETTLING
from twiceproof.core._lifecycle import Release, settle
from twiceproof.core._outcome import Answered, Cancelled, Raised

SETTING = Setting("fastapi", "default", "app.current_user", durable=True)
RULE = re.compile(r"[RC]\d+")

SHOP = """
    import fastapi
    from twiceproof.server.fastapi import Idempotency

    print("printed while it is imported")

    async def current_user() -> str:
        return "acct_1"

    app = fastapi.FastAPI()
    idempotency = Idempotency(store="sqlite:///keys.db", principal=current_user)
    idempotency.install(app)
    inner, outer, mounted = fastapi.APIRouter(prefix="/inner"), fastapi.APIRouter(prefix="/outer"), fastapi.FastAPI()

    @app.post("/transfers", status_code=201)
    @idempotency.operation(required=True, retention=7 * 86400)
    async def create_transfer(): ...

    @inner.patch("/things/{id}")
    @idempotency.operation(guarantee="at_least_once", lease=5, wait=2, operation="things.change")
    def change_thing(id: int): ...

    @mounted.post("/deep")
    @idempotency.operation
    def deep(): ...

    @inner.post("/hook")
    def hook(): ...

    @app.get("/transfers")
    def list_transfers(): ...

    @app.websocket("/ws")
    async def socket(socket: fastapi.WebSocket): ...

    outer.include_router(inner)
    app.include_router(outer, prefix="/v1")
    app.mount("/sub", mounted)
"""

PLAIN = """
    from starlette.applications import Starlette
    from starlette.endpoints import HTTPEndpoint
    from starlette.middleware import Middleware
    from starlette.routing import Mount, Route, WebSocketRoute
    from twiceproof.server.asgi import IdempotencyMiddleware, Policy, anonymous, by_authorization

    async def bare(scope, receive, send): ...
    async def endpoint(request): ...
    async def socket(websocket): ...
    def who(scope): return "acct_1"

    class Things(HTTPEndpoint):
        async def post(self, request): ...

    class Outer:
        def __init__(self, app): self.app = app

    table = {"POST /a/{id}": Policy(required=True), "POST /sub/things": Policy(operation="things"), "POST /b": None}
    ours = Middleware(IdempotencyMiddleware, store="sqlite:///keys.db", principal=who, policy=table)
    routes = [
        Route("/a/{id:int}", endpoint, methods=["GET", "POST"]),
        Route("/b", endpoint, methods=["POST"]),
        Mount("/sub", routes=[Route("/things", Things), WebSocketRoute("/ws", socket)]),
    ]
    listed = Starlette(routes=routes, middleware=[ours])
    rows = Outer(IdempotencyMiddleware(bare, store="memory://", accept_volatile=True, principal=anonymous,
                 policy={"POST /orders/{id}": Policy(), "*": Policy(guarantee="at_least_once")}))
    stale = Starlette(routes=routes[:2], middleware=[ours])
    twice = Starlette(routes=routes, middleware=[ours, ours])
    below = Starlette(routes=[Mount("/api", app=IdempotencyMiddleware(
        Starlette(routes=[Route("/x", endpoint, methods=["POST"])]), store="sqlite:///keys.db", principal=who,
        policy={"POST /x": Policy()}))])
    loop = Outer(None)
    loop.app = loop

    def make(): return listed
    def refused(): return IdempotencyMiddleware(bare, store="memory://", principal=anonymous)
    async def later(): return listed
    def fails(): raise KeyError("settings")
    def leaves(): raise SystemExit("no settings")
    unset = Starlette(middleware=[Middleware(IdempotencyMiddleware, store="sqlite:///keys.db")])
"""


@pytest.fixture
def apps(tmp_path, monkeypatch):
    """A folder with the modules above, as the current one; what is imported from it is forgotten afterwards."""
    (tmp_path / "explained_shop.py").write_text(textwrap.dedent(SHOP))
    (tmp_path / "explained_plain.py").write_text(textwrap.dedent(PLAIN))
    (tmp_path / "explained_broken.py").write_text("import a_package_that_is_not_here\n")
    (tmp_path / "explained_syntax.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("explained_")]:
        del sys.modules[name]


def explained(*arguments: str) -> dict:
    return json.loads(invoke("explain", *arguments, "--json").stdout)


def covered(document: dict) -> list[tuple[str, str]]:
    return [(each["method"], each["path"]) for each in document["operations"]]


# ---------------------------------------------------------------------- what is found


def test_a_fastapi_app_is_explained_by_a_process_of_its_own(apps):
    """Found below nested routers and mounts; what the import prints does not disturb the document."""
    done = subprocess.run(
        command("explain", "explained_shop:app", "--json"), capture_output=True, text=True, cwd=apps, timeout=60
    )
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "printed while it is imported\n")
    assert covered(document) == [
        ("POST", "/transfers"),
        ("PATCH", "/v1/outer/inner/things/{id}"),
        ("POST", "/sub/deep"),
    ]
    assert document["unprotected"] == [{"method": "POST", "path": "/v1/outer/inner/hook", "endpoint": "hook"}]
    assert document["problems"] == []
    first = document["operations"][0]
    assert {name: first[name] for name in ("door", "endpoint", "required", "guarantee", "retention_seconds")} == {
        "door": "fastapi",
        "endpoint": "create_transfer",
        "required": True,
        "guarantee": "at_most_once",
        "retention_seconds": 604800.0,
    }
    assert first["scope"] == {
        "namespace": "default",
        "principal": "explained_shop.current_user",
        "operation": "POST /transfers",
    }
    assert (first["store"]["name"], first["store"]["durable"]) == (f"sqlite, {apps / 'keys.db'}", True)
    second = document["operations"][1]
    assert (second["lease_seconds"], second["wait_seconds"], second["scope"]["operation"]) == (5, 2, "things.change")


def test_the_table_says_what_the_document_says(apps):
    """Every sentence of the document is in the text, and no line of it is coloured or cut."""
    text = invoke("explain", "explained_shop:app").stdout
    assert "\x1b" not in text
    for operation in explained("explained_shop:app")["operations"]:
        assert f"\n{operation['method']} {operation['path']}\n" in "\n" + text
        for part in ("cannot_happen", "can_happen_twice", "to_mind"):
            assert operation[part]
            for sentence in operation[part]:
                assert f"    - {sentence['text']} ({', '.join(sentence['rules'])})\n" in text
    assert "POST /v1/outer/inner/hook" in text.partition("Not protected")[2]


def test_looking_makes_no_file(apps):
    """The store of the application is checked, not opened."""
    before = sorted(each.name for each in apps.iterdir())
    explained("explained_shop:app")
    explained("explained_plain:listed")
    assert sorted(each.name for each in apps.iterdir() if each.name != "__pycache__") == before


@pytest.mark.parametrize(
    ("target", "operations", "unprotected"),
    [
        ("listed", [("POST", "/a/{id:int}"), ("POST", "/sub/things")], [("POST", "/b")]),
        ("rows", [("POST", "/orders/{id}"), ("POST", "/*"), ("PATCH", "/*")], []),
        ("below", [("POST", "/api/x")], []),
    ],
)
def test_a_middleware_is_found_wherever_it_stands(target, operations, unprotected, apps):
    """In the middleware list of the application, around it (wrapped by others), inside a mount."""
    document = explained(f"explained_plain:{target}")
    assert covered(document) == operations
    assert [(each["method"], each["path"]) for each in document["unprotected"]] == unprotected
    assert document["problems"] == []


def test_a_factory_is_called_when_told_so(apps):
    """`--factory`; without it the message offers it."""
    assert covered(explained("explained_plain:make", "--factory")) == covered(explained("explained_plain:listed"))
    result = invoke("explain", "explained_plain:make")
    assert result.exit_code == 2
    assert "--factory" in result.stderr


def test_each_operation_has_its_own_guarantee(apps):
    """The row of the table that a path falls under."""
    operations = explained("explained_plain:rows")["operations"]
    assert [each["guarantee"] for each in operations] == ["at_most_once", "at_least_once", "at_least_once"]
    assert operations[0]["store"]["durable"] is False
    assert "forgets every record" in operations[0]["store"]["notes"][0]


def test_on_a_terminal_sentences_are_broken_between_words(apps):
    """No line is wider than the screen but one with a long file name, and nothing of a sentence is lost."""
    shown, code = on_a_terminal(command("explain", "explained_shop:app"), columns=60, cwd=apps)
    assert code == 0
    assert "\x1b[1m" in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert [line for line in lines if len(line) > 60 and str(apps) not in line] == []
    whole = " ".join(" ".join(lines).split())
    for sentence in explained("explained_shop:app")["operations"][0]["can_happen_twice"]:
        assert sentence["text"] in whole


# ---------------------------------------------------------------------- exit codes


def test_a_route_without_protection_fails_in_strict_mode_only(apps):
    """0 by default, 1 with --strict; an application whose every POST is covered passes that too."""
    assert invoke("explain", "explained_plain:listed").exit_code == 0
    assert invoke("explain", "explained_plain:listed", "--strict").exit_code == 1
    assert invoke("explain", "explained_plain:below", "--strict").exit_code == 0


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("stale", "names POST /sub/things, but no route has that path"),
        ("twice", "POST /a/{id:int} is covered by 2 middlewares"),
    ],
)
def test_a_set_up_that_contradicts_itself_is_found(target, problem, apps):
    """Exit code 1, always."""
    result = invoke("explain", f"explained_plain:{target}")
    assert result.exit_code == 1
    assert problem in result.stdout.partition("To be put right:")[2]


def test_a_mark_without_install_is_found(apps):
    """Such an endpoint never runs: 500."""
    (apps / "explained_uninstalled.py").write_text(textwrap.dedent(SHOP).replace("idempotency.install(app)", ""))
    result = invoke("explain", "explained_uninstalled:app")
    assert result.exit_code == 1
    assert "POST /transfers is marked, but install(app) was not called" in result.stdout


def test_a_mark_above_the_route_is_found(apps):
    """The route was given the bare function: it is listed as unprotected, and the order is to be put right."""
    marked = '@app.post("/transfers", status_code=201)\n@idempotency.operation(required=True, retention=7 * 86400)'
    first, second = marked.split("\n")
    source = textwrap.dedent(SHOP)
    assert marked in source
    (apps / "explained_upside_down.py").write_text(source.replace(marked, f"{second}\n{first}"))
    result = invoke("explain", "explained_upside_down:app", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert ("POST", "/transfers") in [(each["method"], each["path"]) for each in document["unprotected"]]
    assert "put operation() directly below" in document["problems"][0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("explained_plain",), "write module:attribute, such as explained_plain:app"),
        (("explained_plain.py:listed",), "such as explained_plain:listed"),
        ((":app",), "write module:attribute"),
        (("explained_plain:",), "write module:attribute"),
        (("explained_nowhere:app",), "There is no module 'explained_nowhere'"),
        (("explained_plain:listet",), "did you mean 'listed'"),
        (("explained_plain:listed.state.nothing",), "there is no 'nothing'"),
        (("explained_plain:bare",), "Nothing in explained_plain:bare is protected"),
        (("explained_plain:loop",), "Nothing in explained_plain:loop is protected"),
        (("explained_plain:table",), "Nothing in explained_plain:table is protected"),
        (("explained_plain:table", "--factory"), "can't be called"),
        (("explained_plain:later", "--factory"), "is asynchronous"),
        (("explained_plain:fails", "--factory"), "KeyError: 'settings'"),
        (("explained_plain:leaves", "--factory"), "SystemExit: no settings"),
        (("explained_plain:refused", "--factory"), "would not start: this store forgets"),
        (("explained_plain:unset",), "would not start: whose keys are they?"),
        (("explained_broken:app",), "No module named 'a_package_that_is_not_here'"),
        (("explained_syntax:app",), "SyntaxError"),
    ],
)
def test_what_can_not_be_explained_is_told_in_a_sentence(arguments, sentence, apps):
    """Exit code 2, nothing on stdout, no traceback of ours."""
    result = invoke("explain", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_where_the_application_fails_is_told(apps):
    """File and line of its own code."""
    result = invoke("explain", "explained_plain:fails", "--factory")
    source = textwrap.dedent(PLAIN).splitlines()
    line = next(at for at, text in enumerate(source, 1) if "def fails" in text)
    assert f"({apps / 'explained_plain.py'}, line {line})" in result.stderr


def test_the_warnings_of_start_up_are_part_of_the_explanation(apps):
    """They would scroll by at run time; here they are listed, once each."""
    source = textwrap.dedent(PLAIN).replace("principal=who", "principal=by_authorization")
    (apps / "explained_warns.py").write_text(source)
    starts = ["by_authorization tells accounts apart", "the middleware around a Starlette object"]
    found = explained("explained_warns:listed")["warnings"]
    assert [text[: len(start)] for text, start in zip(found, starts, strict=True)] == starts


# ---------------------------------------------------------------------- the sentences


@pytest.mark.filterwarnings("ignore::twiceproof.TwiceproofWarning")
def test_every_sentence_names_its_rules_and_can_be_said():
    """Each statement holds in some set-up, has no empty place, and names rules that exist in form."""
    policies = [
        Policy(guarantee=guarantee, record=record, required=required, store_body=body, fail_open=body)
        for guarantee in SETTLING
        for record in ("default", "2xx", "all", bool)
        for required in (True, False)
        for body in (True, False)
    ]
    policies.append(Policy(retention=3600.0, fingerprint=FingerprintOptions(fields=("/amount",))))
    settings = [
        Setting(door, "default", principal, durable=durable)
        for door in ("asgi", "fastapi")
        for principal in ("anonymous", "by_authorization", "app.who")
        for durable in (True, False)
    ]
    said = set()
    for policy, setting in itertools.product(policies, settings):
        for sentences in (cannot_happen(policy, setting), can_happen_twice(policy, setting), to_mind(policy, setting)):
            for sentence in sentences:
                said.add(sentence.text)
                assert not re.search(r"[{}]|  | [,.:;]", sentence.text)
                assert sentence.text.endswith(".")
                assert all(RULE.fullmatch(rule) for rule in sentence.rules)
                assert sentence.rules
    never_said = [
        statement.text
        for statement in (*NEVER, *TWICE, *MIND)
        if not any(re.fullmatch(re.sub(r"\\{.*?\\}", ".*", re.escape(statement.text)), text) for text in said)
    ]
    assert never_said == []


def nothing_is_kept(response: Response) -> bool:
    """A rule of an application, for `record`."""
    return False


@pytest.mark.parametrize(
    "record", ["default", "2xx", "all", nothing_is_kept], ids=["default", "2xx", "all", "callable"]
)
@pytest.mark.parametrize("guarantee", list(SETTLING), ids=str)
def test_the_answers_that_are_said_to_run_again_are_those_that_the_rules_release(guarantee, record):
    """Compared with `settle` itself, for every kind of status that is no gate (R36, R39)."""
    policy = Policy(guarantee=guarantee, record=record)
    released = {
        status
        for status in (201, 302, 404, 409, 408, 499, 500, 502, 503)
        if isinstance(settle(Answered(Response(status)), policy), Release)
    }
    meant = {
        "An answer of 5xx, 408 or 499 is not stored": {408, 499, 500, 502, 503},
        "An answer of 4xx is not stored": {404, 409, 408, 499},
        "Whether a 4xx answer is stored": {404, 409, 408, 499},
        "Whether a 4xx or 5xx answer is stored": {404, 409, 408, 499, 500, 502, 503},
    }
    texts = [sentence.text for sentence in can_happen_twice(policy, SETTING)]
    said = {status for start, each in meant.items() if any(text.startswith(start) for text in texts) for status in each}
    assert said == released


@pytest.mark.parametrize("guarantee", list(SETTLING), ids=str)
def test_exceptions_are_said_to_run_again_where_the_rules_release_them(guarantee):
    """The other half of the table of guarantees."""
    policy = Policy(guarantee=guarantee)
    released = [isinstance(settle(outcome, policy), Release) for outcome in (Raised(), Cancelled())]
    texts = [sentence.text for sentence in can_happen_twice(policy, SETTING)]
    said = any(text.startswith("An exception, a cancellation") for text in texts)
    assert [said, said] == released


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, "Requests without a key are not protected"),
        ({"released_statuses": {418}}, "An answer of 418 releases the key"),
        ({"fail_open": True}, "While the store is down requests run without protection"),
        ({"retention": 86400.0}, "The answer is kept for 1 day: after that"),
        ({"retention": 3600.0}, "The answer is kept for 1 hour, which is less than a day"),
        ({"unsettled_retention": 7200.0}, "A key whose outcome stays unknown is new after 2 hours"),
        ({"guarantee": "at_least_once"}, "A holder that was not renewed in time (paused, cut off"),
        ({"reconcile": print}, "Where the reconcile hook or an operator says"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::twiceproof.TwiceproofWarning")
def test_an_option_that_can_repeat_an_effect_is_said_to(options, start):
    """With the option's own value in the sentence; `required` alone takes the first away."""
    texts = [sentence.text for sentence in can_happen_twice(Policy(**options), SETTING)]
    assert [text for text in texts if text.startswith(start)] != []
    strict = [
        sentence.text for sentence in can_happen_twice(Policy(required=True, released_statuses=frozenset()), SETTING)
    ]
    assert not any(text.startswith(("Requests without", "An answer of", "While the store")) for text in strict)


@pytest.mark.parametrize(
    ("door", "principal", "durable", "start", "where"),
    [
        ("asgi", "by_authorization", True, "The account is told by its Authorization", can_happen_twice),
        ("asgi", "app.who", False, "The store forgets", can_happen_twice),
        ("asgi", "anonymous", True, "Everybody is one account", to_mind),
        ("fastapi", "app.who", True, "A dependency that commits must be Depends", to_mind),
    ],
)
def test_what_the_set_up_around_a_policy_can_do_is_said_to(door, principal, durable, start, where):
    """And only there."""
    setting = Setting(door, "default", principal, durable=durable)
    assert any(each.text.startswith(start) for each in where(Policy(), setting))
    plain = Setting("asgi", "d", "app.who", durable=True)
    assert not any(each.text.startswith(start) for each in where(Policy(), plain))


def test_a_crash_is_promised_not_to_repeat_only_where_the_store_remembers():
    """At most once on a store that forgets: while the process lives."""
    volatile = Setting("asgi", "d", "app.who", durable=False)
    crash = "A crash of process or host"
    for guarantee, setting, promised in (
        ("at_most_once", SETTING, True),
        ("at_most_once", volatile, False),
        ("at_least_once", SETTING, False),
    ):
        texts = [each.text for each in cannot_happen(Policy(guarantee=guarantee), setting)]
        assert any(text.startswith(crash) for text in texts) is promised


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "0.5 seconds"),
        (1.0, "1 second"),
        (90.0, "90 seconds"),
        (60.0, "1 minute"),
        (7200.0, "2 hours"),
        (86400.0, "1 day"),
    ],
)
def test_durations_are_told_in_the_largest_whole_unit(seconds, text):
    """As one would say it."""
    assert words(seconds) == text
