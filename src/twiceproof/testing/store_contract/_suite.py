"""The classes to subclass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from twiceproof.stores import Capabilities, Store
from twiceproof.testing.store_contract._claims import ClaimContract
from twiceproof.testing.store_contract._durable import DurableContract
from twiceproof.testing.store_contract._holding import HoldingContract
from twiceproof.testing.store_contract._keeping import KeepingContract
from twiceproof.testing.store_contract._races import RacesContract
from twiceproof.testing.store_contract._reconciling import ReconcilingContract
from twiceproof.testing.store_contract._settling import SettlingContract


class StoreContract(
    ClaimContract, SettlingContract, ReconcilingContract, KeepingContract, HoldingContract, RacesContract
):
    """What every store promises, as tests: subclass it under a name that pytest collects, and give it a ``store``.

    Leases are short, and every wait goes through ``advance``: a store on a clock of its own takes no time at all, and
    one on a real clock, which the suite lets sleep, a minute and a half. An asynchronous store is put into
    `twiceproof.testing.Driven`. A durable store is held to `DurableStoreContract`.
    """

    durable: ClassVar[bool] = False

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        """Override: an empty, open store, closed afterwards."""
        # a pytest run of its own shows this in the tests
        raise NotImplementedError(f"{type(self).__name__} must override the fixture `store`.")  # pragma: no cover

    @pytest.fixture
    def advance(self) -> Callable[[float], None]:
        """Let so many seconds pass on the store's clock; override it where that can be done without waiting."""
        return time.sleep

    def test_it_is_held_to_what_it_says_it_can_do(self, store: Store) -> None:
        """R41: its capabilities are told without asking anybody, and choose the suite: `DurableStoreContract`, or not.

        An engine relies on them when it takes or refuses a policy.
        """
        store.close()
        assert type(store.capabilities) is Capabilities
        assert store.capabilities.durable is self.durable


class DurableStoreContract(DurableContract, StoreContract):
    """`StoreContract`, and what records promise that outlive the object and the process; give it ``another``, too."""

    durable: ClassVar[bool] = True

    @pytest.fixture
    def another(self) -> Iterator[Callable[[], Store]]:
        """Override: what opens one more store over the records of ``store`` with each call, all closed afterwards."""
        # a pytest run of its own shows this in the tests
        raise NotImplementedError(f"{type(self).__name__} must override the fixture `another`.")  # pragma: no cover
