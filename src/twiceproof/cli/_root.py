"""The command ``twiceproof`` itself, and what all have in common: exit codes, Ctrl-C, a reader that left."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Generator
from typing import Any, Final

import click

from twiceproof import __version__
from twiceproof.cli._lazy import Lazy, LazyGroup

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
READER_GONE: Final = 141  # 128 + SIGPIPE

EPILOG: Final = """
\b
Examples:
  twiceproof keys list sqlite:///keys.db --state unsettled
  twiceproof store check sqlite:///keys.db
  twiceproof explain app:app

Every command takes --json and --help, and exits with 0 when it is done, 1 when it found something or refused,
2 when it can't.
"""


class Root(LazyGroup):
    """Ends quietly on Ctrl-C and when nobody reads its output any more."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse; ``--help`` and ``--version`` already print here."""
        with _quietly():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it printed has left when this returns."""
        with _quietly():
            returned = super().invoke(ctx)
            sys.stdout.flush()
            return returned


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """Turn an interrupt, and a reader that left, into exit codes."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _silence_stdout()
        raise click.exceptions.Exit(READER_GONE) from None


@click.group(
    cls=Root,
    lazy={
        "demo": Lazy(
            "twiceproof.cli.demo", "demo", "Play a payments API through every scene and count its effects.", "demo"
        ),
        "keys": Lazy("twiceproof.cli.keys", "keys", "List, show, resolve, forget and purge what a store keeps."),
        "store": Lazy("twiceproof.cli.store", "store", "Prepare a store, try it, and clear it of what has expired."),
        "explain": Lazy("twiceproof.cli.explain", "explain", "Say what each operation of an application is promised."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EPILOG,
)
@click.version_option(__version__, "-V", "--version", prog_name="twiceproof", message="%(prog)s %(version)s")
def twiceproof() -> None:
    """Make HTTP operations safe to retry."""


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    _prepare_streams()
    try:
        code: object = twiceproof.main(arguments, prog_name="twiceproof", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _prepare_streams() -> None:
    """Let output never fail on a character that the terminal's encoding lacks, nor on a stream that is closed."""
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # for the rest of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _silence_stdout() -> None:
    """Send what is still buffered to nowhere, or the interpreter complains at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
