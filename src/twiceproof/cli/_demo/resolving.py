"""What an operator does about a record whose outcome nobody knows: look, ask the books, and decide it by command."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from twiceproof.cli._demo.stage import ACCOUNTS, Order, Stage
from twiceproof.cli._demo.wire import Lost

NAMESPACE: Final = "payments"
"""What the service gives its keys."""
COMMAND: Final = (sys.executable, "-m", "twiceproof.cli", "keys")


def resolve(stage: Stage, order: Order, answer: bytes) -> None:
    """Say with ``twiceproof keys resolve`` that the order was carried out, and what its answer is."""
    named = ["--key", order.key, "--principal", ACCOUNTS[order.token], "--operation", f"POST {order.target}"]
    named += ["--namespace", NAMESPACE]
    id = _run("show", stage.store, *named)["id"]
    file = stage.folder / "answer.json"
    file.write_bytes(answer)
    says = ["--completed", "--status", "201", "--body-file", str(file), "--reason", "the books have the transfer"]
    _run("resolve", stage.store, id, *says)


def _run(verb: str, *arguments: str) -> Any:
    """Run one of the commands and return its document."""
    command = [*COMMAND, verb, "--json", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    if ended.returncode:
        raise Lost(f"twiceproof keys {verb} ended with {ended.returncode}: {ended.stderr.strip()}")
    return json.loads(ended.stdout)
