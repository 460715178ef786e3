"""Values as keys: hashable copies, small numbers for them, and what a suspended generator still depends on."""

from __future__ import annotations

import dis
from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import CodeType
from typing import Any, Final, Generic, TypeVar, cast

T = TypeVar("T")

_ENDS: Final = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_GOES: Final = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})


class Numbered(Generic[T]):
    """Gives equal values the same small number, so that a state is a tuple of numbers."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def of(self, value: T, key: Hashable = None) -> int:
        """Return the number of a value that ``key`` stands for; itself, where it is hashable."""
        known: Hashable = value if key is None else key
        number = self._numbers.get(known)
        if number is None:
            number = self._numbers[known] = len(self.values)
            self.values.append(value)
        return number


def freeze(value: Any) -> Hashable:
    """Return a hashable stand-in: equal for values that the rules can't tell apart."""
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in cast("Iterable[object]", value))
    if isinstance(value, BaseException):
        return type(value).__name__
    if is_dataclass(value) and not isinstance(value, type) and type(value).__hash__ is None:
        return (type(value), *(freeze(getattr(value, item.name)) for item in fields(value) if item.compare))
    if isinstance(value, Hashable):
        return value
    return id(value)


def translated(value: Any, change: Callable[[bytes], bytes]) -> Any:
    """Return a copy of what passes between steps and store, with every text of bytes changed."""
    if isinstance(value, bytes):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(translated(getattr(value, item.name), change) for item in fields(value)))
    return value


def resting_place(steps: Generator[Any, Any, Any]) -> Hashable:
    """Return what decides how a suspended generator goes on: where it stands, and the names it may still read.

    Two that are equal here go on alike, so the explorer follows only one. What a frame keeps on its stack is not
    seen: in the steps that is never more than the generator that it delegates to.
    """
    places: list[Hashable] = []
    inner: Any = steps
    while inner is not None:
        frame = inner.gi_frame
        names = _read_later(frame.f_code, frame.f_lasti)
        seen = frame.f_locals
        places.append((frame.f_code, frame.f_lasti, tuple(freeze(seen[name]) for name in names if name in seen)))
        inner = inner.gi_yieldfrom
    return tuple(places)


@cache
def _read_later(code: CodeType, at: int) -> tuple[str, ...]:
    """Return the local names that are read from this instruction on before they are set again, on some way."""
    program: Any = dis.Bytecode(code)
    found: dict[int, Any] = {instruction.offset: instruction for instruction in program}
    assert not any(item.opname == "FOR_ITER" for item in found.values()), "a loop's place is on the stack: not seen"
    following = dict(pairwise(found))
    ways: dict[int, list[int]] = {}
    for offset, item in found.items():
        ways[offset] = [entry.target for entry in program.exception_entries if entry.start <= offset < entry.end]
        if item.opcode in dis.hasjrel or item.opcode in dis.hasjabs:
            ways[offset].append(item.argval)
        if item.opname not in _ENDS | _GOES and offset in following:
            ways[offset].append(following[offset])
    names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    return tuple(sorted(name for name in names if _is_read(name, at, found, ways)))


def _is_read(name: str, at: int, found: dict[int, Any], ways: dict[int, list[int]]) -> bool:
    reached: set[int] = set()
    open_ways = [at]
    while open_ways:
        offset = open_ways.pop()
        if offset in reached:
            continue
        reached.add(offset)
        item = found[offset]
        named: Any = item.argval
        if name == named or (type(named) is tuple and name in named):
            if "LOAD_" in item.opname:
                return True
            if item.opname.startswith("STORE_FAST"):
                continue
        open_ways += ways[offset]
    return False
