"""The verbs of the Redis store, as values: the command to send and what its reply means, in either colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

import twiceproof.stores._redis_scripts as lua
from twiceproof.core._record import (
    Absent,
    ClaimAnswer,
    ClaimRef,
    Done,
    Fenced,
    Granted,
    Guarantee,
    NewRecord,
    Record,
    State,
    Token,
    UnsettledAnswer,
    WriteAnswer,
)
from twiceproof.errors import UnknownFormat
from twiceproof.stores._answers import held_or_found
from twiceproof.stores._protocol import Filter

T = TypeVar("T")
Command: TypeAlias = Sequence[bytes]

_TEXT: Final = ("utf-8", "surrogatepass")
_PAGE_BYTES: Final = 1 << 20  # of answers in one reply to a scan


@dataclass(slots=True)
class Verb(Generic[T]):
    """One call. ``arguments`` are those of its script, the number of keys first; or a plain command's, with its name.

    ``told`` turns the reply into the answer.
    """

    id: bytes
    script: lua.Script | None
    arguments: Command
    told: Callable[[Any], T]

    @property
    def group(self) -> str:
        """Any of them may share a pipeline: each is atomic by itself."""
        return "all"

    def command(self) -> Command:
        """Return what to send first."""
        return self.arguments if self.script is None else (b"EVALSHA", self.script.digest, *self.arguments)

    def whole(self) -> Command:
        """Return what to send to a server that doesn't know the script yet."""
        return self.arguments if self.script is None else (b"EVAL", self.script.text, *self.arguments)


class Keys:
    """The names of a store's keys. They share a hash tag, so that a script may use them together on any server."""

    def __init__(self, prefix: str) -> None:
        self.tag: Final = f"{{{prefix}}}:".encode(*_TEXT)
        self.expiry: Final = self.tag + b"expiry"
        self.creation: Final = self.tag + b"creation"
        self._record: Final = self.tag + b"record:"

    def record(self, name: bytes) -> bytes:
        """Return the key of the record whose id has this hexadecimal name."""
        return self._record + name


class Verbs:
    """Makes them. ``offset`` is added to the server's clock, in tests only."""

    def __init__(self, prefix: str, offset: Callable[[], float] | None = None) -> None:
        self._keys = Keys(prefix)
        self._offset = offset

    def claim(self, new: NewRecord, lease: float, nonce: bytes, after: bytes | None) -> Verb[ClaimAnswer]:
        """See `Store.claim`."""

        def told(reply: Any) -> ClaimAnswer:
            if reply[0] == 0:
                return held_or_found(_record(new.id, reply[1], reply[2]))
            _, number, incarnation, attempts, forgot = reply
            return Granted(Token(number, nonce), incarnation, attempts, attempts > 1, forgot == 1)

        return self._of_one(
            lua.CLAIM,
            new.id,
            told,
            nonce,
            _micro(lease),
            _micro(new.keep),
            new.fingerprint,
            new.guarantee.encode(),
            _text(new.operation),
            _text(new.path),
            _text(new.namespace),
            new.principal,
            new.key,
            *(() if after is None else (after,)),
        )

    def claim_unsettled(
        self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool
    ) -> Verb[UnsettledAnswer]:
        """See `Store.claim_unsettled`."""

        def told(reply: Any) -> UnsettledAnswer:
            if reply is None:
                return Absent()
            if reply[0] == 0:
                return held_or_found(_record(id, reply[1], reply[2]))
            _, number, incarnation, attempts, token = reply
            return Granted(Token(number, token), incarnation, attempts, attempts > 1)

        return self._of_one(lua.CLAIM_UNSETTLED, id, told, nonce, _micro(lease), _micro(every), b"1" if force else b"0")

    def renew(self, claims: Sequence[ClaimRef], lease: float) -> Verb[Sequence[ClaimRef]]:
        """See `Store.renew`."""

        def told(reply: Sequence[int]) -> Sequence[ClaimRef]:
            return [claims[place] for place in reply]

        names = [_name(ref.id) for ref in claims]
        pairs = (value for name, ref in zip(names, claims, strict=True) for value in (name, ref.nonce))
        return self._of_many(lua.RENEW, names, told, _micro(lease), *pairs)

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> Verb[WriteAnswer]:
        """See `Store.complete`."""
        return self._of_one(lua.COMPLETE, id, _written, nonce, answer, _micro(retention))

    def release(self, id: bytes, nonce: bytes) -> Verb[WriteAnswer]:
        """See `Store.release`."""
        return self._of_one(lua.RELEASE, id, _written, nonce)

    def park(self, id: bytes, nonce: bytes, cause: str) -> Verb[WriteAnswer]:
        """See `Store.park`."""
        return self._of_one(lua.PARK, id, _written, nonce, _text(cause))

    def forget(self, id: bytes, nonce: bytes) -> Verb[WriteAnswer]:
        """See `Store.forget`."""
        return self._of_one(lua.FORGET, id, _written, nonce)

    def get(self, id: bytes) -> Verb[Record | None]:
        """See `Store.get`."""

        def told(reply: Any) -> Record | None:
            return None if reply is None else _record(id, reply[0], reply[1])

        return self._of_one(lua.GET, id, told)

    def listed(self, first: int, skip: int, count: int) -> Verb[list[tuple[int, bytes]]]:
        """Return when the next ``count`` records were created, and their ids: from ``first`` on, without ``skip``."""

        def told(reply: Any) -> list[tuple[int, bytes]]:
            return [(int(float(moment)), bytes.fromhex(name.decode())) for name, moment in _pairs(reply)]

        scope = (
            b"ZRANGEBYSCORE",
            self._keys.creation,
            b"%d" % first,
            b"+inf",
            b"WITHSCORES",
            b"LIMIT",
            b"%d" % skip,
            b"%d" % count,
        )
        return Verb(b"", None, scope, told)

    def selected(self, filter: Filter, ids: Sequence[bytes], wanted: int) -> Verb[tuple[int, list[tuple[int, Record]]]]:
        """Return how many of these were looked at, and those that the filter selects, each with its place."""

        def told(reply: Any) -> tuple[int, list[tuple[int, Record]]]:
            now, seen, found = reply
            return seen, [(place, _record(ids[int(place)], now, columns)) for place, columns in _pairs(found)]

        return self._of_many(
            lua.SELECT,
            [_name(id) for id in ids],
            told,
            b"1" if filter.unsettled else b"0",
            b"" if filter.state is None else filter.state.encode(),
            b"" if filter.operation is None else b"=" + _text(filter.operation),
            b"" if filter.path is None else b"=" + _text(filter.path),
            b"" if filter.older_than is None else _micro(filter.older_than),
            b"%d" % wanted,
            b"%d" % _PAGE_BYTES,
        )

    def due(self, skip: int, count: int) -> Verb[list[bytes]]:
        """Return the names of records that `sweep` may delete."""
        return self._of_many(lua.DUE, [], list, b"%d" % skip, b"%d" % count)

    def sweep(self, names: Sequence[bytes]) -> Verb[tuple[int, int, int]]:
        """Delete those that expired; return how many, how many of them unsettled, and how many are not ours to."""
        return self._of_many(lua.SWEEP, names, tuple, *names)

    def _of_one(self, script: lua.Script, id: bytes, told: Callable[[Any], T], *arguments: bytes) -> Verb[T]:
        name, keys = _name(id), self._keys
        offset = b"0" if self._offset is None else _micro(self._offset())
        return Verb(id, script, (b"3", keys.expiry, keys.creation, keys.record(name), offset, name, *arguments), told)

    def _of_many(
        self, script: lua.Script, names: Sequence[bytes], told: Callable[[Any], T], *arguments: bytes
    ) -> Verb[T]:
        keys = (self._keys.expiry, self._keys.creation, *map(self._keys.record, names))
        offset = b"0" if self._offset is None else _micro(self._offset())
        return Verb(b"", script, (b"%d" % len(keys), *keys, offset, *arguments), told)


def _written(reply: Any) -> WriteAnswer:
    return Done() if reply == 1 else Fenced()  # R30


def _name(id: bytes) -> bytes:
    return id.hex().encode()


def _text(text: str) -> bytes:
    return text.encode(*_TEXT)


def _micro(seconds: float) -> bytes:
    return b"%d" % round(seconds * lua.MICRO)


def _pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _record(id: bytes, now: int, columns: Sequence[Any]) -> Record:
    field = dict(_pairs(columns))
    try:
        return Record(
            id,
            field[b"namespace"].decode(*_TEXT),
            field[b"principal"],
            field[b"operation"].decode(*_TEXT),
            field[b"path"].decode(*_TEXT),
            field[b"key"],
            field[b"fingerprint"],
            Guarantee(field[b"guarantee"].decode()),
            field[b"incarnation"],
            State(field[b"state"].decode()),
            Token(int(field[b"number"]), field[b"nonce"]),
            int(field[b"lease_until"]) / lua.MICRO,
            int(field[b"attempts"]),
            int(field[b"created_at"]) / lua.MICRO,
            int(field[b"granted_at"]) / lua.MICRO,
            int(field[b"expires_at"]) / lua.MICRO,
            _moment(field.get(b"completed_at")),
            _moment(field.get(b"next_attempt_at")),
            field[b"cause"].decode(*_TEXT) if b"cause" in field else None,
            field.get(b"reconcile_nonce"),
            _moment(field.get(b"reconcile_until")),
            _moment(field.get(b"reconcile_asked_at")),
            field.get(b"answer"),
            int(field[b"format"]),
            now / lua.MICRO,
        )
    except (KeyError, ValueError):  # a word or a number of another release, or a field that it doesn't have
        raise UnknownFormat("A record bears a word that this release does not know.") from None


def _moment(micro: bytes | None) -> float | None:
    return None if micro is None else int(micro) / lua.MICRO
