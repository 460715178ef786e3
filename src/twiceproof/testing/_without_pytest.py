"""What stands for the store suite where pytest is missing: the rest of this room works without it."""

from __future__ import annotations

from typing import Any


class StoreContract:
    """Says what to install to whoever subclasses it."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse."""
        raise ImportError(f"{cls.__name__} needs pytest: pip install 'twiceproof[testing]'")


DurableStoreContract = StoreContract
