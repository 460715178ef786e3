"""``twiceproof keys show``."""

from __future__ import annotations

import base64
import os
import re
from typing import TYPE_CHECKING, Any, Final

import click

from twiceproof.cli._output import Cannot, Refused, iso, make_console, print_json, print_pairs, printable, span
from twiceproof.cli._records import condition, data, stored_answer, what_a_retry_gets
from twiceproof.cli._store import opened, parse_id, store_options
from twiceproof.core._field import BadKey, parse_field
from twiceproof.core._path import canonical_path
from twiceproof.core._scope import Site, by_authorization, make_scope
from twiceproof.errors import ConfigurationError

if TYPE_CHECKING:
    from twiceproof.core._messages import Response
    from twiceproof.core._record import Record

EPILOG: Final = """
\b
Examples:
  twiceproof keys show sqlite:///keys.db 3f9a0c41d2e8 --body
  twiceproof keys show sqlite:///keys.db --key 8e03978e-40d5 --principal acct_1 --operation "POST /transfers"
  twiceproof keys show sqlite:///keys.db --key k1 --authorization "Bearer t0k3n" --operation POST --path /transfers
"""


@click.command(epilog=EPILOG)
@store_options
@click.argument("id", required=False)
@click.option("--key", help="The key as the client sent it, bare or quoted; with --operation, --principal.")
@click.option("--principal", help='The account that sent it ("anonymous" where the application has one account).')
@click.option("--authorization", help="Instead of --principal, with by_authorization: the value of the field.")
@click.option("--authorization-env", metavar="VAR", help="The same, from an environment variable.")
@click.option("--operation", help='"POST /transfers", the name that the policy gives, or a method with --path.')
@click.option("--path", help="With a method as --operation: the path as the client sent it.")
@click.option("--namespace", default="default", show_default=True, help="The namespace= of the application.")
@click.option("--secret-env", metavar="VAR", help="The environment variable with the secret= of the application.")
@click.option("--body", is_flag=True, help="Show the body of the stored answer too.")
def show(url: str, timeout: float, id: str | None, *, body: bool, as_json: bool, **parts: str | None) -> None:
    """Show one record: by its id, or by key, principal and operation.

    The id is computed from the latter as the server does it; nothing of them is printed.
    """
    given = {name.replace("_", "-"): value for name, value in parts.items() if value is not None}
    wanted = None if id is not None else record_id(given)
    if id is not None and set(given) - {"namespace"}:
        raise click.UsageError("Name the record by its id, or by --key, --principal and --operation; not by both.")
    with opened(url, timeout) as store:
        if wanted is None:
            record = parse_id(store, id or "")
        else:
            found = store.get(wanted)
            if found is None:
                raise Refused(
                    f"There is no live record for them ({wanted.hex()}): it expired or was released, never was, or "
                    "--namespace, --secret-env, --principal or --operation differ from the application's."
                )
            record = found
    if as_json:
        print_json(_document(record, body=body))
    else:
        _print(record, body=body)


def record_id(given: dict[str, str]) -> bytes:
    """Return the id that key, principal and operation make (R14), each checked."""
    missing = [f"--{name}" for name in ("key", "operation") if name not in given]
    principals = [name for name in ("principal", "authorization", "authorization-env") if name in given]
    if not principals:
        missing.append("--principal (or --authorization)")
    if missing:
        raise click.UsageError(f"Give the ID of a record, or also {', '.join(missing)}.")
    if len(principals) > 1:
        raise click.UsageError(f"--{principals[0]} and --{principals[1]} both say who it was; give one.")
    key = parse_field([given["key"].encode("utf-8", "surrogateescape")])
    if isinstance(key, BadKey):  # R6: the value is not repeated
        raise Cannot(f"--key is none that a server accepts ({key.reason}); quote it as the client did.")
    site = Site(given["namespace"], _secret(given.get("secret-env")))
    operation = _operation(given["operation"], given.get("path"))
    return make_scope(site, _principal(given), operation, "", key).id


def _principal(given: dict[str, str]) -> str:
    if "principal" in given:
        if not given["principal"]:
            raise Cannot("--principal is empty; name the account.")
        return given["principal"]
    value = given.get("authorization")
    if value is None:
        value = _environment("--authorization-env", given["authorization-env"])
    try:
        principal = by_authorization([(b"authorization", value.encode("utf-8", "surrogateescape"))])
    except ConfigurationError as error:
        raise Cannot(str(error)) from None
    if principal is None:
        raise Cannot("--authorization is empty; give the whole value of the field, such as 'Bearer t0k3n'.")
    return principal


def _secret(variable: str | None) -> bytes | None:
    return None if variable is None else os.fsencode(_environment("--secret-env", variable))


def _environment(option: str, variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise Cannot(f"{option}: the environment variable {variable} is not set.")
    return value


def _operation(operation: str, path: str | None) -> str:
    """Return the operation as the server names it (R16)."""
    method, space, rest = operation.partition(" ")
    if space and rest.startswith("/"):
        if path is not None:
            raise click.UsageError("--operation already has a path; leave out --path, or give the method alone.")
    elif path is None:
        return operation  # a name
    elif re.fullmatch(r"[A-Z]+", operation) and path.startswith("/"):
        rest = path
    else:
        raise click.UsageError("--path goes with a method: --operation POST --path /transfers.")
    return f"{method} {canonical_path(rest.encode('utf-8', 'surrogateescape'))}"


def _document(record: Record, *, body: bool) -> dict[str, Any]:
    answer = stored_answer(record)
    document = {**data(record), "retry_gets": what_a_retry_gets(record), "answer": None}
    if answer is not None:
        document["answer"] = {
            "status": answer.status,
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in answer.headers],
            "body_size": None if answer.body is None else len(answer.body),
            **(_body(answer) if body else {}),
        }
    return document


def _body(answer: Response) -> dict[str, str | None]:
    """Return the body as text where it is UTF-8, else in base64."""
    if answer.body is None:
        return {"body": None}
    try:
        return {"body": answer.body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(answer.body).decode("ascii")}


def _print(record: Record, *, body: bool) -> None:
    console = make_console()
    print_pairs(console, _pairs(record))
    answer = stored_answer(record)
    if answer is None:
        return
    console.print()
    size = "not kept" if answer.body is None else f"{len(answer.body):,} bytes"
    print_pairs(console, [("stored answer", f"{answer.status}, body {size}")])
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
    print_pairs(console, [(printable(name), value) for name, value in fields], indent="  ")
    if body and answer.body:
        text = answer.body.decode("utf-8", "backslashreplace")
        click.echo("\n" + "\n".join(printable(line) for line in text.split("\n")))


def _pairs(record: Record) -> list[tuple[str, str]]:
    def at(moment: float) -> str:
        away = record.now - moment
        return f"{iso(moment)}  ({span(away)} ago)" if away >= 0 else f"{iso(moment)}  (in {span(-away)})"

    pairs = [
        ("id", record.id.hex()),
        ("state", str(condition(record)) + (", being reconciled" if record.reconciling else "")),
        ("a retry gets", what_a_retry_gets(record)),
        ("operation", record.operation),
        ("path", record.path),
        ("namespace", record.namespace),
        ("guarantee", str(record.guarantee)),
        ("attempts", f"{record.attempts}  (token number {record.token.number})"),
        ("created", at(record.created_at)),
        ("granted", at(record.granted_at)),
    ]
    if record.completed_at is None:
        pairs.append(("lease until", at(record.lease_until)))
    else:
        pairs.append(("completed", at(record.completed_at)))
    if record.next_attempt_at is not None:
        pairs.append(("next attempt", at(record.next_attempt_at)))
    if record.reconcile_asked_at is not None:
        pairs.append(("hook last asked", at(record.reconcile_asked_at)))
    pairs += [
        ("expires", at(record.expires_at)),
        ("fingerprint", record.fingerprint.decode("ascii", "backslashreplace")),
        ("principal digest", record.principal.hex()),
        ("key digest", record.key.hex()),
    ]
    return pairs
