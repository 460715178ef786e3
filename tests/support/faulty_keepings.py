"""Stores that keep or show their rows wrongly, in one way each; ``caught_by`` is the test that must tell."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.support.row_stores import SharedRows
from twiceproof.errors import StoreUnavailable
from twiceproof.stores import Capabilities, Filter, Page, Purged, Step


class ForgetsTheUnsettledEarly(SharedRows):
    caught_by = "test_an_unsettled_record_is_kept_then_forgotten_with_notice"

    def purge(self, limit: int) -> Purged:
        unsettled = self.scan(Filter(unsettled=True)).records
        for record in unsettled:
            self.forget(record.id, record.token.nonce)
        return Purged(len(unsettled), len(unsettled))


class NeverExpires(SharedRows):
    caught_by = "test_a_completed_record_expires_after_its_retention"

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> Any:
        return super().complete(id, nonce, answer, retention * 1000)


class FoldsCase(SharedRows):
    caught_by = "test_nonces_and_ids_compare_by_exact_bytes"

    def change(self, id: bytes, step: Step) -> None:
        super().change(id.lower(), step)


class ClockOfTheStart(SharedRows):
    caught_by = "test_every_record_carries_the_stores_now"

    def now(self) -> float:
        self.began = getattr(self, "began", self.clock())
        return self.began


class NoLock(SharedRows):
    caught_by = "test_of_many_claims_at_once_one_is_granted"

    def change(self, id: bytes, step: Step) -> None:
        before = self.stored.get(id)
        time.sleep(0.002)  # what a disk or a network takes
        after = step(before)
        if after is None:
            self.stored.pop(id, None)
        else:
            self.stored[id] = after


class LostRaceIsAnError(SharedRows):
    caught_by = "test_of_many_claims_at_once_one_is_granted"

    def change(self, id: bytes, step: Step) -> None:
        if not self.lock.acquire(blocking=False):
            raise StoreUnavailable
        try:
            super().change(id, step)
            time.sleep(0.002)
        finally:
            self.lock.release()


class SkipsAtAPagesEnd(SharedRows):
    caught_by = "test_scan_pages_through_all_records_oldest_first"

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        page = super().scan(filter, cursor, limit)
        return page if cursor is None else replace(page, records=page.records[1:])


class PurgesTooMuch(SharedRows):
    caught_by = "test_purge_deletes_what_expired_a_step_at_a_time"

    def purge(self, limit: int) -> Purged:
        return super().purge(limit * 2)


class SaysTooLittle(SharedRows):
    capabilities = Capabilities(durable=False)
    caught_by = "test_it_is_held_to_what_it_says_it_can_do"


class Remembers(SharedRows):
    """It reads a row once, and believes it from then on."""

    caught_by = "test_a_write_is_seen_by_every_store_at_once"

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.seen: dict[bytes, bytes | None] = {}

    def change(self, id: bytes, step: Step) -> None:
        def remembered(stored: bytes | None) -> bytes | None:
            after = self.seen[id] = step(self.seen.get(id, stored))
            return after

        super().change(id, remembered)


class WritesWhenClosed(SharedRows):
    """It keeps what it wrote to itself until it is closed."""

    caught_by = "test_of_many_claims_through_several_stores_one_is_granted"

    def change(self, id: bytes, step: Step) -> None:
        own = self.__dict__.setdefault("own", dict(self.stored))
        after = step(own.get(id))
        if after is None:
            own.pop(id, None)
        else:
            own[id] = after

    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        return list(self.__dict__.get("own", self.stored).items())

    def close(self) -> None:
        self.stored.update(self.__dict__.pop("own", {}))


class LosesThePath(SharedRows):
    caught_by = "test_a_granted_record_reads_as_it_was_claimed"

    def claim(self, new: Any, lease: float, nonce: bytes, after: bytes | None = None) -> Any:
        return super().claim(replace(new, path="/orders"), lease, nonce, after)


class HandsOutItsOwnRecord(SharedRows):
    caught_by = "test_a_record_handed_out_never_changes"

    def get(self, id: bytes) -> Any:
        record = super().get(id)
        if record is not None:
            self.__dict__.setdefault("handed", {})[id] = record
        return record

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> Any:
        for record in self.__dict__.get("handed", {}).values():
            record.answer = answer
        return super().complete(id, nonce, answer, retention)


class BeginsAgainAtABadCursor(SharedRows):
    caught_by = "test_a_cursor_that_no_page_carried_is_refused"

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        with contextlib.suppress(ValueError):
            return super().scan(filter, cursor, limit)
        return super().scan(filter, None, limit)


class PagesOfNothing(SharedRows):
    caught_by = "test_a_page_of_nothing_is_refused"

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return super().scan(filter, cursor, limit) if limit else Page([], cursor)


class EmptyButThereIsMore(SharedRows):
    caught_by = "test_an_empty_store_has_one_empty_page"

    def scan(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        page = super().scan(filter, cursor, limit)
        return page if page.records else replace(page, cursor="more")


class ForgetsWhenClosed(SharedRows):
    caught_by = "test_records_outlive_the_store_that_wrote_them"

    def close(self) -> None:
        self.stored.clear()


class OpensEmpty(SharedRows):
    caught_by = "test_open_close_and_check_may_be_repeated"

    def open(self) -> None:
        self.stored.clear()
