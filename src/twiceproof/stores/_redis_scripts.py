"""The Lua scripts of the Redis store: constants that can be read alone, one for each verb, shared by both colours.

A record is a hash with SQLite's columns; a missing field is None. Two sorted sets name the records by the end of their
keeping and by their creation. Moments are whole microseconds of the server's clock, which doubles hold exactly until
the year 2255; nothing is ever written by Lua's own ``tostring``, which would round them.

KEYS are the two sorted sets, then the records; ARGV begins with an offset to the server's clock, 0 but in tests.
Where a script adds anything, its first write is one that a full server refuses: it is done as a whole or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twiceproof.core._record import FORMAT

MICRO: Final = 1_000_000
GRACE: Final = 86_400
"""For how many seconds an expired record is still there, so that a claim and `purge` see how it came out (R42)."""

_DECISIVE: Final = (
    *("format", "state", "number", "nonce", "lease_until", "attempts", "expires_at", "fingerprint", "guarantee"),
    *("incarnation", "reconcile_nonce", "reconcile_until", "reconcile_asked_at"),
)
_FILTERED: Final = ("operation", "path", "created_at")


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the name under which a server keeps it."""

    text: bytes
    digest: bytes


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] + ARGV[1]  -- R34
"""


_STANDING: Final = f"""
local later = format and tonumber(format) > {FORMAT}
local live = format and (later or tonumber(expires_at) > now)  -- R17
local lapsed = state == 'in_flight' and lease_until and tonumber(lease_until) <= now
local reconciling = reconcile_until and tonumber(reconcile_until) > now  -- R28
"""


def _read(key: str, *more: str) -> str:
    """Read what decides, into locals: never the answer, which may be large."""
    names = (*_DECISIVE, *more)
    return f"local {', '.join(names)} = unpack(redis.call('HMGET', {key}, {_names(names)})){_STANDING}"


_READ: Final = _read("KEYS[3]")
_READ_WHOLE: Final = f"""
local columns, by_name = redis.call('HGETALL', KEYS[3]), {{}}
for at = 1, #columns, 2 do
    by_name[columns[at]] = columns[at + 1]
end
local {", ".join(_DECISIVE)} = {", ".join(f"by_name.{name}" for name in _DECISIVE)}{_STANDING}"""

_KEEP: Final = f"""
local function outlive(index, gone_at)  -- a key without an expiry would stay for ever
    if (now - ARGV[1]) / 1000 + redis.call('PTTL', index) < gone_at then
        redis.call('PEXPIREAT', index, gone_at + {GRACE * 1000})
    end
end
local function keep(key, id, expires_at)
    local gone_at = math.ceil((expires_at - ARGV[1]) / 1000) + {GRACE * 1000}
    redis.call('PEXPIREAT', key, gone_at)
    redis.call('ZADD', KEYS[1], expires_at, id)
    outlive(KEYS[1], gone_at)
    outlive(KEYS[2], gone_at)
end
"""

_DROP: Final = """
local function drop(key, id)  -- returns 1, or 0 where somebody did it before
    redis.call('UNLINK', key)
    redis.call('ZREM', KEYS[2], id)
    return redis.call('ZREM', KEYS[1], id)
end
"""

_SETTLED_BY: Final = """
local mine = ARGV[3]
local settled_by = state ~= 'completed' and (nonce == mine or (reconciling and reconcile_nonce == mine))  -- R42, R28
"""


def _script(*parts: str) -> Script:
    text = "".join(parts).strip().encode()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


CLAIM: Final = _script(
    _NOW,
    _KEEP,
    _READ_WHOLE,
    f"""
local id, mine, ends, keeping = ARGV[2], ARGV[3], now + ARGV[4], ARGV[5]
local new_fingerprint, new_guarantee, after = ARGV[6], ARGV[7], ARGV[13]
if live and state == 'in_flight' and nonce == mine and not later then  -- R48: its reply was lost
    local expires_at = ends + (expires_at - lease_until)
    redis.call('HSET', KEYS[3], 'lease_until', ends, 'expires_at', expires_at)
    redis.call('HDEL', KEYS[3], 'cause', 'reconcile_nonce', 'reconcile_until')
    keep(KEYS[3], id, expires_at)
    return {{1, tonumber(number), incarnation, tonumber(attempts), 0}}
end
if live then
    local may = not later and state ~= 'completed' and fingerprint == new_fingerprint
    if reconciling then
        may = may and reconcile_nonce == after  -- R28: nothing happened
    else
        may = may and lapsed and guarantee == 'at_least_once' and new_guarantee == 'at_least_once'  -- R27
    end
    if not may then
        return {{0, now, columns}}
    end
    number, attempts = math.max(number + 1, now), attempts + 1
    redis.call('HSET', KEYS[3], 'format', {FORMAT}, 'state', 'in_flight', 'number', number, 'nonce', mine,
        'lease_until', ends, 'attempts', attempts, 'granted_at', now, 'expires_at', ends + keeping,
        'guarantee', new_guarantee)
    redis.call('HDEL', KEYS[3], 'completed_at', 'next_attempt_at', 'cause',
        'reconcile_nonce', 'reconcile_until', 'reconcile_asked_at', 'answer')
    keep(KEYS[3], id, ends + keeping)
    return {{1, number, incarnation, attempts, 0}}
end
local forgot = format and state ~= 'completed'  -- R42
number = math.max((number or 0) + 1, now)
redis.call('HSET', KEYS[3], 'format', {FORMAT}, 'state', 'in_flight', 'number', number, 'nonce', mine,
    'lease_until', ends, 'attempts', 1, 'expires_at', ends + keeping, 'fingerprint', new_fingerprint,
    'guarantee', new_guarantee, 'incarnation', mine, 'operation', ARGV[8], 'path', ARGV[9], 'created_at', now,
    'namespace', ARGV[10], 'principal', ARGV[11], 'key', ARGV[12], 'granted_at', now)  -- R21
if format then
    redis.call('HDEL', KEYS[3], 'completed_at', 'next_attempt_at', 'cause',
        'reconcile_nonce', 'reconcile_until', 'reconcile_asked_at', 'answer')
end
redis.call('ZADD', KEYS[2], now, id)
keep(KEYS[3], id, ends + keeping)
return {{1, number, mine, 1, forgot and 1 or 0}}
""",
)
"""Returns 1, number, incarnation, attempts and whether it forgot; or 0, the moment and the record that is there."""

CLAIM_UNSETTLED: Final = _script(
    _NOW,
    _READ_WHOLE,
    """
local mine, lease, every, force = ARGV[3], ARGV[4], ARGV[5], ARGV[6] == '1'
if not live then
    return false
end
local may = not later and state ~= 'completed'
if may and not force and reconcile_nonce ~= mine then
    may = (state == 'parked' or lapsed) and not reconciling
        and (not reconcile_asked_at or reconcile_asked_at + every <= now)
end
if not may then
    return {0, now, columns}
end
redis.call('HSET', KEYS[3], 'reconcile_nonce', mine, 'reconcile_until', now + lease, 'reconcile_asked_at', now)
return {1, tonumber(number), incarnation, tonumber(attempts), nonce}
""",
)
"""Returns 1, number, incarnation, attempts and nonce of the token; or 0, the moment and the record; or nothing."""

RENEW: Final = _script(
    _NOW,
    _KEEP,
    f"""
local ends, fenced = now + ARGV[2], {{}}
for at = 3, #KEYS do
    local id, mine = ARGV[2 * at - 3], ARGV[2 * at - 2]
    {_read("KEYS[at]").strip()}
    if not live or nonce ~= mine then
        fenced[#fenced + 1] = at - 3  -- R30
    elseif state == 'in_flight' or state == 'parked' then  -- R42
        local expires_at = ends + (expires_at - lease_until)
        redis.call('HSET', KEYS[at], 'state', 'in_flight', 'lease_until', ends, 'expires_at', expires_at)
        redis.call('HDEL', KEYS[at], 'cause', 'reconcile_nonce', 'reconcile_until')
        keep(KEYS[at], id, expires_at)
    end
end
return fenced
""",
)
"""Returns the places of those claims that are fenced, from 0."""

COMPLETE: Final = _script(
    _NOW,
    _KEEP,
    _READ,
    _SETTLED_BY,
    """
if not live or not settled_by then
    return live and nonce == mine and 1 or 0  -- it did before, or R30
end
if nonce ~= mine then
    number = math.max(number + 1, now)  -- R28: the late holder is fenced
end
local expires_at = now + ARGV[5]  -- R33
redis.call('HSET', KEYS[3], 'state', 'completed', 'number', number, 'nonce', mine, 'answer', ARGV[4],
    'completed_at', now, 'expires_at', expires_at)
if state ~= 'in_flight' or reconcile_asked_at then
    redis.call('HDEL', KEYS[3], 'next_attempt_at', 'cause', 'reconcile_nonce', 'reconcile_until', 'reconcile_asked_at')
end
keep(KEYS[3], ARGV[2], expires_at)
return 1
""",
)

RELEASE: Final = _script(
    _NOW,
    _DROP,
    _READ,
    _SETTLED_BY,
    """
if not live or not settled_by then
    return 0  -- R30
end
drop(KEYS[3], ARGV[2])
return 1
""",
)

PARK: Final = _script(
    _NOW,
    _KEEP,
    _READ,
    """
local mine = ARGV[3]
if not live or state == 'completed' then
    return 0  -- R30
end
if nonce == mine then
    local expires_at = now + (expires_at - lease_until)
    redis.call('HSET', KEYS[3], 'state', 'parked', 'cause', ARGV[4], 'lease_until', now, 'expires_at', expires_at)
    keep(KEYS[3], ARGV[2], expires_at)
    return 1
end
if reconcile_nonce == mine then  -- R28: the hook doesn't know; its own claim alone ends
    redis.call('HDEL', KEYS[3], 'reconcile_nonce', 'reconcile_until')
    return 1
end
return 0
""",
)

FORGET: Final = _script(
    _NOW,
    _DROP,
    _READ,
    """
if not live or nonce ~= ARGV[3] then
    return 0
end
drop(KEYS[3], ARGV[2])
return 1
""",
)

GET: Final = _script(
    _NOW,
    _READ_WHOLE,
    """
return live and {now, columns}
""",
)
"""Returns the moment and the record; nothing if absent."""

SELECT: Final = _script(
    _NOW,
    f"""
local unsettled, in_state, of_operation, of_path, older_than = ARGV[2] == '1', ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local wanted, room, found, seen = tonumber(ARGV[7]), tonumber(ARGV[8]), {{}}, 0
for at = 3, #KEYS do
    {_read("KEYS[at]", *_FILTERED).strip()}
    local selected
    if unsettled then
        selected = live and (state == 'parked' or lapsed)
    else
        selected = live and (in_state == '' or in_state == state)
    end
    if selected
        and (of_operation == '' or of_operation == '=' .. (operation or ''))
        and (of_path == '' or of_path == '=' .. (path or ''))
        and (older_than == '' or tonumber(created_at or now) <= now - older_than)
    then
        found[#found + 1] = at - 3
        found[#found + 1] = redis.call('HGETALL', KEYS[at])
        room = room - redis.call('HSTRLEN', KEYS[at], 'answer')
    end
    seen = at - 2
    if #found == 2 * wanted or room <= 0 then
        break
    end
end
return {{now, seen, found}}
""",
)
"""Returns the moment, how many of the records it looked at, and those that the filter selects, each after its place."""

DUE: Final = _script(
    _NOW,
    """
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', ARGV[2], ARGV[3])
""",
)
"""Returns the ids of records whose keeping has ended, the longest ago first."""

SWEEP: Final = _script(
    _NOW,
    _DROP,
    f"""
local deleted, unsettled, passed = 0, 0, 0
for at = 3, #KEYS do
    local id = ARGV[at - 1]
    {_read("KEYS[at]").strip()}
    if later then
        passed = passed + 1
    elseif live then
        redis.call('ZADD', KEYS[1], expires_at, id)
    else
        deleted = deleted + drop(KEYS[at], id)  -- where the server let it go by itself, too: a step is bounded (R33)
        unsettled = unsettled + (format and state ~= 'completed' and 1 or 0)  -- R42
    end
end
return {{deleted, unsettled, passed}}
""",
)
"""Returns how many it deleted, how many of them were unsettled, and how many it may not delete."""
