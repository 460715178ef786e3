"""The entry of the command line itself, before any command is known."""

import pytest

import twiceproof.cli
from twiceproof.cli import _root


def left_with(capsys):
    """The exit code of `twiceproof`, and what it wrote."""
    with pytest.raises(SystemExit) as end:
        twiceproof.cli.main()
    return end.value.code, *capsys.readouterr()


def test_missing_packages_are_named_with_what_to_install(monkeypatch, capsys):
    """One sentence on stderr, exit code 2."""
    monkeypatch.setattr(twiceproof.cli, "NEEDS", ("click", "no_such_package", "nor_this_one"))
    said = (
        "The command line needs no_such_package and nor_this_one, which this Python lacks; "
        "install it with: pip install 'twiceproof[cli]'\n"
    )
    assert left_with(capsys) == (2, "", said)


def test_ctrl_c_before_there_is_a_command_ends_quietly(monkeypatch, capsys):
    """While it is still being imported: the code of an interrupt, and no traceback."""

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(_root, "run", interrupted)
    assert left_with(capsys) == (130, "", "")


def test_the_code_of_a_command_is_that_of_the_process(monkeypatch, capsys):
    """Programs go by it."""
    monkeypatch.setattr(_root, "run", lambda: 1)
    assert left_with(capsys) == (1, "", "")
