"""What a claim is owed after its request went on (R28, R47, R48)."""

import pytest

from twiceproof.core._background import after_renewal, is_over
from twiceproof.core._engine import DoComplete, DoLater, DoPark, DoRelease
from twiceproof.core._record import Done, Fenced

ANSWER = DoLater(DoComplete(b"id", b"nonce", b"answer", 1.0), "complete_retried")
FREED = DoLater(DoRelease(b"id", b"nonce"), "released")
TAKEN_BACK = DoLater(DoRelease(b"id", b"nonce", again=True))
SECOND = DoLater(DoPark(b"id", b"second", "lapsed"))


@pytest.mark.parametrize(
    ("job", "recent", "done", "fenced"),
    [
        pytest.param(ANSWER, True, True, True, id="an answer"),
        pytest.param(FREED, True, True, True, id="a release that is told"),
        pytest.param(SECOND, True, True, False, id="a second claim taken back"),
        pytest.param(TAKEN_BACK, True, False, False, id="a claim taken back that may have been sent twice"),
        pytest.param(ANSWER, False, True, True, id="an old answer"),
        pytest.param(SECOND, False, True, True, id="an old second claim"),
        pytest.param(TAKEN_BACK, False, True, True, id="an old claim"),
    ],
)
def test_what_takes_a_claim_back_is_repeated_while_that_may_be_on_its_way(job, recent, done, fenced):
    """R48: everything else is over with the store's first answer."""
    assert (is_over(job, Done(), recent=recent), is_over(job, Fenced(), recent=recent)) == (done, fenced)


def test_what_was_parked_during_its_renewal_is_parked_again():
    """R28: and nothing follows any other renewal."""
    parked = DoPark(b"id", b"nonce", "exception")
    assert (after_renewal(parked), after_renewal(None)) == (DoLater(parked), None)
