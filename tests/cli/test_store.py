"""``twiceproof store``: a store is made ready, tried and cleared by command, whatever it is (R33, R41, R53, R54)."""

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing

import click
import pytest

from tests.support.cli_keys import DAY, KeysFile, document, fill, invoke, on_a_terminal, run
from twiceproof.cli._root import twiceproof as root
from twiceproof.cli._store import shown_url
from twiceproof.stores import open_store
from twiceproof.stores._protocol import HasSchema

VERBS = ("init", "schema", "check", "purge")
COMMANDS = [("store",), *(("store", verb) for verb in VERBS)]

WITHOUT_REDIS = """
import sys
from twiceproof.cli import main

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "redis":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gone())
main()
"""


@pytest.fixture
def keys(tmp_path):
    file = KeysFile(tmp_path / "keys.db")
    yield file
    file.close()


# ---------------------------------------------------------------------- every command


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples_that_can_be_typed(path):
    """At least one of this very command, and none that is a misuse of the command line."""
    shown = invoke(*path, "--help")
    _, _, examples = shown.stdout.partition("Examples:\n")
    assert (shown.exit_code, " ".join(("twiceproof", *path)) in examples) == (0, True)
    for line in examples.strip().splitlines():
        _, group, verb, *words = shlex.split(line.partition(" | ")[0].partition(" > ")[0])
        found = root.get_command(click.Context(root), group)
        assert isinstance(found, click.Group)
        command = found.get_command(click.Context(found), verb)
        assert command is not None
        assert command.make_context(verb, words).params["url"] in line


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("url", ["keys.db", "sqlite:///", "postgresq://app@db/app", "sqlite:///keys.db?schema=x"])
def test_a_url_that_names_no_store_is_told_in_a_sentence(verb, url):
    """Exit code 2, nothing on stdout."""
    result = invoke("store", verb, url)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_package_is_told_with_what_to_install(verb):
    """No traceback, exit code 2, before anything is connected."""
    command = [sys.executable, "-c", WITHOUT_REDIS, "store", verb, "redis://127.0.0.1:1/0"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "pip install 'twiceproof[redis]'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:s3cret@db:5432/app?schema=x", "postgresql://app:…@db:5432/app?schema=x"),
        ("postgresql://app@db/app", "postgresql://app@db/app"),
        ("postgresql://db/app?user=app&password=s3cret&sslpassword=s3cret", "postgresql://db/app?user=app&password=…&sslpassword=…"),
        ("redis://:s3@cret@cache/0", "redis://:…@cache/0"),
        ("redis://cache/0?PASSWORD=s3@cret", "redis://cache/0?PASSWORD=…"),
        ("postgresql://app:s3?cret@db/app", "postgresql://app:…@db/app"),
        ("sqlite:////srv/me@home/keys.db", "sqlite:////srv/me@home/keys.db"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_its_passwords(url, shown):
    """Wherever they stand, also where they should have been percent-encoded."""
    assert shown_url(url) == shown


# ---------------------------------------------------------------------- init and schema


def test_init_makes_the_schema_once_and_again_changes_nothing(tmp_path):
    """R54: a SQLite file too, before the first request would."""
    url = f"sqlite:///{tmp_path}/keys.db"
    first = invoke("store", "init", url)
    kept = KeysFile(tmp_path / "keys.db")
    parked = kept.parked()
    kept.close()
    again = invoke("store", "init", url)
    assert (
        (first.exit_code, first.stdout) == (again.exit_code, again.stdout) == (0, f"Ready: the schema is in {url}.\n")
    )
    assert [each["id"] for each in document("keys", "list", url)["records"]] == [parked.hex]


def test_the_printed_schema_is_the_one_that_init_makes(tmp_path):
    """It can be piped into the database's own shell, or kept as a migration; nothing is opened for it."""
    made, printed = tmp_path / "made.db", tmp_path / "printed.db"
    invoke("store", "init", f"sqlite:///{made}")
    sql = invoke("store", "schema", f"sqlite:///{printed}").stdout
    assert not printed.exists()
    assert document("store", "schema", f"sqlite:///{printed}") == {"store": "sqlite", "sql": sql}
    with closing(sqlite3.connect(printed)) as connection:
        connection.executescript(sql)
    seen = []
    for path in (made, printed):
        with closing(sqlite3.connect(path)) as connection:
            schema = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
            seen.append(
                (connection.execute("PRAGMA user_version").fetchone(), [(n, s and s.split()) for n, s in schema])
            )
    assert seen[0] == seen[1]
    assert invoke("keys", "list", f"sqlite:///{printed}").exit_code == 0


@pytest.mark.parametrize("url", ["memory://", "redis://127.0.0.1:1/0"])
def test_a_store_without_a_schema_needs_nothing_and_says_so(url):
    """Exit code 0, nothing is connected; stdout stays empty where SQL would be."""
    made, shown = invoke("store", "init", url), invoke("store", "schema", url)
    assert (made.exit_code, "nothing to make" in made.stdout) == (0, True)
    assert (shown.exit_code, shown.stdout, "no schema" in shown.stderr) == (0, "", True)
    assert document("store", "init", url)["needs_schema"] is False
    assert document("store", "schema", url)["sql"] is None


def test_a_schema_of_a_later_release_is_refused_by_init_and_check(keys):
    """R53: with a sentence that says to upgrade; init can't, and check has found something."""
    with closing(sqlite3.connect(keys.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    made, tried = invoke("store", "init", keys.url), invoke("store", "check", keys.url)
    assert (made.exit_code, tried.exit_code) == (2, 1)
    assert "upgrade twiceproof" in made.stderr
    assert "upgrade twiceproof" in tried.stderr


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_stores_with_a_schema_say_so_by_their_methods(name, tmp_path):
    """`HasSchema` is what the commands go by."""
    url = {"sqlite": f"sqlite:///{tmp_path}/keys.db", "postgresql": "postgresql://127.0.0.1:1/app"}[name]
    assert isinstance(open_store(url), HasSchema)
    assert not isinstance(open_store("memory://"), HasSchema)


# ---------------------------------------------------------------------- check


def test_check_says_what_the_store_promises_and_measures_a_look(keys):
    """Capabilities, whether it works, the round trip; warnings are listed, and change no exit code."""
    shown = invoke("store", "check", f"{keys.url}?synchronous=NORMAL")
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in shown.stdout.splitlines())
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert (lines["works"], lines["durable"][:3], lines["shared"]) == ("yes", "yes", "no: one host")
    assert re.fullmatch(r"[0-9.e-]+ ms", lines["round trip"])
    assert "power cut" in lines["note"]
    plain = document("store", "check", keys.url)
    took = plain.pop("round_trip_seconds")
    assert 0 < took < 1
    assert plain == {
        "store": "sqlite",
        "url": keys.url,
        "durable": True,
        "shared": False,
        "transactional": False,
        "notifies": False,
        "works": True,
        "problem": None,
        "notes": [],
    }


@pytest.mark.parametrize("content", [None, b""])
def test_check_makes_nothing(content, tmp_path):
    """A file that is yet to be made, or has no schema yet, is a note; looking makes neither."""
    path = tmp_path / "keys.db"
    if content is not None:
        path.write_bytes(content)
    found = document("store", "check", f"sqlite:///{path}")
    assert (found["works"], found["round_trip_seconds"]) == (True, None)
    assert "twiceproof store init" in found["notes"][0]
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("keys.db", b"")] * (content is not None)


def test_a_store_that_can_not_work_is_a_finding(tmp_path):
    """Exit code 1; the sentence is on stderr, and in the document."""
    url = f"sqlite:///{tmp_path}/none/keys.db"
    shown, plain = invoke("store", "check", url), invoke("store", "check", url, "--json")
    found = json.loads(plain.stdout)
    assert (shown.exit_code, plain.exit_code) == (1, 1)
    assert re.search(r"^works +NO$", shown.stdout, re.MULTILINE)
    assert "does not exist" in shown.stderr
    assert (found["works"], "does not exist" in found["problem"]) == (False, True)


@pytest.mark.parametrize("url", ["postgresql://app:s3cret@127.0.0.1:1/app", "redis://app:s3cret@127.0.0.1:1/0"])
def test_a_server_that_is_not_there_is_a_finding_and_no_password_is_printed(url):
    """Refused connections end at once, exit code 1 (2 of the commands that need it); no output has the password."""
    ended = {verb: invoke("store", verb, url, "--timeout", "2s") for verb in VERBS}
    told = [invoke("store", "check", url, "--timeout", "2s", "--json"), *ended.values()]
    assert (ended["check"].exit_code, ended["purge"].exit_code) == (1, 2)
    assert [result for result in told if "s3cret" in result.stdout + result.stderr] == []
    assert "127.0.0.1" in ended["check"].stdout


# ---------------------------------------------------------------------- purge


def test_purge_deletes_what_expired_a_thousand_at_a_time(keys):
    """R33, R42: until nothing is left, told with how many of them nobody ever learned the outcome of."""
    fill(keys, 2_300)
    keys.parked()
    keys.change("expires_at = 1.0")
    alive = keys.completed("alive", retention=DAY)
    shown = invoke("store", "purge", keys.url)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[:2] == [
        "Purged 2,301 expired records.",
        "Of 1 of them nobody ever learned the outcome; they were kept until unsettled_retention.",
    ]
    assert re.search(r" operator purge records=2301 unsettled=1 reason=null$", shown.stderr.strip())
    assert [each["id"] for each in document("keys", "list", keys.url)["records"]] == [alive.hex]
    assert document("store", "purge", keys.url)["records"] == 0


def test_purge_stops_at_its_limit(keys):
    """The rest is left for the next time."""
    fill(keys, 1_500)
    keys.change("expires_at = 1.0")
    assert document("store", "purge", keys.url, "--limit", "1200")["records"] == 1_200
    assert document("store", "purge", keys.url)["records"] == 300


def test_purge_shows_how_far_it_is_where_somebody_looks(keys):
    """A number that moves on a terminal, and is gone at the end; none in a pipe."""
    fill(keys, 1_500)
    keys.change("expires_at = 1.0")
    shown, code = on_a_terminal([sys.executable, "-m", "twiceproof.cli", "store", "purge", keys.url])
    assert (code, "1,000 purged" in shown, "1,500 purged" in shown) == (0, True, True)
    piped = run("store", "purge", keys.url, env={**os.environ, "NO_COLOR": "1"})
    assert (piped.returncode, "purged\r" in piped.stderr) == (0, False)
