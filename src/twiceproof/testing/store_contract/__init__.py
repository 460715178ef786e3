"""The suite that holds every store to the contract; subclass `StoreContract`, or `DurableStoreContract`.

It needs pytest, which the extra ``testing`` brings.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ImportError("twiceproof.testing.store_contract needs pytest: pip install 'twiceproof[testing]'") from error

_PARTS = ("claims", "durable", "ground", "holding", "keeping", "races", "reconciling", "settling", "suite")
pytest.register_assert_rewrite(*(f"{__name__}._{part}" for part in _PARTS))  # a failure shows what was compared

from twiceproof.testing.store_contract._suite import DurableStoreContract, StoreContract  # noqa: E402  # rewritten

__all__ = ["DurableStoreContract", "StoreContract"]
