"""``twiceproof explain``: what each operation of an application is promised, and what can happen twice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from twiceproof.cli import _explain_text as text
from twiceproof.cli._find import Findings, Operation, find
from twiceproof.cli._load import collected_warnings, load_app
from twiceproof.cli._output import Cannot, make_console, print_json, printable
from twiceproof.core._policy import seconds
from twiceproof.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

EPILOG: Final = """
\b
Examples:
  twiceproof explain app:app
  twiceproof explain shop.main:make_app --factory --json
  twiceproof explain app:app --strict        exits with 1 where a POST or PATCH has no protection
"""


@click.command(epilog=EPILOG)
@click.argument("application", metavar="MODULE:ATTRIBUTE")
@click.option("--factory", is_flag=True, help="The attribute is called to make the application.")
@click.option("--strict", is_flag=True, help="Exit with 1 where a POST or PATCH route has no protection.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(application: str, *, factory: bool, strict: bool, as_json: bool) -> None:
    """Say what each covered operation of an application is promised, and what can still happen twice.

    Imports the application, with the current folder on the path, and does not start it. Exits with 1 where the set-up
    contradicts itself.
    """
    with collected_warnings() as warnings:
        app = load_app(application, factory=factory)
        try:
            findings = find(app)
        except ConfigurationError as error:
            raise Cannot(f"{application} would not start: {error}") from None
    if not findings.any:
        raise Cannot(
            f"Nothing in {application} is protected: no IdempotencyMiddleware around it or in its middleware, and no "
            "operation marked by twiceproof.server.fastapi or twiceproof.server.flask."
        )
    if as_json:
        print_json(document(application, findings, warnings))
    else:
        _print(findings, warnings)
    if findings.problems or (strict and findings.unprotected):
        raise click.exceptions.Exit(1)


def document(application: str, findings: Findings, warnings: list[str]) -> dict[str, Any]:
    """Return everything as plain data, for JSON."""
    return {
        "application": application,
        "operations": [_operation(operation) for operation in findings.operations],
        "unprotected": [
            {"method": each.method, "path": each.path, "endpoint": each.endpoint} for each in findings.unprotected
        ],
        "problems": findings.problems,
        "warnings": warnings,
    }


def _operation(operation: Operation) -> dict[str, Any]:
    policy, setting, store = operation.policy, operation.setting, operation.store
    return {
        "method": operation.method,
        "path": operation.path,
        "endpoint": operation.endpoint,
        "door": setting.door,
        "required": policy.required,
        "guarantee": str(policy.guarantee),
        "scope": {
            "namespace": setting.namespace,
            "principal": setting.principal,
            "operation": policy.operation or f"{operation.method} {operation.path}",
        },
        "retention_seconds": seconds(policy.retention),
        "unsettled_retention_seconds": seconds(policy.unsettled_retention),
        "lease_seconds": seconds(policy.lease),
        "max_runtime_seconds": seconds(policy.max_runtime),
        "wait_seconds": seconds(policy.wait),
        "store": {"name": store.name, "durable": store.durable, "shared": store.shared, "notes": list(store.notes)},
        "policy": policy.to_dict(),
        "cannot_happen": _sentences(text.cannot_happen(policy, setting)),
        "can_happen_twice": _sentences(text.can_happen_twice(policy, setting)),
        "to_mind": _sentences(text.to_mind(policy, setting)),
    }


def _sentences(sentences: Iterable[text.Sentence]) -> list[dict[str, Any]]:
    return [{"text": sentence.text, "rules": list(sentence.rules)} for sentence in sentences]


def _print(findings: Findings, warnings: list[str]) -> None:
    console = make_console()
    for alike in _alike(findings.operations):
        _print_alike(console, alike)
    _print_list(
        console,
        "Not protected, though a retry may repeat what they do:",
        [
            f"{each.method} {each.path}" + (f"  {each.endpoint}" if each.endpoint else "")
            for each in findings.unprotected
        ],
    )
    _print_list(console, "To be put right:", findings.problems)
    _print_list(console, "Warnings:", warnings)


def _alike(operations: list[Operation]) -> list[list[Operation]]:
    """Return the operations in groups that are promised the same."""
    groups: list[list[Operation]] = []
    for operation in operations:
        for group in groups:
            first = group[0]
            if (first.policy, first.setting, first.store) == (operation.policy, operation.setting, operation.store):
                group.append(operation)
                break
        else:
            groups.append([operation])
    return groups


def _print_alike(console: Console, alike: list[Operation]) -> None:
    policy, setting, store = alike[0].policy, alike[0].setting, alike[0].store
    for operation in alike:
        console.print(_styled(f"{operation.method} {operation.path}", "bold"))
    wait = f"waits up to {text.words(policy.wait)}, then 409" if policy.wait else "is told 409 at once"
    hook = policy.to_dict()["reconcile"]
    facts = {
        "guarantee": str(policy.guarantee),
        "key": f"required, {policy.missing_status} without one" if policy.required else "optional",
        "scope": f"namespace {setting.namespace}, account {setting.principal}, "
        + (f"operation {policy.operation}" if policy.operation else "method and path"),
        "kept": f"answers {text.words(policy.retention)}, unknown outcomes {text.words(policy.unsettled_retention)}",
        "lease": f"{text.words(policy.lease)}, renewed for up to {text.words(policy.max_runtime)}",
        "duplicate": f"of a running request {wait}",
        "unknown": f"outcomes are settled by {hook}" if hook else "outcomes are settled by 'twiceproof keys resolve'",
        "store": f"{store.name}: {'durable' if store.durable else 'forgets'}, "
        + ("shared between hosts" if store.shared else "one host"),
    }
    for name, value in facts.items():
        _print_wrapped(console, f"  {name:<11}", value)
    for note in store.notes:
        _print_wrapped(console, " " * 13, note)
    for head, sentences in (
        ("cannot happen", text.cannot_happen(policy, setting)),
        ("can happen twice", text.can_happen_twice(policy, setting)),
        ("to mind", text.to_mind(policy, setting)),
    ):
        if sentences:
            console.print(_styled(f"  {head}", "bold"))
        for sentence in sentences:
            _print_wrapped(console, "    - ", f"{sentence.text} ({', '.join(sentence.rules)})")
    console.print()


def _print_list(console: Console, head: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(_styled(head, "bold yellow"))
    for line in lines:
        _print_wrapped(console, "  ", line)
    console.print()


def _print_wrapped(console: Console, indent: str, line: str) -> None:
    """Print a sentence, broken between words where there is a terminal to fit."""
    line = printable(line)
    if console.is_terminal:
        width = max(console.width, len(indent) + 20)
        line = textwrap.fill(
            line,
            width,
            initial_indent=indent,
            subsequent_indent=" " * len(indent),
            break_long_words=False,
            break_on_hyphens=False,
        )
    else:
        line = indent + line
    console.print(_styled(line, ""))


def _styled(line: str, style: str) -> Any:
    from rich.text import Text

    return Text(line, style=style)
