"""The promises of every command: exit codes, streams, help, JSON, and what it costs to ask."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import twiceproof
from tests.support.cli_keys import KeysFile, command, fill, invoke, on_a_terminal, run
from twiceproof.cli._lazy import Lazy, LazyGroup
from twiceproof.cli._root import twiceproof as root

SOURCE = Path(twiceproof.__file__).parent.parent
COMMANDS = [
    (),
    ("keys",),
    ("keys", "list"),
    ("keys", "show"),
    ("keys", "resolve"),
    ("keys", "forget"),
    ("keys", "purge"),
    ("explain",),
]


@pytest.fixture
def keys(tmp_path):
    file = KeysFile(tmp_path / "keys.db")
    yield file
    file.close()


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(path):
    """`--help` and `-h` say the same, on stdout, with exit code 0 and at least one example of this very command."""
    long, short = invoke(*path, "--help"), invoke(*path, "-h")
    assert (long.exit_code, long.stderr, long.stdout) == (0, "", short.stdout)
    _, _, examples = long.stdout.partition("Examples:\n")
    assert " ".join(("twiceproof", *path)) in examples


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_options_of_every_example_exist(path):
    """What the help shows can be typed: no example fails as a misuse of the command line."""
    lines = re.findall(r"twiceproof (?:[^\n]*\\\n)?[^\n]*", invoke(*path, "--help").stdout.partition("Examples:")[2])
    assert lines
    for line in lines:
        words = shlex.split(line.replace("\\\n", " ").partition("  exits")[0].strip())[1:]
        result = invoke(*words)
        assert "No such option" not in result.stderr
        assert "Usage:" not in result.stderr, result.stderr


@pytest.mark.parametrize("path", [path for path in COMMANDS if len(path) == 2 or path == ("explain",)], ids=" ".join)
def test_every_command_that_does_something_takes_json(path):
    """So a program never has to read a table."""
    assert "--json" in invoke(*path, "--help").stdout


def test_the_version_is_told():
    """On stdout, exit code 0."""
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"twiceproof {twiceproof.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("kyes",), "did you mean 'keys'"),
        (("keys", "lst"), "did you mean 'list'"),
        (("frobnicate",), "there are: "),
        (("keys", "list"), "Missing argument 'URL'"),
        (("keys", "list", "--stat"), "--stat"),
    ],
)
def test_a_command_line_that_says_nothing_sensible_is_told_what_to_change(arguments, hint):
    """Exit code 2, on stderr; the nearest name is offered."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert hint in result.stderr


def test_help_imports_no_framework_no_database_and_no_table_maker():
    """Asking what there is takes no longer than Python's start and click's."""
    script = (
        "import sys; from twiceproof.cli._root import run; code = run(['--help']); "
        "heavy = {'fastapi', 'starlette', 'uvicorn', 'pydantic', 'rich'}; "
        "heavy |= {'twiceproof.stores.sqlite', 'twiceproof.cli.keys', 'twiceproof.cli.demo'}; "
        "print(sorted(heavy & set(sys.modules)), code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stderr == "[] 0\n"
    assert "demo" in done.stdout


def test_without_its_extras_the_command_says_what_to_install():
    """One sentence, exit code 2, no traceback: a Python without third parties can still start it."""
    script = "from twiceproof.cli import main; main()"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, env=env, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "The command line needs click and rich, which this Python lacks; install it with: "
        "pip install 'twiceproof[cli]'\n"
    )


def test_a_command_whose_own_extra_is_missing_says_which(tmp_path, monkeypatch):
    """Only that command fails; a command whose module is not there does not exist."""
    (tmp_path / "needs_it.py").write_text("import a_package_that_is_not_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    lazy = {
        "play": Lazy("needs_it", "play", "Play.", "demo"),
        "gone": Lazy("a_module_that_is_not_here", "gone", "Go."),
    }
    group = LazyGroup("some", lazy=lazy)
    listed = CliRunner().invoke(group, ["--help"])
    assert "play" in listed.stdout
    assert "gone" not in listed.stdout
    result = CliRunner().invoke(group, ["play"])
    assert result.exit_code == 2
    assert "'some play' needs a_package_that_is_not_here" in result.stderr
    assert "pip install 'twiceproof[demo]'" in result.stderr
    assert CliRunner().invoke(group, ["gone"]).exit_code == 2


def test_a_fault_of_ours_is_not_taken_for_a_missing_extra(tmp_path, monkeypatch):
    """An import that fails inside this package is a bug and shows as one."""
    (tmp_path / "ours_is_broken.py").write_text("import twiceproof.no_such_room\n")
    monkeypatch.syspath_prepend(tmp_path)
    group = LazyGroup("some", lazy={"play": Lazy("ours_is_broken", "play", "Play.")})
    with pytest.raises(ModuleNotFoundError, match=r"twiceproof\.no_such_room"):
        CliRunner().invoke(group, ["play"], catch_exceptions=False)


def test_the_demo_is_found_by_its_name():
    """Lazily: it is imported when it is called."""
    context = click.Context(root)
    assert "demo" in root.list_commands(context)
    demo = root.get_command(context, "demo")
    assert demo is not None
    assert demo.name == "demo"


# ---------------------------------------------------------------------- streams


def test_no_terminal_means_no_colour_and_no_cut_column(keys):
    """A path of 300 characters is whole on its line, however narrow COLUMNS says the screen is."""
    keys.parked(path="/" + "p" * 300)
    env = {**os.environ, "COLUMNS": "40", "TERM": "xterm-256color"}
    result = run("keys", "list", keys.url, env=env)
    assert "\x1b" not in result.stdout
    assert len(result.stdout.splitlines()) == 2
    assert "/" + "p" * 300 + "  at_most_once" in result.stdout


def test_a_terminal_gets_colours_and_still_no_cut_column(keys):
    """What is unsettled stands out; the path is whole, on a screen that is too narrow for it."""
    keys.parked(path="/" + "p" * 300)
    shown, code = on_a_terminal(command("keys", "list", keys.url), columns=40)
    assert code == 0
    assert "\x1b[1;33m" in shown
    assert "/" + "p" * 300 + "  at_most_once" in shown


def test_a_terminal_sees_how_far_a_purge_is(keys):
    """The progress is wiped away before the result."""
    shown, code = on_a_terminal(command("keys", "purge", keys.url))
    assert code == 0
    assert "\r0 purged\r\x1b[K" in shown
    assert "\nPurged 0 expired records.\n" in shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_terminal_will_do(encoding, keys):
    """A character that it lacks is written as an escape; nothing fails."""
    keys.parked(operation="überweisung.漢")
    result = run("keys", "list", keys.url, env={**os.environ, "PYTHONIOENCODING": encoding}, encoding=encoding)
    assert (result.returncode, result.stderr) == (0, "")
    assert "berweisung" in result.stdout


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_a_reader_that_leaves_is_no_error(options, keys):
    """`| head -1`: nothing on stderr, and the exit code that shells give a broken pipe."""
    fill(keys, 3_000)
    arguments = command("keys", "list", keys.url, "--all", *options)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_a_reader_that_never_was_is_no_error(keys):
    """A short output that nobody takes, at the very end of the process; and a stdout that is closed from the start."""
    keys.parked()
    reading, writing = os.pipe()
    os.close(reading)
    for arguments in (("keys", "list", keys.url), ("--help",)):
        done = subprocess.run(command(*arguments), stdout=writing, stderr=subprocess.PIPE, timeout=60)
        assert (done.returncode, done.stderr) == (141, b"")
    os.close(writing)
    line = shlex.join(command("keys", "list", keys.url)) + " >&-"
    done = subprocess.run(["/bin/sh", "-c", line], stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_ends_a_command_quietly(keys):
    """Exit code 130, no traceback, no "Aborted!"."""
    fill(keys, 5_000)
    arguments = command("keys", "list", keys.url, "--all", "--json")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs, and can't end: nobody takes the megabytes it has to say
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"")


def test_a_refusal_is_on_stderr_with_exit_code_1_and_a_failure_with_2(keys):
    """In a process as it is in a script."""
    kept = keys.claim()
    refused = run("keys", "forget", keys.url, kept.hex, "--reason", "test")
    failed = run("keys", "forget", keys.url + ".not", kept.hex, "--reason", "test")
    assert (refused.returncode, refused.stdout, failed.returncode, failed.stdout) == (1, "", 2, "")
    assert refused.stderr.startswith("Error: ")
    assert failed.stderr.count("\n") == 1


def test_the_installed_command_is_the_same():
    """The script that packaging makes, and `python -m twiceproof.cli`."""
    installed = Path(sys.executable).with_name("twiceproof")
    done = subprocess.run([installed, "keys", "list", "memory://"], capture_output=True, text=True, timeout=60)
    same = run("keys", "list", "memory://")
    assert (done.returncode, done.stdout, done.stderr) == (2, same.stdout, same.stderr)


def test_the_json_of_a_list_is_one_document_also_when_empty(keys):
    """Always the same two members."""
    assert json.loads(run("keys", "list", keys.url, "--json").stdout) == {"records": [], "cursor": None}
    empty = run("keys", "list", keys.url)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "No such records.\n")
