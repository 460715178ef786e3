"""The promises of ``twiceproof keys resolve | forget | purge`` to operators, on real SQLite files."""

import json
import os
import re
import threading
from typing import Self

import pytest

from tests.support.cli_keys import DAY, KeysFile, document, fill, invoke, run, seen_by
from twiceproof import Engine, Policy, Request, Response
from twiceproof.cli import _store
from twiceproof.core._codec import decode, encode
from twiceproof.core._record import ClaimRef, Done, Fenced, Guarantee, State
from twiceproof.stores.sqlite import SqliteStore


@pytest.fixture
def keys(tmp_path):
    file = KeysFile(tmp_path / "keys.db")
    yield file
    file.close()


# ---------------------------------------------------------------------- resolve, seen by the application


class Service:
    """An application of its own on the same file: one operation, whose effects are counted."""

    def __init__(self, keys: KeysFile) -> None:
        self.engine = Engine(keys.url)
        self.effects = 0
        self.fails = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.engine.close()

    def call(self) -> Response:
        request = Request("POST", b"/transfers", b"", [(b"idempotency-key", b"k-1")], b'{"amount": 5}')
        return self.engine.handle(request, "acct_1", Policy(), self.transfer)

    def transfer(self, request: Request, attempt: object) -> Response:
        self.effects += 1
        if self.fails:
            raise RuntimeError("lost")
        return Response(201, [(b"content-type", b"text/plain")], b"done")

    def lose(self) -> None:
        with pytest.raises(RuntimeError, match="lost"):
            self.call()
        assert self.call().status == 500  # R28
        self.fails = False


PARTS = ("--key", "k-1", "--principal", "acct_1", "--operation", "POST /transfers")
REASON = ("--reason", "the bank says so")


def test_completed_with_an_answer_makes_the_original_request_replay_it(keys, tmp_path):
    """R25: status, fields and body as given, the marker on it, and the handler does not run again."""
    (tmp_path / "answer.json").write_bytes(b'{"id": "tr_81"}')
    with Service(keys) as service:
        service.lose()
        id = document("keys", "show", keys.url, *PARTS)["id"]
        result = run(
            "keys", "resolve", keys.url, id[:12], "--completed", "--status", "201", "--location", "/transfers/81",
            "--header", "X-Bank: north", "--body-file", str(tmp_path / "answer.json"), "--retention", "2h", *REASON,
        )  # fmt: skip
        replay = service.call()
        assert (result.returncode, replay.status, replay.body, service.effects) == (0, 201, b'{"id": "tr_81"}', 1)
    assert list(replay.headers) == [
        (b"X-Bank", b"north"),
        (b"Location", b"/transfers/81"),
        (b"content-type", b"application/json"),
        (b"idempotent-replayed", b"true"),
        (b"content-length", b"15"),
    ]
    assert "This can't repeat an effect." in result.stdout
    record = document("keys", "show", keys.url, id)
    assert record["expires_at_seconds"] - record["completed_at_seconds"] == pytest.approx(7200.0, abs=0.01)


def test_completed_without_an_answer_makes_a_retry_say_that_there_is_none(keys):
    """R26: 409 replay-unavailable; the output says so."""
    with Service(keys) as service:
        service.lose()
        id = document("keys", "show", keys.url, *PARTS)["id"]
        result = run("keys", "resolve", keys.url, id, "--completed", "--location", "/transfers/81", *REASON)
        replay = service.call()
        assert (replay.status, service.effects) == (409, 1)
    assert b"replay-unavailable" in (replay.body or b"")
    assert replay.header(b"location") == b"/transfers/81"
    assert "409 replay-unavailable" in result.stdout


def test_completed_with_a_status_alone_replays_an_empty_body(keys):
    """`--status 204` is an answer of its own."""
    with Service(keys) as service:
        service.lose()
        id = document("keys", "show", keys.url, *PARTS)["id"]
        said = document("keys", "resolve", keys.url, id, "--completed", "--status", "204", *REASON)
        replay = service.call()
    assert (said["status"], said["body_kept"]) == (204, True)
    assert (replay.status, replay.body, service.effects) == (204, b"", 1)


def test_nothing_happened_makes_a_retry_run_and_is_said_to(keys):
    """The verdict that can repeat an effect says that it can."""
    with Service(keys) as service:
        service.lose()
        id = document("keys", "show", keys.url, *PARTS)["id"]
        result = run("keys", "resolve", keys.url, id, "--nothing-happened", *REASON)
        again = service.call()
        assert (result.returncode, again.status, again.header(b"idempotent-replayed"), service.effects) == (
            0, 201, None, 2,
        )  # fmt: skip
    assert "This can repeat an effect" in result.stdout


def test_forget_makes_a_retry_run_and_is_said_to(keys):
    """Also for a completed record."""
    with Service(keys) as service:
        service.fails = False
        service.call()
        id = document("keys", "show", keys.url, *PARTS)["id"]
        result = run("keys", "forget", keys.url, id, "--reason", "test data")
        service.call()
        assert (result.returncode, service.effects) == (0, 2)
    assert "This can repeat an effect" in result.stdout
    assert "it was completed" in result.stdout


# ---------------------------------------------------------------------- resolve, refused


@pytest.mark.parametrize("verdict", ["--completed", "--nothing-happened"])
def test_a_record_whose_lease_is_live_is_refused_unless_forced(verdict, keys):
    """Exit code 1 and how long it still is; with --force the holder is fenced (R30) and the output says so."""
    kept = keys.claim()
    refused = invoke("keys", "resolve", keys.url, kept.hex, verdict, *REASON)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "lease is live" in refused.stderr
    assert "--force" in refused.stderr
    assert keys.store.renew([ClaimRef(kept.id, kept.nonce)], 60.0) == []
    forced = invoke("keys", "resolve", keys.url, kept.hex, verdict, "--force", *REASON)
    assert forced.exit_code == 0
    assert "its holder is fenced, but what it runs is not stopped" in forced.stdout
    assert keys.store.complete(kept.id, kept.nonce, encode(Response(200)), DAY) == Fenced()


def test_a_completed_record_is_refused_even_by_force(keys):
    """Its answer stands; the message names the way to be rid of it."""
    kept = keys.completed()
    for force in ((), ("--force",)):
        result = invoke("keys", "resolve", keys.url, kept.hex, "--nothing-happened", *REASON, *force)
        assert result.exit_code == 1
        assert "completed already" in result.stderr
    assert seen_by("--state", "completed", url=keys.url) == [kept.hex]


def test_a_record_that_a_hook_is_asked_about_is_refused_unless_forced(keys):
    """R28: one judge at a time; forced, the hook's verdict is fenced."""
    kept = keys.parked()
    hook = os.urandom(16)
    keys.store.claim_unsettled(kept.id, 60.0, hook, 0.0)
    for verb in (("resolve", "--completed"), ("forget",)):
        refused = invoke("keys", verb[0], keys.url, kept.hex, *verb[1:], *REASON)
        assert refused.exit_code == 1
        assert "hook is asked" in refused.stderr
    assert invoke("keys", "resolve", keys.url, kept.hex, "--completed", "--force", *REASON).exit_code == 0
    assert keys.store.complete(kept.id, hook, encode(Response(200)), DAY) == Fenced()


def test_a_refusal_is_a_document_too(keys):
    """With --json: its code on stdout, the sentence on both, exit code 1."""
    kept = keys.claim()
    result = invoke("keys", "resolve", keys.url, kept.hex, "--completed", *REASON, "--json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["done"], said["refused"], said["id"]) == (1, None, "lease-live", kept.hex)
    assert said["detail"] in result.stderr


class Meanwhile:
    """The store of the command, with something that happens just after its second claim or look."""

    def __init__(self, store: SqliteStore, verb: str, happens) -> None:
        self._store = store
        self._verb = verb
        self._happens = happens

    def __getattr__(self, name: str):
        found = getattr(self._store, name)
        if name != self._verb:
            return found

        def called(*args, **options):
            answer = found(*args, **options)
            self._happens()
            return answer

        return called


def meanwhile(monkeypatch, keys: KeysFile, verb: str, happens) -> None:
    monkeypatch.setattr(
        _store, "open_store", lambda url, timeout: Meanwhile(SqliteStore(keys.path, timeout=timeout), verb, happens)
    )


@pytest.mark.parametrize("verdict", ["--completed", "--nothing-happened"])
@pytest.mark.parametrize("comes_back", ["completes", "renews"])
def test_a_holder_that_comes_back_in_between_wins(verdict, comes_back, keys, monkeypatch):
    """R42: the verdict is fenced, exit code 1, and what the holder says stands."""
    kept = keys.lapsed()

    def holder() -> None:
        if comes_back == "completes":
            assert keys.store.complete(kept.id, kept.nonce, encode(Response(201, [], b"late")), DAY) == Done()
        else:
            assert keys.store.renew([ClaimRef(kept.id, kept.nonce)], 60.0) == []

    meanwhile(monkeypatch, keys, "claim_unsettled", holder)
    result = invoke("keys", "resolve", keys.url, kept.hex, verdict, *REASON)
    assert result.exit_code == 1
    assert "came back" in result.stderr
    record = keys.store.get(kept.id)
    assert record is not None
    assert record.state is (State.COMPLETED if comes_back == "completes" else State.IN_FLIGHT)


def test_a_record_that_changes_between_look_and_forget_stays(keys, monkeypatch):
    """Another token: the message says to look again."""
    kept = keys.lapsed(guarantee=Guarantee.AT_LEAST_ONCE)
    meanwhile(
        monkeypatch, keys, "get", lambda: keys.claim(kept.key, guarantee=Guarantee.AT_LEAST_ONCE)
    )  # R27: a retry takes over
    result = invoke("keys", "forget", keys.url, kept.hex, "--reason", "test", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["refused"] == "fenced"
    assert "changed meanwhile" in result.stderr
    assert keys.store.get(kept.id) is not None


def test_a_record_that_goes_between_look_and_verdict_is_said_to_be_gone(keys, monkeypatch):
    """Its holder released it: nothing to decide any more."""
    kept = keys.lapsed()
    meanwhile(monkeypatch, keys, "get", lambda: keys.store.release(kept.id, kept.nonce))
    result = invoke("keys", "resolve", keys.url, kept.hex, "--completed", *REASON)
    assert result.exit_code == 1
    assert "is gone" in result.stderr


def test_of_a_verdict_and_a_late_holder_exactly_one_wins(keys):
    """Raced for real: whoever is told that it was done is the one whose answer is stored."""
    wins = []
    for _ in range(25):
        kept = keys.lapsed()
        told: list[object] = []
        start = threading.Barrier(2)

        def holder(kept=kept, told=told, start=start) -> None:
            start.wait()
            told.append(keys.store.complete(kept.id, kept.nonce, encode(Response(201)), DAY))

        thread = threading.Thread(target=holder)
        thread.start()
        start.wait()
        result = invoke("keys", "resolve", keys.url, kept.hex, "--completed", "--status", "299", *REASON)
        thread.join()
        record = keys.store.get(kept.id)
        assert record is not None
        assert record.answer is not None
        status = decode(record.answer).status
        assert (result.exit_code, told, status) in [(0, [Fenced()], 299), (1, [Done()], 201)]
        wins.append(status)
    assert len(wins) == 25


# ---------------------------------------------------------------------- resolve, odd input


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((*REASON,), "Say what happened"),
        (("--completed", "--nothing-happened", *REASON), "one of them"),
        (("--completed",), "--reason"),
        (("--completed", "--reason", "  "), "say why"),
        (("--completed", "--reason", "x" * 1001), "at most 1000"),
        (("--nothing-happened", "--status", "201", *REASON), "go with --completed"),
        (("--nothing-happened", "--body-file", "x", *REASON), "go with --completed"),
        (("--completed", "--status", "101", *REASON), "--status"),
        (("--completed", "--status", "abc", *REASON), "--status"),
        (("--completed", "--header", "X-A: 1", *REASON), "--header goes with"),
        (("--completed", "--status", "200", "--header", "no colon", *REASON), "no field line"),
        (("--completed", "--status", "200", "--header", "X: a\r\nSet-Cookie: b", *REASON), "can't"),
        (("--completed", "--status", "200", "--location", "/é", *REASON), "can't"),
        (("--completed", "--status", "200", "--header", "Set-Cookie: a=b", *REASON), "Set-Cookie is never stored"),
        (("--completed", "--status", "200", "--header", "Date: today", *REASON), "Date is never stored"),
        (("--completed", "--body-file", "{tmp}/nowhere", *REASON), "can't be read"),
        (("--completed", "--body-file", "{tmp}", *REASON), "can't be read"),
        (("--completed", "--body-file", "/dev/zero", *REASON), "over 16,777,216 bytes"),
        (("--completed", "--retention", "0s", *REASON), "--retention"),
        (("--completed", "--retention", "nan", *REASON), "is not a duration"),
        (("--completed", "--retention", "-1h", *REASON), "is not a duration"),
        (("--completed", "--retention", "1h30", *REASON), "is not a duration"),
        (("--completed", "--retention", "9999999d", *REASON), "must lie between"),
    ],
)
def test_odd_input_is_refused_and_changes_nothing(options, sentence, keys, tmp_path):
    """Exit code 2, one sentence that names the option, the record as it was."""
    kept = keys.parked()
    result = invoke("keys", "resolve", keys.url, kept.hex, *(each.format(tmp=tmp_path) for each in options))
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert seen_by("--state", "parked", url=keys.url) == [kept.hex]


def test_the_body_may_come_from_standard_input(keys):
    """`--body-file -`, byte for byte; no content type is guessed for it."""
    kept = keys.parked()
    result = invoke("keys", "resolve", keys.url, kept.hex, "--completed", "--body-file", "-", *REASON, stdin=b"\xff\n")
    assert result.exit_code == 0
    record = keys.store.get(kept.id)
    assert record is not None
    assert record.answer is not None
    assert decode(record.answer) == Response(200, [], b"\xff\n")


# ---------------------------------------------------------------------- the operator's trail


@pytest.mark.parametrize(
    "command",
    [
        ("resolve", "--completed", "--reason", 'paid, says\nthe "bank"'),
        ("resolve", "--nothing-happened", "--reason", 'paid, says\nthe "bank"'),
        ("forget", "--reason", 'paid, says\nthe "bank"'),
    ],
)
def test_what_an_operator_did_and_why_is_logged_in_one_line(command, keys, caplog):
    """The logger twiceproof.operator, stderr and the JSON document all have the event."""
    kept = keys.parked()
    with caplog.at_level("INFO", "twiceproof.operator"):
        result = invoke("keys", command[0], keys.url, kept.hex, *command[1:], "--json")
    (logged,) = [each.getMessage() for each in caplog.records if each.name == "twiceproof.operator"]
    assert logged.startswith(f'operator {command[0]} record="{kept.hex}"')
    assert logged.endswith(r'reason="paid, says\nthe \"bank\""')
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ " + re.escape(logged) + "\n", result.stderr)
    event = json.loads(result.stdout)["event"]
    assert (event["name"], event["record"], event["reason"]) == ("operator", kept.hex, 'paid, says\nthe "bank"')


# ---------------------------------------------------------------------- forget and purge


def test_forget_is_refused_while_a_lease_is_live_unless_forced(keys):
    """Exit code 1; forced, the holder is fenced."""
    kept = keys.claim()
    refused = invoke("keys", "forget", keys.url, kept.hex, "--reason", "test")
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    said = document("keys", "forget", keys.url, kept.hex, "--reason", "test", "--force")
    assert (said["done"], said["was"], said["forced"]) == ("forget", "in_flight", True)
    assert keys.store.complete(kept.id, kept.nonce, encode(Response(200)), DAY) == Fenced()


@pytest.mark.parametrize("make", ["lapsed", "parked", "completed"])
def test_forget_needs_no_force_where_nobody_is_at_work(make, keys):
    """Whatever the state."""
    kept = getattr(keys, make)()
    said = document("keys", "forget", keys.url, kept.hex[:10], "--reason", "test")
    assert (said["forced"], said["can_repeat_an_effect"]) == (False, True)
    assert keys.store.get(kept.id) is None


def test_purge_deletes_what_has_expired_and_nothing_else(keys):
    """R33, R42: counted, the unsettled among them too; a batch is a thousand."""
    live = [keys.completed().hex, keys.parked().hex, keys.claim().hex]
    fill(keys, 2_500, answer=b"old")
    keys.change("expires_at = 1.0", "hex(answer) LIKE '%6F6C64'")
    keys.lapsed(keep=0.0)
    said = document("keys", "purge", keys.url, "--limit", "1500")
    assert (said["records"], said["can_repeat_an_effect"]) == (1500, False)
    rest = run("keys", "purge", keys.url)
    assert "Purged 1,001 expired records." in rest.stdout
    assert "Of 1 of them nobody ever learned the outcome" in rest.stdout
    assert "This can't repeat an effect" in rest.stdout
    assert seen_by("--all", url=keys.url) == live
    assert document("keys", "purge", keys.url)["records"] == 0
