"""What the doors check when they are made, and what they say once."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from twiceproof.core._policy import Policy, unknown_option
from twiceproof.engine._options import EngineOptions
from twiceproof.errors import ConfigurationError
from twiceproof.server._lifespan import logger

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_names(options: Iterable[str]) -> None:
    """Refuse an option of a middleware that does not exist, or that is the policy's."""
    for name in options:
        if name in Policy.__dataclass_fields__:
            raise ConfigurationError(f"{name} is an option of Policy; write policy=Policy({name}=...)")
        if name not in EngineOptions.__annotations__:
            raise ConfigurationError(unknown_option(name, [*EngineOptions.__annotations__, "policy", "principal"]))


@cache
def tell_no_raw_path() -> None:
    """Say what R16 asks for, once per process."""
    logger.warning(
        "this server tells paths only decoded: /a%2Fb and /a/b are one operation to it, and one key there is one key"
    )
