"""Where records live."""

from twiceproof.stores._open import open_async_store, open_store
from twiceproof.stores._protocol import AsyncStore, Capabilities, Filter, Page, Purged, Store

__all__ = [
    "AsyncStore",
    "Capabilities",
    "Filter",
    "Page",
    "Purged",
    "Store",
    "open_async_store",
    "open_store",
]
