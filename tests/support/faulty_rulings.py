"""Stores that decide wrongly, in one way each; ``caught_by`` is the test of the suite that must tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.support.row_stores import SharedRows
from twiceproof.core._record import ClaimRef, Done, Fenced, Granted, Guarantee, Held, NewRecord, State


class AnyTokenCompletes(SharedRows):
    caught_by = "test_only_the_token_settles"

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> Any:
        return super().complete(id, self.nonce_of(id, nonce), answer, retention)


class AnyTokenReleases(SharedRows):
    caught_by = "test_only_the_token_settles"

    def release(self, id: bytes, nonce: bytes) -> Any:
        return super().release(id, self.nonce_of(id, nonce))


class AnyTokenParks(SharedRows):
    caught_by = "test_only_the_token_settles"

    def park(self, id: bytes, nonce: bytes, cause: str) -> Any:
        return super().park(id, self.nonce_of(id, nonce), cause)


class AnyTokenForgets(SharedRows):
    caught_by = "test_forget_deletes_in_any_state_under_the_token"

    def forget(self, id: bytes, nonce: bytes) -> Any:
        return super().forget(id, self.nonce_of(id, nonce))


class AnyTokenRenews(SharedRows):
    caught_by = "test_renewing_prolongs_the_lease_and_tells_who_is_fenced"

    def renew(self, claims: Sequence[Any], lease: float) -> Any:
        super().renew([replace(ref, nonce=self.nonce_of(ref.id, ref.nonce)) for ref in claims], lease)
        return []


class TakesOverAtMostOnce(SharedRows):
    caught_by = "test_a_lapsed_record_is_not_taken_over_unless_both_say_so"

    def claim(self, new: Any, lease: float, nonce: bytes, after: bytes | None = None) -> Any:
        record = self.get(new.id)
        if record is not None and record.lapsed and record.token.nonce != nonce:
            self.forget(new.id, record.token.nonce)
        return super().claim(new, lease, nonce, after)


class TakesOverAnyPayload(SharedRows):
    caught_by = "test_another_fingerprint_is_shown_the_record_and_changes_nothing"

    def claim(self, new: Any, lease: float, nonce: bytes, after: bytes | None = None) -> Any:
        record = self.get(new.id)
        fingerprint = new.fingerprint if record is None else record.fingerprint
        return super().claim(replace(new, fingerprint=fingerprint), lease, nonce, after)


class TimeDecides(SharedRows):
    caught_by = "test_a_late_holder_completes_after_its_lapse_and_its_parking"

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> Any:
        record = self.get(id)
        return Fenced() if record and record.lapsed else super().complete(id, nonce, answer, retention)


class LateHolderIsFencedByItsParking(SharedRows):
    caught_by = "test_a_late_holder_releases_after_its_lapse_and_its_parking"

    def release(self, id: bytes, nonce: bytes) -> Any:
        record = self.get(id)
        return Fenced() if record and record.state is State.PARKED else super().release(id, nonce)


class ForgetsWithoutNotice(SharedRows):
    caught_by = "test_an_unsettled_record_is_kept_then_forgotten_with_notice"

    def claim(self, new: Any, lease: float, nonce: bytes, after: bytes | None = None) -> Any:
        answer = super().claim(new, lease, nonce, after)
        return replace(answer, forgot=False) if type(answer) is Granted else answer


class LastAnswerWins(SharedRows):
    caught_by = "test_completing_again_is_done_and_changes_nothing"

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> Any:
        before = self.get(id)
        done = super().complete(id, nonce, answer, retention)
        if done == Done() and before and before.state is State.COMPLETED:
            names = ("namespace", "principal", "operation", "path", "key", "fingerprint", "guarantee")
            known: dict[str, Any] = {name: getattr(before, name) for name in names}
            again = NewRecord(id, **known, keep=1.0)
            self.forget(id, nonce)
            super().claim(again, 1.0, nonce)
            super().complete(id, nonce, answer, retention)
        return done


class RepeatedClaimIsHeld(SharedRows):
    caught_by = "test_the_same_call_again_finds_its_own_grant"

    def claim(self, new: Any, lease: float, nonce: bytes, after: bytes | None = None) -> Any:
        record = self.get(new.id)
        if record and record.token.nonce == nonce and record.state is State.IN_FLIGHT:
            return Held(record)
        return super().claim(new, lease, nonce, after)


class SecondClaimFencesTheHolder(SharedRows):
    caught_by = "test_the_holders_own_answer_stands_against_the_verdict"

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> Any:
        record = self.get(id)
        if record and record.reconciling and record.reconcile_nonce != nonce:
            return Fenced()
        return super().complete(id, nonce, answer, retention)


class ManyHooksAsk(SharedRows):
    caught_by = "test_one_asks_at_a_time_and_not_too_often"

    def claim_unsettled(self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False) -> Any:
        record = self.get(id)
        return super().claim_unsettled(id, lease, nonce, every, force=force or bool(record and record.unsettled))


class AsksWithoutPause(SharedRows):
    caught_by = "test_one_asks_at_a_time_and_not_too_often"

    def claim_unsettled(self, id: bytes, lease: float, nonce: bytes, every: float, *, force: bool = False) -> Any:
        return super().claim_unsettled(id, lease, nonce, 0.0, force=force)


class VerdictLeavesTheToken(SharedRows):
    caught_by = "test_a_verdict_of_completed_fences_the_late_holder"

    def complete(self, id: bytes, nonce: bytes, answer: bytes, retention: float) -> Any:
        record = self.get(id)
        mine = record is not None and record.reconciling and record.reconcile_nonce == nonce
        return super().complete(id, self.nonce_of(id, nonce) if mine else nonce, answer, retention)


class KeepsTodaysGuaranteeOnly(SharedRows):
    caught_by = "test_a_lapsed_record_is_not_taken_over_unless_both_say_so"

    def claim(self, new: Any, lease: float, nonce: bytes, after: bytes | None = None) -> Any:
        record = self.get(new.id)
        if record and record.lapsed and new.guarantee is Guarantee.AT_LEAST_ONCE and after is None:
            self.claim_unsettled(new.id, lease, b"fault", 0.0, force=True)
            after = b"fault"
        return super().claim(new, lease, nonce, after)


class ReleasesAnswers(SharedRows):
    caught_by = "test_a_completed_record_is_not_released_or_parked"

    def release(self, id: bytes, nonce: bytes) -> Any:
        return self.forget(id, nonce)


class ReleasesNothing(SharedRows):
    caught_by = "test_a_released_key_is_new"

    def release(self, id: bytes, nonce: bytes) -> Any:
        return Done() if self.nonce_of(id, b"") == nonce else Fenced()


class ParksWithoutACause(SharedRows):
    caught_by = "test_a_parked_record_is_unsettled_and_kept"

    def park(self, id: bytes, nonce: bytes, cause: str) -> Any:
        return super().park(id, nonce, "")


class CountsAttemptsFromNought(SharedRows):
    caught_by = "test_an_absent_record_is_granted"

    def claim(self, new: Any, lease: float, nonce: bytes, after: bytes | None = None) -> Any:
        answer = super().claim(new, lease, nonce, after)
        return replace(answer, attempts=answer.attempts - 1) if type(answer) is Granted else answer


class LookingProlongsTheLease(SharedRows):
    caught_by = "test_a_live_claim_of_another_is_held"

    def claim(self, new: Any, lease: float, nonce: bytes, after: bytes | None = None) -> Any:
        answer = super().claim(new, lease, nonce, after)
        if type(answer) is Held:
            self.renew([ClaimRef(new.id, answer.record.token.nonce)], lease)
        return answer


class GrantsItsOwnParkedRecord(SharedRows):
    caught_by = "test_the_same_call_does_not_run_again_what_it_settled"

    def claim(self, new: Any, lease: float, nonce: bytes, after: bytes | None = None) -> Any:
        if self.nonce_of(new.id, b"") == nonce:
            self.renew([ClaimRef(new.id, nonce)], lease)
        return super().claim(new, lease, nonce, after)


class RenewsTheLiveOnly(SharedRows):
    caught_by = "test_a_holder_renews_after_its_lapse_and_its_parking"

    def renew(self, claims: Sequence[Any], lease: float) -> Any:
        dead = [ref for ref in claims if (record := self.get(ref.id)) is None or record.unsettled]
        return [*dead, *super().renew([ref for ref in claims if ref not in dead], lease)]


class FencesWhoeverCompleted(SharedRows):
    caught_by = "test_renewing_what_is_completed_changes_nothing"

    def renew(self, claims: Sequence[Any], lease: float) -> Any:
        done = [ref for ref in claims if (record := self.get(ref.id)) and record.state is State.COMPLETED]
        return [*done, *super().renew([ref for ref in claims if ref not in done], lease)]
