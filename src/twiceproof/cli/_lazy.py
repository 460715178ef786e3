"""A group of commands that are imported when they are called, so that ``--help`` is quick and extras stay optional."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from twiceproof.cli._output import Cannot


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command by name: the module and the attribute that hold it, a line of help, and the extra that it needs."""

    module: str
    attribute: str
    help: str
    extra: str = "cli"


class LazyGroup(click.Group):
    """Knows its commands by name and help; a command whose module is not there does not exist."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names in the order of the table."""
        return [name for name, command in self.lazy.items() if find_spec(command.module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; a missing third party is told in one sentence."""
        if cmd_name not in self.list_commands(ctx):
            return None
        lazy = self.lazy[cmd_name]
        try:
            command = getattr(import_module(lazy.module), lazy.attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "twiceproof":
                raise
            raise Cannot(
                f"'{ctx.command_path} {cmd_name}' needs {error.name}, which this Python lacks; "
                f"install it with: pip install 'twiceproof[{lazy.extra}]'"
            ) from None
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command where there is none of that name."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}."
            ctx.fail(f"No such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.lazy[name].help) for name in self.list_commands(ctx)])
