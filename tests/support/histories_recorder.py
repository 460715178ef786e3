"""Records histories: many processes at work on a few keys of one store.

`record` starts them; each is ``python -m tests.support.histories_recorder URL NAME KEYS COUNT SEED FILE``, and writes a
line when it calls a verb and another when that returns. A process that dies between the two leaves an operation whose
outcome is unknown. Moments are those of `time.monotonic_ns`, which all processes of one host share.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from tests.support.histories import LONG, Operation, Shape, identity, new_record, shape
from twiceproof.core._record import ClaimRef, Done, Fenced
from twiceproof.errors import StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores import Store, open_store

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = {
    "claim": 36, "complete": 16, "renew": 10, "get": 10, "release": 8, "forget": 8, "park": 7, "claim_unsettled": 14,
    "purge": 3,
}  # fmt: skip
"""How often each verb is called."""


# ---- one process -----------------------------------------------------------------------------------------------------


def call(store: Store, key: str, verb: str, arguments: Sequence[Any]) -> object:
    """Call one verb as a history names it."""
    id = identity(key)
    match verb, arguments:
        case "claim", (fingerprint, guarantee, lease, nonce, after):
            return store.claim(new_record(key, fingerprint, guarantee), lease, nonce.encode(), after and after.encode())
        case "claim_unsettled", (lease, nonce, every, force):
            return store.claim_unsettled(id, lease, nonce.encode(), every, force=force)
        case "renew", (nonce, lease):
            return Fenced() if store.renew([ClaimRef(id, nonce.encode())], lease) else Done()
        case "complete", (nonce, answer, retention):
            return store.complete(id, nonce.encode(), answer.encode(), retention)
        case "release", (nonce,):
            return store.release(id, nonce.encode())
        case "park", (nonce, cause):
            return store.park(id, nonce.encode(), cause)
        case "forget", (nonce,):
            return store.forget(id, nonce.encode())
        case "get", ():
            return store.get(id)
        case "purge", (limit,):
            return store.purge(limit)
        case _:
            raise ValueError(f"{verb}{arguments}")


class Caller:
    """Chooses what one process does: mostly what makes sense after the answers that it got, sometimes what doesn't."""

    def __init__(self, name: str, keys: Sequence[str], seed: int) -> None:
        self.name = name
        self.keys = keys
        self.random = random.Random(f"{seed}-{name}")
        self.count = 0
        self.mine: dict[str, list[str]] = {key: [] for key in keys}
        self.second: dict[str, str] = {}
        self.seen: dict[str, str] = {}
        self.granted: tuple[str, str] | None = None
        self.last: tuple[str, str, tuple[Shape, ...]] = ("*", "purge", (10,))

    def choose(self) -> tuple[str, str, tuple[Shape, ...]]:
        """Return a key, a verb and its arguments: sometimes the last ones, as after a lost reply."""
        self.count += 1
        if self.granted is not None and self.random.random() < 0.3:
            self.last = self._settling(*self.granted)
        elif self.random.random() < 0.15:
            key, verb, arguments = self.last
            if verb == "complete":
                self.last = key, verb, (arguments[0], f"{self.name}-{self.count}", arguments[2])
        else:
            self.last = self._new()
        self.granted = None
        return self.last

    def _settling(self, key: str, nonce: str) -> tuple[str, str, tuple[Shape, ...]]:
        """Return what comes after a grant."""
        answer = f"{self.name}-{self.count}"
        verbs = (
            ("complete", nonce, answer, LONG),
            ("complete", nonce, answer, 0.0),
            ("release", nonce),
            ("park", nonce, "x"),
        )
        verb, *arguments = self.random.choice(verbs)
        return key, str(verb), tuple(arguments)

    def _new(self) -> tuple[str, str, tuple[Shape, ...]]:
        chance, key = self.random.random, self.random.choice(self.keys)
        (verb,) = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        lease = 0.0 if chance() < 0.3 else LONG
        match verb:
            case "claim":
                guarantee = "at_least_once" if chance() < 0.7 else "at_most_once"
                after = self.second.get(key) if chance() < 0.5 else None
                return key, verb, ("g" if chance() < 0.25 else "f", guarantee, lease, self.fresh(key), after)
            case "claim_unsettled":
                hook = self.second.get(key) if chance() < 0.3 else None
                return (
                    key,
                    verb,
                    (lease, hook or f"{self.name}-{self.count}-hook", LONG if chance() < 0.3 else 0.0, chance() < 0.3),
                )
            case "renew":
                return key, verb, (self.nonce(key), lease)
            case "complete":
                return key, verb, (self.nonce(key), f"{self.name}-{self.count}", 0.0 if chance() < 0.5 else LONG)
            case "park":
                return key, verb, (self.nonce(key), "exception")
            case "release" | "forget":
                return key, verb, (self.nonce(key),)
            case "get":
                return key, verb, ()
            case _:
                return "*", verb, (10,)

    def fresh(self, key: str) -> str:
        """Return a new nonce, or the last one again."""
        if not self.mine[key] or self.random.random() < 0.65:
            self.mine[key].append(f"{self.name}-{self.count}")
        return self.mine[key][-1]

    def nonce(self, key: str) -> str:
        """Return the nonce of the record as it was last seen, or one of ours, maybe an old one."""
        ours = [*self.mine[key][-2:], *([self.second[key]] * 2 if key in self.second else [])]
        if key in self.seen and (not ours or self.random.random() < 0.6):
            return self.seen[key]
        return self.random.choice(ours) if ours else f"{self.name}-nobody"

    def learn(self, answer: Shape) -> None:
        """Remember whose record it is by now, after the answer to what was chosen last."""
        key, verb, arguments = self.last
        if answer[0] == "granted":
            self.seen[key] = answer[2]
            self.granted = key, answer[2]
            if verb == "claim_unsettled":
                self.second[key] = arguments[1]
                self.granted = key, arguments[1]
        elif answer[0] in {"held", "found", "record"}:
            self.seen[key] = answer[3]


def work(store: Store, caller: Caller, count: int, write: Callable[[dict[str, Shape]], None]) -> None:
    """Call ``count`` verbs and write down each of them."""
    for number in range(count):
        key, verb, arguments = caller.choose()
        write({"call": number, "key": key, "verb": verb, "arguments": arguments, "at": time.monotonic_ns()})
        try:
            answer = shape(call(store, key, verb, arguments))
        except StoreOutcomeUnknown:
            continue
        except StoreUnavailable:
            write({"none": number})
            continue
        write({"return": number, "answer": answer, "at": time.monotonic_ns()})
        caller.learn(answer)


def main(url: str, name: str, keys: str, count: str, seed: str, file: str) -> None:
    """Be one process of a history: say that the store is open, wait for the word, and begin."""
    store = open_store(url, timeout=20.0)
    store.open()
    with Path(file).open("w") as lines:
        print("ready", flush=True)
        sys.stdin.readline()
        work(store, Caller(name, keys.split(","), int(seed)), int(count), lambda line: put(lines, line))
    store.close()


def put(lines: TextIO, line: dict[str, Shape]) -> None:
    """Write a line that outlives us."""
    lines.write(json.dumps(line) + "\n")
    lines.flush()


# ---- all of them -----------------------------------------------------------------------------------------------------


def record(
    url: str, folder: Path, *, processes: int, keys: Sequence[str], count: int, seed: int = 0, meanwhile=lambda _: None
) -> list[Operation]:
    """Let ``processes`` call ``count`` verbs each, and return the history of all.

    ``meanwhile`` is called with the processes at work, and may disturb them or their store; a killed one is no failure.
    """
    names = [f"p{number}" for number in range(processes)]
    started = {name: _start(url, name, ",".join(keys), count, seed, folder / f"{name}.jsonl") for name in names}
    try:
        for process in started.values():
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in started.values():
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        meanwhile(list(started.values()))
        for process in started.values():
            process.communicate(timeout=90)
            assert process.returncode in {0, -9}
    finally:
        for process in started.values():
            process.kill()
            process.communicate()
    return [one for name in names for one in read(name, (folder / f"{name}.jsonl").read_text())]


def _start(url: str, name: str, keys: str, count: int, seed: int, file: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.support.histories_recorder",
        url,
        name,
        keys,
        str(count),
        str(seed),
        str(file),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)


def read(name: str, text: str) -> list[Operation]:
    """Return the operations that one process wrote down; a half line at the end is of its death."""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    returns = {line["return"]: line for line in lines if "return" in line}
    nothing = {line["none"] for line in lines if "none" in line}
    found = []
    for line in lines:
        if "call" in line and line["call"] not in nothing:
            end = returns.get(line["call"], {"answer": None, "at": None})
            answer = None if end["answer"] is None else tuple(end["answer"])
            arguments = tuple(line["arguments"])
            found.append(Operation(name, line["key"], line["verb"], arguments, answer, line["at"], end["at"]))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
