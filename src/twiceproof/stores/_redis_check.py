"""Whether a Redis server can keep records, and for how long: what `Store.check` says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redis.exceptions import RedisError

from twiceproof.errors import ConfigurationError, StoreError, StoreOutcomeUnknown, StoreUnavailable
from twiceproof.stores._redis_address import Address
from twiceproof.stores._redis_errors import Refused, code_of, told
from twiceproof.stores._redis_lanes import Commands, RedisLane
from twiceproof.stores._redis_rehearsal import rehearsal
from twiceproof.stores._redis_verbs import Keys, Verbs

_OLDEST: Final = (6, 2)
_SETTINGS: Final = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
_ACCEPT: Final = "accept_volatile=True accepts that."


@dataclass(frozen=True, slots=True)
class Findings:
    """``durable``: a record that was acknowledged outlives a restart of the server. ``notes`` are for operators."""

    durable: bool
    notes: Sequence[str]


def check_server(address: Address) -> Findings:
    """Ask the server and leave nothing open; raise `ConfigurationError` where it can't work at all."""
    try:
        lane = RedisLane(address)
        try:
            info, settings, refusal = _asked(address, lane)
        finally:
            lane.close()
    except Refused as error:
        raise ConfigurationError(str(error)) from None
    except StoreOutcomeUnknown:
        return _unseen(f"{address.where}: no answer within {address.timeout:g} s.")
    except StoreUnavailable as error:
        return _unseen(str(error))
    findings = _judged(address.where, info, settings)
    match refusal:
        case None:
            return findings
        case Refused():
            raise ConfigurationError(str(refusal))
        case _:
            return replace(findings, notes=[*findings.notes, f"{refusal} Requests are answered 503 while that is so."])


def _asked(address: Address, lane: RedisLane) -> tuple[Mapping[str, str], Mapping[str, str], StoreUnavailable | None]:
    """Return what INFO and CONFIG say, without what the server does not tell us, and why a rehearsal failed."""
    look = Verbs(address.prefix).get(b"")
    commands: Commands = [
        *(look.whole(), look.command(), rehearsal(Keys(address.prefix).tag), [b"INFO"]),
        *([b"CONFIG", b"GET", name.encode()] for name in _SETTINGS),
    ]
    looked, looked_again, rehearsed, info, *settings = lane.ask(commands)
    if isinstance(looked, RedisError):
        raise told(address.where, code_of(looked) or "ERR")
    refusals = [
        told(address.where, code_of(reply) or "ERR")
        for reply in (looked_again, rehearsed)
        if isinstance(reply, RedisError)
    ]
    known = dict(pair for pair in map(_pair, settings) if pair is not None)
    return _info(info), known, refusals[0] if refusals else None


def _unseen(why: str) -> Findings:
    return Findings(durable=False, notes=[f"{why} So it can't be seen whether it keeps its records; {_ACCEPT}"])


def _judged(where: str, info: Mapping[str, str], settings: Mapping[str, str]) -> Findings:
    version = info.get("redis_version", "")
    if version and _numbers(version) < _OLDEST:
        raise ConfigurationError(f"{where}: it is version {version}; the store needs 6.2 or later.")
    if info.get("role") == "slave":
        raise ConfigurationError(f"{where}: it is a replica, which can't be written; name the primary.")
    # INFO tells some of it where CONFIG is not allowed
    log = settings.get("appendonly") or {"1": "yes", "0": "no"}.get(info.get("aof_enabled", ""))
    sync = settings.get("appendfsync")
    memory = settings.get("maxmemory") or info.get("maxmemory")
    policy = settings.get("maxmemory-policy") or info.get("maxmemory_policy")
    notes = list(_losses(log, sync, memory, policy))
    hidden = [name for name, value in zip(_SETTINGS, (log, sync, memory, policy), strict=True) if value is None]
    if hidden and not notes:
        notes.append(f"it doesn't show its settings ({', '.join(hidden)}), so they can't be relied on")
    durable = not notes
    notes = [f"{where} may forget records: {note}; {_ACCEPT}" for note in notes]
    if durable and sync == "everysec":
        notes.append(f"{where}: appendfsync everysec: a crash of its host may lose the last second.")
    if info.get("connected_slaves", "0") != "0":
        notes.append(f"{where}: it has replicas; a failover may lose the last writes, which they had not seen yet.")
    return Findings(durable=durable, notes=notes)


def _losses(log: str | None, sync: str | None, memory: str | None, policy: str | None) -> list[str]:
    losses: list[str] = []
    if log == "no":
        losses.append("it writes no log (appendonly no), so a restart loses what its last snapshot doesn't have")
    elif sync == "no":
        losses.append("it never waits for its disk (appendfsync no), so a crash of its host loses the last half minute")
    if policy not in {None, "noeviction"} and memory != "0":
        losses.append(f"it evicts keys when its memory is full (maxmemory-policy {policy})")
    return losses


def _info(reply: object) -> Mapping[str, str]:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    return dict(re.findall(r"^(\w+):(.*?)\r?$", text, re.MULTILINE))


def _pair(reply: Any) -> tuple[str, str] | None:
    if isinstance(reply, RedisError | StoreError) or len(reply) != 2:  # not allowed, or broken off; no such setting
        return None
    name, value = reply
    return name.decode(), value.decode()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
