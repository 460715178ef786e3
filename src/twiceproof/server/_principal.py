"""Who a request acts for (R12): there is no default."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from twiceproof.core._scope import by_authorization
from twiceproof.errors import ConfigurationError, TwiceproofWarning

if TYPE_CHECKING:
    from collections.abc import Callable

CHOICES: Final = (
    "give principal= a callable that returns the account of a request, by_authorization (one account per static "
    "Authorization value), or anonymous (everybody is one account)"
)


def check_principal(principal: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the resolver, or raise `ConfigurationError` naming the three choices."""
    if principal is None or not callable(principal):
        msg = f"whose keys are they? {CHOICES}"
        raise ConfigurationError(msg)
    if principal is by_authorization:
        warnings.warn(
            "by_authorization tells accounts apart by their Authorization value: a refreshed token is another account, "
            "and a retry under it runs again; with tokens that change, give principal= a callable",
            TwiceproofWarning,
            stacklevel=3,
        )
    return principal
