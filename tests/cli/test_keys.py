"""The promises of ``twiceproof keys`` to operators, on real SQLite files."""

import json
import os
import re
import sqlite3
import subprocess
import sys

import pytest

from tests.support.cli_keys import KeysFile, document, fill, invoke, run, seen_by
from twiceproof import Response
from twiceproof.cli import _store
from twiceproof.cli._output import printable, span
from twiceproof.core._record import Guarantee
from twiceproof.core._scope import Site, by_authorization


@pytest.fixture
def keys(tmp_path):
    file = KeysFile(tmp_path / "keys.db")
    yield file
    file.close()


# ---------------------------------------------------------------------- list


def test_a_record_is_listed_with_what_an_operator_needs(keys):
    """Id, state, operation, path, guarantee, attempts, age, expiry and the status of the answer, one line each."""
    keys.completed(path="/transfers")
    result = run("keys", "list", keys.url)
    head, line = result.stdout.splitlines()
    assert re.split(r"  +", head) == [
        "id", "state", "operation", "path", "guarantee", "attempts", "age", "expires in", "answer",
    ]  # fmt: skip
    cells = re.split(r"  +", line)
    assert re.fullmatch(r"[0-9a-f]{12}", cells[0])
    assert cells[1:6] == ["completed", "POST /transfers", "/transfers", "at_most_once", "1"]
    assert cells[7:] == ["23h59m", "201"]
    assert (result.returncode, result.stderr) == (0, "")


def test_a_lapsed_record_is_shown_as_unsettled_with_its_cause(keys):
    """R28: so is a parked one; a live one is in flight; the body of an answer may not be kept (R26)."""
    keys.claim()
    keys.lapsed()
    keys.parked(cause="cut-short")
    keys.completed(answer=Response(202, [], None))
    states = [re.split(r"  +", line)[1::7] for line in invoke("keys", "list", keys.url).stdout.splitlines()[1:]]
    assert states == [
        ["in_flight", "-"],
        ["unsettled (lapsed)", "-"],
        ["unsettled (exception)".replace("exception", "cut-short"), "-"],
        ["completed", "202 no body"],
    ]
    shown = [(each["state"], each["cause"]) for each in document("keys", "list", keys.url)["records"]]
    assert shown == [
        ("in_flight", None),
        ("unsettled", "lapsed"),
        ("unsettled", "cut-short"),
        ("completed", None),
    ]


def test_records_are_selected_by_state_operation_path_and_age(keys):
    """Each filter alone; `in_flight` leaves lapsed ones out, `unsettled` is parked and lapsed."""
    live = keys.claim().hex
    lapsed = keys.lapsed().hex
    parked = keys.parked().hex
    completed = keys.completed(operation="orders.create", path="/orders/7").hex
    seen = {
        name: seen_by("--state", name, url=keys.url)
        for name in ("in_flight", "completed", "parked", "waiting", "unsettled", "lapsed")
    }
    assert seen == {
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


def test_moments_are_told_in_utc_and_in_seconds(keys):
    """JSON fields that a program can rely on: ISO 8601 with Z, and seconds."""
    keys.completed(retention=3600.0)
    (record,) = document("keys", "list", keys.url)["records"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["created_at"])
    assert record["expires_at_seconds"] - record["completed_at_seconds"] == pytest.approx(3600.0, abs=0.002)
    assert 0 <= record["age_seconds"] < 60
    assert 3500 < record["expires_in_seconds"] <= 3600
    assert record["next_attempt_at"] is None


def test_pages_follow_each_other_until_all_is_seen(keys):
    """`--limit` and the printed cursor: every record once, oldest first; the last page has no cursor."""
    ids = [keys.completed().hex for _ in range(7)]
    cursor: list[str] = []
    seen = []
    while True:
        page = document("keys", "list", keys.url, "--limit", "3", *cursor)
        seen.append([each["id"] for each in page["records"]])
        if page["cursor"] is None:
            break
        cursor = ["--cursor", page["cursor"]]
    assert seen == [ids[:3], ids[3:6], ids[6:]]


def test_a_page_is_full_although_the_store_had_to_skip_some(keys):
    """`--state in_flight --limit 2` looks past lapsed records, and its cursor skips none."""
    for _ in range(5):
        keys.lapsed()
    live = [keys.claim().hex for _ in range(3)]
    first = document("keys", "list", keys.url, "--state", "in_flight", "--limit", "2")
    rest = document("keys", "list", keys.url, "--state", "in_flight", "--cursor", first["cursor"])
    assert [[each["id"] for each in page["records"]] for page in (first, rest)] == [live[:2], live[2:]]


def test_the_table_names_the_cursor_of_the_next_page(keys):
    """What it prints can be given back."""
    for _ in range(3):
        keys.completed()
    lines = invoke("keys", "list", keys.url, "--limit", "2").stdout.splitlines()
    option = lines[-1].removeprefix("More: ").split()
    assert option[0] == "--cursor"
    assert len(invoke("keys", "list", keys.url, *option).stdout.splitlines()) == 2  # the heads and the third


@pytest.mark.slow
def test_ten_thousand_records_are_listed_in_bounded_memory(keys):
    """With --all, memory does not grow with the number of records: 80 MB of them cost less than 24 MiB."""
    fill(keys, 10_000, answer=b"x" * 8_000)
    script = (
        "import sys; from twiceproof.cli._root import run; run(sys.argv[1:]); "
        "status = open('/proc/self/status'); "
        "print(next(line.split()[1] for line in status if line.startswith('VmHWM')), file=sys.stderr)"
    )

    def peak(*arguments: str) -> tuple[int, str]:
        arguments = ("keys", "list", keys.url, *arguments)
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
        return int(done.stderr), done.stdout

    least, _ = peak("--limit", "1", "--json")
    most, listed = peak("--all", "--json")
    records = json.loads(listed)["records"]
    assert len({record["id"] for record in records}) == 10_000
    assert most - least < 24 * 1024, f"{most - least} KiB more"


def test_listing_while_a_server_writes_misses_nothing_that_was_there(keys):
    """Another process claims and completes all the time: each older record is listed once, and no error comes."""
    before = set(fill(keys, 1_000))
    script = (
        "import sys; from tests.support.cli_keys import KeysFile; from pathlib import Path\n"
        "keys = KeysFile(Path(sys.argv[1])); at = 0\n"
        "while True:\n"
        "    keys.completed(f'other-{at}', principal='acct_2'); at += 1\n"
        "    if at == 3: print('going', flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(keys.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "going\n"
        result = run("keys", "list", keys.url, "--all", "--json")
        assert (result.returncode, result.stderr) == (0, "")
        listed = [record["id"] for record in json.loads(result.stdout)["records"]]
        assert len(listed) == len(set(listed))
        assert before <= set(listed)
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.communicate()


def test_a_file_that_another_process_keeps_locked_is_told_after_the_timeout(keys):
    """A write that doesn't get its turn ends with a sentence that names --timeout, and has written nothing."""
    kept = keys.parked()
    holder = sqlite3.connect(keys.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        refused = invoke("keys", "forget", keys.url, kept.hex, "--reason", "test", "--timeout", "0.2s")
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert refused.exit_code == 2
    assert "holds its lock" in refused.stderr
    assert "--timeout" in refused.stderr
    assert seen_by(url=keys.url) == [kept.hex]


def test_looking_needs_no_turn_to_write(keys):
    """Listing and showing go on while another process holds the file's lock, however short the time-out."""
    kept = keys.parked()
    keys.store.close()
    holder = sqlite3.connect(keys.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        listed = run("keys", "list", keys.url, "--json", "--timeout", "0.2s")
        shown = run("keys", "show", keys.url, kept.hex, "--json", "--timeout", "0.2s")
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert (listed.returncode, shown.returncode) == (0, 0), listed.stderr + shown.stderr
    assert [record["id"] for record in json.loads(listed.stdout)["records"]] == [kept.hex]
    assert json.loads(shown.stdout)["id"] == kept.hex


# ---------------------------------------------------------------------- which store


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("memory://", "lives inside the process"),
        ("keys.db", "is not a store URL"),
        ("sqlte:///keys.db", "did you mean 'sqlite'"),
        ("sqlite://keys.db", "three slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///{tmp}/nowhere.db", "There is no file"),
        ("sqlite:///{tmp}/no/such/folder.db", "There is no file"),
        ("sqlite:///{tmp}", "is not a file"),
        ("sqlite:///{tmp}/text.db", "not a database"),
        ("sqlite:///{tmp}/empty.db", "No keys were ever kept"),
        ("sqlite:///{tmp}/other.db", "No keys were ever kept"),
        ("sqlite:///{tmp}/keys.db?sync=FULL", "has no option 'sync'"),
    ],
)
@pytest.mark.parametrize("verb", [("list",), ("show", "a" * 12), ("purge",)])
def test_a_url_that_leads_to_no_store_is_told_in_a_sentence(url, sentence, verb, tmp_path):
    """Exit code 2, nothing on stdout, and nothing made or changed in the folder."""
    (tmp_path / "text.db").write_text("no database at all" * 100)
    (tmp_path / "empty.db").touch()
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE orders (id)")
    connection.close()
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    result = invoke("keys", verb[0], url.format(tmp=tmp_path), *verb[1:])
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_file_of_a_later_release_is_refused_with_what_to_do(keys):
    """R54: an unknown schema version is a sentence."""
    keys.close()
    with sqlite3.connect(keys.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    result = invoke("keys", "list", keys.url)
    assert result.exit_code == 2
    assert "schema version 99" in result.stderr
    assert "upgrade twiceproof" in result.stderr


def test_a_record_of_a_later_release_is_listed_and_left_alone(keys):
    """R17: its fields may mean something else, so that nothing but a forced forget touches it."""
    kept = keys.parked()
    keys.change("format = 2")
    assert document("keys", "list", keys.url)["records"][0]["state"] == "unknown"
    assert "a newer release wrote" in invoke("keys", "show", keys.url, kept.hex).stdout
    reason = ("--reason", "test")
    for verb in (("resolve", "--completed"), ("resolve", "--nothing-happened", "--force"), ("forget",)):
        result = invoke("keys", verb[0], keys.url, kept.hex, *verb[1:], *reason)
        assert (verb, result.exit_code) == (verb, 2)
        assert "upgrade twiceproof" in result.stderr
    assert invoke("keys", "forget", keys.url, kept.hex, *reason, "--force").exit_code == 0


def test_an_answer_of_a_later_release_is_not_guessed(keys):
    """R53: the record is shown, its answer is not."""
    kept = keys.completed()
    keys.change("answer = CAST(x'09' || answer AS BLOB)")
    shown = document("keys", "show", keys.url, kept.hex, "--body")
    assert (shown["answer"], shown["answer_status"]) == (None, None)
    assert shown["retry_gets"].startswith("503 store-unavailable")


# ---------------------------------------------------------------------- naming a record


def test_a_record_is_named_by_any_unique_beginning_of_its_id(keys):
    """Eight digits or more, in either case."""
    kept = keys.completed()
    for id in (kept.hex, kept.hex[:12], kept.hex[:8].upper()):
        assert document("keys", "show", keys.url, id)["id"] == kept.hex


def test_a_record_is_found_by_its_beginning_among_many(keys):
    """However many pages are before it; two that begin alike are told even where pages lie between them."""
    twins = [bytes.fromhex("ab" * 31 + end) for end in ("00", "01")]
    first = keys.completed()
    keys.copy(first, [twins[0], *(os.urandom(32) for _ in range(250)), twins[1]])
    last = keys.completed()
    assert document("keys", "show", keys.url, last.hex[:12])["id"] == last.hex
    both = invoke("keys", "show", keys.url, "abababab")
    assert both.exit_code == 2
    assert "more than one record" in both.stderr


@pytest.mark.parametrize(
    ("id", "code", "sentence"),
    [
        ("0123456", 2, "too short"),
        ("", 2, "is not a record id"),
        ("xyz" * 4, 2, "is not a record id"),
        ("0" * 65, 2, "is not a record id"),
        ("٣" * 12, 2, "is not a record id"),
        ("0" * 12, 1, "no live record"),
        ("0" * 64, 1, "no live record"),
        ("ab" * 6, 2, "more than one record"),
    ],
)
@pytest.mark.parametrize("verb", [("show",), ("forget", "--reason", "x"), ("resolve", "--completed", "--reason", "x")])
def test_an_id_that_names_no_record_or_two_is_refused(id, code, sentence, verb, keys):
    """1 where there is none, 2 where it can't be told which; nothing is changed."""
    keys.copy(keys.parked(), [bytes.fromhex("ab" * 31 + end) for end in ("00", "01")])
    before = seen_by(url=keys.url)
    result = invoke("keys", verb[0], keys.url, id, *verb[1:])
    assert result.exit_code == code, result.stderr
    assert sentence in result.stderr
    assert seen_by(url=keys.url) == before


# ---------------------------------------------------------------------- show


def test_the_stored_answer_is_shown_and_its_body_on_request_only(keys):
    """Status, header fields in order with repeats, size; the body with --body."""
    fields = [(b"content-type", b"application/json"), (b"x-a", b"1"), (b"x-a", b"2")]
    kept = keys.completed(answer=Response(201, fields, b'{"id": 81}'))
    shown = document("keys", "show", keys.url, kept.hex)["answer"]
    assert shown == {
        "status": 201,
        "headers": [["content-type", "application/json"], ["x-a", "1"], ["x-a", "2"]],
        "body_size": 10,
    }
    assert document("keys", "show", keys.url, kept.hex, "--body")["answer"]["body"] == '{"id": 81}'
    table = invoke("keys", "show", keys.url, kept.hex).stdout
    assert "201, body 10 bytes" in table
    assert '{"id": 81}' not in table
    assert invoke("keys", "show", keys.url, kept.hex, "--body").stdout.endswith('\n{"id": 81}\n')


def test_a_body_that_is_no_text_is_given_in_base64(keys):
    """JSON can carry it; a body that was not kept is null."""
    binary = keys.completed(answer=Response(200, [], b"\xff\x00"))
    unkept = keys.completed(answer=Response(200, [], None))
    assert document("keys", "show", keys.url, binary.hex, "--body")["answer"]["body_base64"] == "/wA="
    assert document("keys", "show", keys.url, unkept.hex, "--body")["answer"]["body_size"] is None


def test_nothing_that_a_client_sent_reaches_the_terminal_as_a_command(keys):
    """Escape sequences in a path, a header field or a body are shown as text, and [markup] is no markup."""
    kept = keys.completed(
        path="/a\x1b[2J",
        operation="[red]x[/red]\x07",
        answer=Response(200, [(b"x", b"\x1b]0;owned\x07")], b"one\x1b[31m\ntwo\r\n"),
    )
    for result in (invoke("keys", "list", keys.url), invoke("keys", "show", keys.url, kept.hex, "--body")):
        assert set(re.findall(r"[\x00-\x09\x0b-\x1f\x7f\x9b]", result.stdout)) == set()
        assert "[red]x[/red]\\x07" in result.stdout
        assert r"/a\x1b[2J" in result.stdout


def test_the_id_is_computed_from_key_principal_and_operation(keys):
    """R14: as the server does it, bare and quoted key alike (R5), and the path in its canonical spelling (R16)."""
    kept = keys.claim("key-1", operation="POST /a%2Fb")
    named = keys.claim("key-1", operation="transfers.create")
    who = ("--principal", "acct_1")
    for parts in (
        ("--key", "key-1", "--operation", "POST /%61%2fb", *who),
        ("--key", '"key-1"', "--operation", "POST /a%2Fb", *who),
        ("--key", "key-1", "--operation", "POST", "--path", "/a%2Fb?query=cut", *who),
    ):
        assert document("keys", "show", keys.url, *parts)["id"] == kept.hex
    parts = ("--key", "key-1", "--operation", "transfers.create", *who)
    assert document("keys", "show", keys.url, *parts)["id"] == named.hex


def test_secret_namespace_and_authorization_are_the_applications(keys):
    """R54, R12: the digests are keyed as there; secrets come from the environment."""
    principal = by_authorization([(b"authorization", b"Bearer t0k3n")])
    assert principal is not None
    kept = keys.claim("k1", principal=principal, site=Site("shop", b"s3cr3t"))
    parts = ("--key", "k1", "--operation", "POST /transfers", "--namespace", "shop", "--secret-env", "SHOP_SECRET")
    env = {"SHOP_SECRET": "s3cr3t", "TOKEN": "Bearer t0k3n"}
    for who in (("--authorization", "Bearer t0k3n"), ("--authorization-env", "TOKEN")):
        assert document("keys", "show", keys.url, *parts, *who, env=env)["id"] == kept.hex
    wrong = invoke("keys", "show", keys.url, *parts, "--principal", "acct_1", env=env)
    assert wrong.exit_code == 1
    assert "--namespace" in wrong.stderr


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ((), "Give the ID"),
        (("--key", "k"), "--operation, --principal"),
        (("--key", "k", "--operation", "x"), "--principal"),
        (("a" * 12, "--key", "k"), "not by both"),
        (("--key", "s3nt ke,y", "--operation", "x", "--principal", "p"), "none that a server accepts (list)"),
        (("--key", "s3nt kéy", "--operation", "x", "--principal", "p"), "(not-ascii)"),
        (("--key", "k", "--operation", "x", "--principal", ""), "--principal is empty"),
        (("--key", "k", "--operation", "x", "--principal", "p", "--authorization", "t"), "give one"),
        (("--key", "k", "--operation", "x", "--authorization", " "), "--authorization is empty"),
        (("--key", "k", "--operation", "x", "--authorization", "Digest a=1"), "changes with every request"),
        (("--key", "k", "--operation", "x", "--authorization-env", "NOT_SET_HERE"), "NOT_SET_HERE is not set"),
        (("--key", "k", "--operation", "x", "--principal", "p", "--secret-env", "NOT_SET_HERE"), "is not set"),
        (("--key", "k", "--operation", "POST /a", "--principal", "p", "--path", "/a"), "leave out --path"),
        (("--key", "k", "--operation", "name", "--principal", "p", "--path", "/a"), "goes with a method"),
    ],
)
def test_parts_that_make_no_id_are_refused_without_repeating_the_key(parts, sentence, keys):
    """Exit code 2 and the option to change; a key is never echoed (R6)."""
    result = invoke("keys", "show", keys.url, *parts)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert "s3nt" not in result.stderr


def test_keys_and_principals_never_appear_in_any_output(keys):
    """R54: only ids and digests do."""
    kept = keys.parked("the-very-key-4711", principal="acct_secret_9")
    parts = ("--key", "the-very-key-4711", "--principal", "acct_secret_9", "--operation", "POST /transfers")
    said = "".join(
        result.stdout + result.stderr
        for result in (
            invoke("keys", "list", keys.url),
            invoke("keys", "list", keys.url, "--json"),
            invoke("keys", "show", keys.url, *parts),
            invoke("keys", "show", keys.url, *parts, "--json"),
            invoke("keys", "resolve", keys.url, kept.hex, "--completed", "--reason", "test", "--json"),
            invoke("keys", "forget", keys.url, kept.hex, "--reason", "test"),
        )
    )
    assert kept.hex in said
    assert "the-very-key-4711" not in said
    assert "acct_secret_9" not in said


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        ("claim", "409 in-progress"),
        ("lapsed", "500 outcome-unknown"),
        ("parked", "500 outcome-unknown"),
        ("completed", "201 from the record"),
    ],
)
def test_what_a_retry_would_get_is_said(make, answer, keys):
    """The same that the server answers by R23, R25 and R28."""
    kept = getattr(keys, make)()
    assert document("keys", "show", keys.url, kept.hex)["retry_gets"].startswith(answer)


def test_a_lapsed_record_under_at_least_once_is_said_to_run_again(keys):
    """R27."""
    kept = keys.lapsed(guarantee=Guarantee.AT_LEAST_ONCE)
    assert "takes it over and runs" in document("keys", "show", keys.url, kept.hex)["retry_gets"]


# ---------------------------------------------------------------------- small things


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("15m", 900.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("7d", 604800.0),
        ("2w", 1209600.0),
    ],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    """Seconds, or amounts with units."""
    assert _store.duration()(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25s"), (59.9, "59s"), (61, "1m1s"), (3600, "1h"), (90_061, "1d1h"), (86_400 + 59, "1d"), (-5, "-5s")],
)
def test_durations_are_written_in_two_units(seconds, text):
    """As short as a column needs."""
    assert span(seconds) == text


def test_text_for_the_terminal_has_no_control_characters():
    """Wide and accented letters stay."""
    assert printable("é漢 a\x1b\x85\u202e") == "é漢 a\\x1b\\x85\\u202e"
