"""What helps to test code that stands on twiceproof, and twiceproof itself.

`StoreContract` and `DurableStoreContract` hold a store of your own to the contract; they need pytest, which the extra
``testing`` brings. The explorer is a module of its own: ``python -m twiceproof.testing.explorer``.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from twiceproof.testing._clock import FakeClock
from twiceproof.testing._driven import Driven

if TYPE_CHECKING or find_spec("pytest") is not None:
    from twiceproof.testing.store_contract import DurableStoreContract, StoreContract
else:
    from twiceproof.testing._without_pytest import DurableStoreContract, StoreContract

__all__ = ["Driven", "DurableStoreContract", "FakeClock", "StoreContract"]
