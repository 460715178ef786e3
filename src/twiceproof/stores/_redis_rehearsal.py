"""Every command that our scripts call, tried on keys that are gone afterwards: may this user, and can this server?"""

from __future__ import annotations

from typing import Final

REHEARSAL: Final = b"""
local failed
local function try(...)
    local reply = redis.pcall(...)
    if not failed and type(reply) == 'table' and reply.err then
        failed = reply
    end
end
-- The first write is one that a full server refuses. Two ways to delete: one of them may be forbidden.
try('ZADD', KEYS[2], 1, 'member')
try('HSET', KEYS[1], 'field', '1')
try('TIME')
try('HMGET', KEYS[1], 'field')
try('HGETALL', KEYS[1])
try('HSTRLEN', KEYS[1], 'field')
try('PTTL', KEYS[1])
try('ZRANGEBYSCORE', KEYS[2], '-inf', '+inf', 'LIMIT', 0, 1)
try('PEXPIREAT', KEYS[1], 1)
try('PEXPIREAT', KEYS[2], 1)
try('UNLINK', KEYS[1], KEYS[2])
try('HDEL', KEYS[1], 'field')
try('ZREM', KEYS[2], 'member')
return failed or 1
"""


def rehearsal(prefix: bytes) -> list[bytes]:
    """Return the command to send; ``prefix`` is what our keys begin with. It is answered with the first failure."""
    return [b"EVAL", REHEARSAL, b"2", prefix + b"rehearsal:record", prefix + b"rehearsal:index"]
