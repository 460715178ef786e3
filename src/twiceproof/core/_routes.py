"""Which policy covers a request: one for all, or a table of templates such as ``POST /orders/{id}/cancel``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from twiceproof.core._path import canonical_path, encode_path
from twiceproof.core._policy import Policy
from twiceproof.errors import ConfigurationError

Policies: TypeAlias = Policy | Mapping[str, Policy | None]

_PLACEHOLDER: Final = re.compile(r"\{[A-Za-z_]\w*(:path)?\}")


@dataclass(slots=True)
class _Row:
    name: str
    method: str
    pattern: re.Pattern[str]
    rank: tuple[int, ...]
    policy: Policy | None


class Routes:
    """Finds the policy of a request.

    ``{x}`` stands for one segment, ``{x:path}`` for the rest; a literal wins over a placeholder, then the order of
    the table; None is uncovered; ``*`` is for whatever no row names. Raises `ConfigurationError`.
    """

    def __init__(self, policies: Policies) -> None:
        if isinstance(policies, Policy):
            policies = {"*": policies}
        if not isinstance(policies, Mapping):
            msg = f"policy must be a Policy or a mapping of 'POST /path' to Policy, not {policies!r}"
            raise ConfigurationError(msg)
        for name, policy in policies.items():
            if policy is not None and not isinstance(policy, Policy):
                msg = f"the policy of {name!r} must be a Policy, or None for uncovered, not {policy!r}"
                raise ConfigurationError(msg)
        self.rest = policies.get("*")
        self._rows = sorted(
            (_row(name, policy) for name, policy in policies.items() if name != "*"), key=lambda row: row.rank
        )
        if not policies:
            raise ConfigurationError("the policy table is empty and covers nothing; name an operation, or '*'")
        for one, next_one in itertools.pairwise(sorted(self._rows, key=lambda row: (row.method, row.pattern.pattern))):
            if (one.method, one.pattern) == (next_one.method, next_one.pattern):
                msg = f"{one.name!r} and {next_one.name!r} are the same row of the policy table; keep one of them"
                raise ConfigurationError(msg)
        self.policies = dict(policies)
        self.table = bool(self._rows)
        """Whether the path decides."""
        self.methods = frozenset(
            method for policy in policies.values() if policy is not None for method in policy.methods
        )
        """Every method that any policy covers: for the others nothing needs to be looked up."""

    def match(self, method: str, raw_path: bytes) -> Policy | None:
        """Return the policy of a request, or None where it is uncovered."""
        if method not in self.methods:
            return None
        if self._rows:
            path = canonical_path(raw_path)
            for row in self._rows:
                if row.method == method and row.pattern.fullmatch(path):
                    return row.policy
        return self.rest


def _row(name: object, policy: Policy | None) -> _Row:
    method, _, template = str(name).partition(" ")
    if not isinstance(name, str) or not method.isupper() or not template.startswith("/") or " " in template:
        msg = f"a row of the policy table is 'METHOD /path' or '*', not {name!r}"
        raise ConfigurationError(msg)
    if "?" in template or "#" in template or "*" in template:
        msg = f"{name!r} matches no path; a row has no query, and wildcards are {{x}} and, for the rest, {{x:path}}"
        raise ConfigurationError(msg)
    if policy is not None and method not in policy.methods:
        msg = f"{name!r} is not covered: give its policy methods=({method!r},)"
        raise ConfigurationError(msg)
    segments = template[1:].split("/")
    pattern = "".join(
        "/" + _segment(name, segment, last=at == len(segments) - 1) for at, segment in enumerate(segments)
    )
    rank = tuple(_rank(segment) for segment in segments)
    return _Row(name, method, re.compile(pattern, re.DOTALL), rank, policy)


def _segment(name: str, segment: str, *, last: bool) -> str:
    parts: list[str] = []
    at = 0
    for found in _PLACEHOLDER.finditer(segment):
        parts.append(_literal(name, segment[at : found.start()]))
        if found.group(1) and not (last and found.end() == len(segment)):
            msg = f"{found.group()} takes the rest of the path and must be the last part of {name!r}"
            raise ConfigurationError(msg)
        parts.append(".*" if found.group(1) else "[^/]+")
        at = found.end()
    return "".join(parts) + _literal(name, segment[at:])


def _literal(name: str, text: str) -> str:
    if "{" in text or "}" in text:
        msg = f"{name!r} has a brace that is no placeholder; write {{x}} for one segment or {{x:path}} for the rest"
        raise ConfigurationError(msg)
    return re.escape(canonical_path(encode_path(text)))


def _rank(segment: str) -> int:
    found = _PLACEHOLDER.search(segment)
    return 0 if found is None else 2 if found.group(1) else 1
