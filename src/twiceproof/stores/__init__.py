"""Where records live."""

from twiceproof.stores._open import open_async_store, open_store
from twiceproof.stores._protocol import AsyncStore, Capabilities, Filter, Page, Purged, Store
from twiceproof.stores._row_store import RowStore, Step
from twiceproof.stores._threads import in_threads

__all__ = [
    "AsyncStore",
    "Capabilities",
    "Filter",
    "Page",
    "Purged",
    "RowStore",
    "Step",
    "Store",
    "in_threads",
    "open_async_store",
    "open_store",
]
