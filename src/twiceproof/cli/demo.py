"""``twiceproof demo``: a payments API on a real store, played through every scene, its effects counted."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import uuid
from collections.abc import Callable, Generator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from twiceproof.cli._output import Cannot, print_json
from twiceproof.cli._store import shown_url

if TYPE_CHECKING:
    from rich.console import Console

    from twiceproof.cli._demo.run import Report
    from twiceproof.cli._demo.scene import Result, Scene
    from twiceproof.cli._demo.stage import Stage

WIDE: Final = 160
"""Columns of the table where no terminal says how many there are."""
LAST_WORDS: Final = 10
EPILOG: Final = """
\b
Examples:
  twiceproof demo
  twiceproof demo --server flask
  twiceproof demo --store postgresql
  twiceproof demo --keep
  twiceproof demo --json > demo.json
"""


@click.command(epilog=EPILOG)
@click.option("--port", type=click.IntRange(0, 65535), help="Where it listens: 8642 if free, unless given; 0: any.")
@click.option("--keep", is_flag=True, help="Leave the service up afterwards, to try things by hand, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; progress goes to stderr.")
@click.option(
    "--server",
    type=click.Choice(["fastapi", "flask"]),
    default="fastapi",
    show_default=True,
    help="What the API is made with: FastAPI under uvicorn, or Flask under gunicorn.",
)
@click.option(
    "--store",
    default="sqlite",
    show_default=True,
    metavar="KIND|URL",
    help="Where its keys are: sqlite, postgresql or redis, of the demo's own; or the URL of a store of yours.",
)
@click.option("--app", hidden=True, help="The service to play against, as that server imports it.")
@click.pass_context
def demo(
    ctx: click.Context, port: int | None, server: str, store: str, app: str | None, *, keep: bool, as_json: bool
) -> None:
    """Start a payments API with two worker processes, and play every scene against it over real sockets.

    Replies are lost, duplicates collide, workers are killed, the store goes away; what really happened is counted in
    the API's own books. It takes some 20 seconds, listens on loopback only, and leaves nothing behind.

    --store postgresql and --store redis start a PostgreSQL or a Valkey for it, which is killed where the store goes
    away, and ends with the demo. To a store of yours, by its URL, nothing is done but what an application does: its
    schema is made, records are kept there until they expire, and the scenes that take the store away are left out.

    Exits with 1 where a scene differs from what is promised, with 2 where it can't run.
    """
    from twiceproof.cli._demo.place import CannotRun
    from twiceproof.cli._demo.run import last_words, play, service
    from twiceproof.cli._demo.scenes import SCENES, playable

    _check_packages(server, store)
    with _terminated(), contextlib.ExitStack() as stack:
        try:
            stage = stack.enter_context(service(port, app, server, store))
        except CannotRun as error:
            raise Cannot(str(error)) from None
        scenes = playable(stage)
        with _progress(len(scenes)) as (before, after):
            report = play(scenes, stage, before, after)
        if len(scenes) < len(SCENES):
            click.echo(f"{len(SCENES) - len(scenes)} scenes were left out: they take the store away.", err=True)
        if as_json:
            print_json(report.document())
        else:
            _print(report, stage, keep=keep)
        if not report.ok:
            for line in last_words(stage.log, LAST_WORDS):
                click.echo(f"the service said: {line}", err=True)
        if keep:
            _keep(stage)
    ctx.exit(0 if report.ok else 1)


def _check_packages(server: str, store: str) -> None:
    """Refuse to start where a package is missing, in a sentence that says how it is installed."""
    from twiceproof.cli._demo.place import missing
    from twiceproof.cli._demo.run import SERVERS

    lacking, install = missing(store)
    called = f"twiceproof demo --store {store}"
    if not lacking:
        lacking = [name for name in (*SERVERS[server].needs, "rich") if find_spec(name) is None]
        called, install = "twiceproof demo", "pip install 'twiceproof[demo]'"
    if lacking:
        raise Cannot(f"'{called}' needs {' and '.join(lacking)}, which this Python lacks; install it with: {install}")


@contextlib.contextmanager
def _terminated() -> Generator[None]:
    """Let a SIGTERM unwind the block, so that it ends what it started."""

    def leave(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress(total: int) -> Generator[tuple[Callable[[Scene], None], Callable[[Result], None]]]:
    """Say on stderr which scene is on: a moving line on a terminal, a line for each elsewhere."""
    console = _console(stderr=True)
    number = 0
    with console.status("starting") if console.is_terminal else contextlib.nullcontext() as status:

        def before(scene: Scene) -> None:
            nonlocal number
            number += 1
            if status is not None:
                status.update(f"{number}/{total}  {scene.name}")

        def after(result: Result) -> None:
            if status is None:
                console.print(f"{number}/{total}  {result.name}: {'as promised' if result.ok else 'DIFFERS'}")

        yield before, after


def _print(report: Report, stage: Stage, *, keep: bool) -> None:
    from rich.table import Table

    console = _console()
    table = Table("scene", "expected", "seen", box=None, header_style="bold")
    table.add_column("effects", justify="right")
    for result in report.results:
        style = None if result.ok else "bold red"
        table.add_row(result.name, result.expected, result.seen, str(result.effects), style=style)
    console.print(table)
    for result in report.results:
        for sentence in result.detail:
            console.print(f" {result.name}: {sentence}", style=None if result.ok else "red", soft_wrap=True)
    good = sum(result.ok for result in report.results)
    console.print(
        f" {len(report.results)} scenes, {good} as promised; {report.intents} intents, {report.effects} effects",
        style="bold green" if report.ok else "bold red",
        soft_wrap=True,
    )
    if not keep:
        console.print(f" try it yourself: twiceproof demo --keep, then\n {_curl(stage)}", soft_wrap=True)


def _keep(stage: Stage) -> None:
    """Leave the service up until Ctrl-C."""
    lines = (
        f"The service is up at {stage.url}, with accounts for the tokens demo-alice and demo-bob.",
        "Try it yourself; the second time it is a replay, and there is still one effect:",
        f"  {_curl(stage)}",
        f"  curl {stage.url}/effects",
        "Its keys, and what an operator sees of them:",
        f"  twiceproof keys list '{shown_url(stage.store)}'",
        "Ctrl-C stops it and removes what the demo made.",
    )
    with contextlib.suppress(KeyboardInterrupt):  # also one that comes with the first of these lines
        for line in lines:
            click.echo(line, err=True)
        while True:
            time.sleep(0.2)  # not `signal.pause`: an interrupt just before that call would go unnoticed


def _curl(stage: Stage) -> str:
    return (
        f"curl -i -X POST {stage.url}/transfers -H 'Authorization: Bearer demo-alice' "
        f"-H 'Idempotency-Key: {uuid.uuid4()}' -H 'Content-Type: application/json' "
        """-d '{"intent": "by-hand", "to": "acct_7", "amount": 2500}'"""
    )


def _console(**options: Any) -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, **options)
    if not console.is_terminal:
        console.width = WIDE
    return console
