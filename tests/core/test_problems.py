"""Our own answers (CONTRACT 7)."""

import json

import pytest

from twiceproof import Response
from twiceproof.core._problems import PROBLEMS, REPLAYED, is_ours, problem, unauthorized

TABLE = {  # code: (status, whether the same request may be sent again)
    "idempotency-key-missing": (400, False),
    "idempotency-key-invalid": (400, False),
    "body-incomplete": (400, True),
    "request-too-large": (413, False),
    "in-progress": (409, True),
    "replay-unavailable": (409, False),
    "idempotency-key-reuse": (422, False),
    "outcome-unknown": (500, False),
    "store-unavailable": (503, True),
}


def test_there_are_these_codes():
    """No more, and none less."""
    assert {code: (row.status, row.retryable) for code, row in PROBLEMS.items()} == TABLE


@pytest.mark.parametrize("code", sorted(TABLE))
def test_each_is_a_problem_document(code):
    """RFC 9457: all members, and the fields that keep it out of caches."""
    answer = problem(code, reason="because")
    document = json.loads(answer.body or b"")
    status, retryable = TABLE[code]
    assert document["type"] == f"urn:twiceproof:problem:{code}"
    assert (document["status"], document["code"], document["retryable"]) == (status, code, retryable)
    assert (document["reason"], answer.status) == ("because", status)
    assert document["title"]
    assert document["detail"].count(".") >= 2 or code == "outcome-unknown"
    assert answer.headers == [
        (b"content-type", b"application/problem+json"),
        (b"content-language", b"en"),
        (b"cache-control", b"no-store"),
        (b"content-length", b"%d" % len(answer.body or b"")),
    ]


def test_outcome_unknown_says_what_to_do_next():
    """Ask for the state before anything is started again."""
    detail = PROBLEMS["outcome-unknown"].detail
    assert "may have taken effect" in detail
    assert "ask for its state before you start it again under a new key" in detail


def test_an_explanation_is_linked_where_there_is_one():
    """`docs_url` becomes type and Link."""
    answer = problem("in-progress", docs_url="https://x.example/p", retry_after=7)
    assert json.loads(answer.body or b"")["type"] == "https://x.example/p#in-progress"
    assert answer.headers[3:5] == [(b"link", b'<https://x.example/p>; rel="describedby"'), (b"retry-after", b"7")]
    odd = problem("in-progress", docs_url="https://x.example/caf\u00e9")
    assert odd.header(b"link") == b'<https://x.example/caf?>; rel="describedby"'


def test_a_chosen_status_is_the_documents_too():
    """R8: what is sent and what the document says are one."""
    answer = problem("idempotency-key-missing", status=428)
    assert (answer.status, json.loads(answer.body or b"")["status"]) == (428, 428)


def test_nobody_found_is_401():
    """R12: with a challenge, as RFC 9110 demands, and without a code of ours."""
    answer = unauthorized()
    assert answer.status == 401
    assert json.loads(answer.body or b"") == {
        "type": "about:blank",
        "title": "Unauthorized",
        "status": 401,
        "detail": "The account that this request acts for is not known. Send valid credentials and the same key again.",
    }
    assert (b"www-authenticate", b"Bearer") in answer.headers
    assert not is_ours(answer)


@pytest.mark.parametrize("code", sorted(TABLE))
def test_our_own_answers_are_recognised(code):
    """R36: by an outer twiceproof."""
    assert is_ours(problem(code, docs_url="https://x.example", retry_after=1))


def test_a_marked_answer_is_the_handlers_own():
    """R36: a handler may pass on what another API marked as a replay; to forget that would double its effect."""
    assert not is_ours(Response(201, [(b"etag", b"x"), REPLAYED], b"{}"))


PROBLEM = [(b"content-type", b"application/problem+json")]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Response(200, PROBLEM, problem("in-progress").body), id="a success"),
        pytest.param(Response(409, [], problem("in-progress").body), id="another type"),
        pytest.param(Response(409, PROBLEM, None), id="not kept"),
        pytest.param(Response(409, PROBLEM, b""), id="empty"),
        pytest.param(Response(409, PROBLEM, b"{"), id="no JSON"),
        pytest.param(Response(409, PROBLEM, b"\xff"), id="no text"),
        pytest.param(Response(409, PROBLEM, b"[" * 100_000), id="too deep"),
        pytest.param(Response(409, PROBLEM, b"[]"), id="no object"),
        pytest.param(Response(409, PROBLEM, b'{"code":"mine","retryable":true}'), id="another code"),
        pytest.param(Response(409, PROBLEM, b'{"code":["in-progress"],"retryable":true}'), id="a list"),
        pytest.param(Response(409, PROBLEM, b'{"code":"in-progress"}'), id="somebody else's document"),
        pytest.param(Response(201, [(b"idempotent-replayed", b"false")], b""), id="another marker"),
    ],
)
def test_other_answers_are_the_handlers_own(answer):
    """R36: and whatever is in them, looking breaks nothing."""
    assert not is_ours(answer)
