"""Every error that twiceproof raises, split by whose turn it is.

::

    TwiceproofError
    ├── ConfigurationError        the developer's: raised at start-up, says what to change
    ├── StoreError                the operator's
    │   ├── StoreUnavailable      nothing was written; the same call may be made again
    │   │   ├── StoreFull         the store has no room and evicts nothing
    │   │   └── StoreOutcomeUnknown   the store may have acted; repeat only under the same nonce
    │   └── UnknownFormat         a record of another release that this one can't read (R17, R53)
    └── NotExecuted               raised by a handler: nothing happened (CONTRACT 5)
    TwiceproofWarning             a set-up that works, but not as its author may think
"""

from __future__ import annotations


class TwiceproofError(Exception):
    """The base of every error of this package."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else (type(self).__doc__ or "").partition("\n")[0])


class ConfigurationError(TwiceproofError, ValueError):
    """The set-up can't keep its promise; the message names the option to change."""


class StoreError(TwiceproofError):
    """The store that keeps the records failed."""


class StoreUnavailable(StoreError):
    """The store could not be reached, and nothing was written (R47, R48)."""


class StoreFull(StoreUnavailable):
    """The store holds as many live records as it may, and evicts none of them."""


class StoreOutcomeUnknown(StoreUnavailable):
    """The store's reply was lost: it may or may not have acted (R48)."""


class UnknownFormat(StoreError):
    """A record was written in a format that this release does not know (R17, R53)."""


class NotExecuted(TwiceproofError):  # a statement by the handler, not a fault
    """Raise it in a handler to say that nothing happened: the key is released, a retry runs again."""


class TwiceproofWarning(UserWarning):
    """The set-up works, but probably not as intended."""
