"""What a Redis server's errors mean: one sentence each, and nothing of a record in it."""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions

from twiceproof.errors import StoreFull, StoreOutcomeUnknown, StoreUnavailable

_BY_CLASS: Final = (  # redis-py cuts the code off where it has a class for it
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.AskError, "MOVED"),  # and MovedError, which is one
    (exceptions.TryAgainError, "MOVED"),
    (exceptions.ClusterCrossSlotError, "MOVED"),
)
_SENTENCES: Final = {
    "OOM": "its memory is full (maxmemory) and it may not evict anything",
    "READONLY": "it is a replica that can't be written",
    "LOADING": "it is still loading its data",
    "BUSY": "somebody's script keeps it busy",
    "MISCONF": "it can't save to its disk and takes no writes meanwhile",
    "NOREPLICAS": "too few replicas are connected (min-replicas-to-write)",
    "NOAUTH": "it refuses the user or the password",
    "NOPERM": "its access list doesn't allow the user the keys or commands that the store needs",
    "MASTERDOWN": "it has lost its primary",
    "CLUSTERDOWN": "its cluster is down",
    "MOVED": "the keys belong to another node of its cluster; name that one",
    "WRONGTYPE": "another program uses keys under our prefix; choose another prefix",
    "CLIENTS": "it has too many clients (maxclients)",
    "DATABASE": "it has no database of this number",
}
_BY_TEXT: Final = {
    "max number of clients reached": "CLIENTS",
    "DB index is out of range": "DATABASE",
    "SELECT is not allowed in cluster mode": "DATABASE",
}
_WORD: Final = re.compile(r"[A-Z]{2,}")
_IN_SCRIPT: Final = re.compile(r"-([A-Z]{2,}) ")  # servers before 7.0 wrap what a script's command said
_ALIASES: Final = {"ACL": "NOPERM", "ASK": "MOVED", "TRYAGAIN": "MOVED", "CROSSSLOT": "MOVED", "WRONGPASS": "NOAUTH"}
_MIDWAY: Final = re.compile(r"user_script|Error running script")
_AT_FIRST_WRITE: Final = frozenset({"OOM", "READONLY", "MISCONF", "NOREPLICAS"})
NO_SCRIPT: Final = "NOSCRIPT"
_REFUSALS: Final = frozenset({"NOAUTH", "NOPERM", "DATABASE", "MOVED", "READONLY"})


class Refused(StoreUnavailable):
    """The server takes none of our calls, until somebody changes its configuration or ours."""


def code_of(error: exceptions.RedisError) -> str | None:
    """Return the code of a server's error reply, None where there was no reply at all."""
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    text = str(error)
    if text in _BY_TEXT:
        return _BY_TEXT[text]
    if not isinstance(error, exceptions.ResponseError):
        return None
    word = _WORD.match(text)
    if word is not None and word[0] != "ERR":
        return _ALIASES.get(word[0], word[0])
    inner = _IN_SCRIPT.search(text)
    return "ERR" if inner is None else inner[1]


def failed(where: str, error: exceptions.RedisError) -> StoreUnavailable:
    """Return what to raise where a verb was answered with an error: nothing was done, if no script ended midway.

    A script is not rolled back: what it wrote before, say, a command that the access list forbids, stays.
    """
    code = code_of(error) or "ERR"
    refusal = told(where, code)
    if code in _AT_FIRST_WRITE or not _MIDWAY.search(str(error)):
        return refusal
    return StoreOutcomeUnknown(f"{refusal} It may have been done in part.")


def told(where: str, code: str) -> StoreUnavailable:
    """Return the sentence for this code, as the error of a server that has done nothing."""
    said = _SENTENCES.get(code, f"it answered with the error {code}")
    kind = StoreFull if code == "OOM" else Refused if code in _REFUSALS else StoreUnavailable
    return kind(f"{where}: {said}.")
