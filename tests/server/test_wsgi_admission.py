"""The head of a request at the WSGI door: R1-R3, R5, R6, R8-R10, R12, R15, R48, R52."""

import pytest

from tests.support.faulty_store import DOWN
from tests.support.wsgi_door import Counter, Door, Serving, call, environ_of
from twiceproof import Policy, TwiceproofWarning
from twiceproof.server.wsgi import by_authorization


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "post"])
def test_other_methods_pass_through_untouched(method):
    """R1, R52: the application gets the very environ and start_response, and the server its very iterable."""
    answer = iter([b"x"])
    seen = []

    def app(environ, start_response):
        seen.append((environ, start_response))
        return answer

    def start_response(*_):
        raise AssertionError

    with Door(app) as door:
        environ = environ_of(method=method)
        source = environ["wsgi.input"]
        assert door(environ, start_response) is answer
    assert seen == [(environ, start_response)]
    assert environ["wsgi.input"] is source
    assert (door.faults.calls.count("claim"), "twiceproof" in environ) == (0, False)


def test_a_request_without_a_key_runs_unprotected_where_none_is_required():
    """R9, R52: its iterable and its input are not ours, and its Attempt says that nothing protects it."""
    answer = iter([b"x"])
    with Door(lambda environ, start_response: answer) as door:
        environ = environ_of(None)
        source = environ["wsgi.input"]
        assert door(environ, print) is answer
    attempt = environ["twiceproof"]
    assert (environ["wsgi.input"], attempt.protected, attempt.key) == (source, False, None)
    assert door.faults.foreground() == []


def test_a_key_makes_the_effect_happen_once():
    """R21, R25: the second answer is the first, with the marker."""
    with Door(app := Counter(headers=[("X-A", "1"), ("X-A", "2"), ("Set-Cookie", "s=1")])) as door:
        first, again = door.call(), door.call()
    assert (first.brief, again.brief) == ((201, False, b"effect 1"), (201, True, b"effect 1"))
    assert again.headers == [("X-A", "1"), ("X-A", "2"), ("idempotent-replayed", "true"), ("content-length", "8")]
    assert (again.status, app.effects) == ("201 Created", 1)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "empty"),
        ("k1,k1", "list"),
        ("k1, k2", "list"),
        ('"k1","k1"', "list"),
        ("caf\xe9", "not-ascii"),
        ("caf\u0142", "not-ascii"),
        ("k" * 256, "too-long"),
    ],
)
def test_a_bad_key_is_refused_before_body_and_store(key, reason):
    """R3, R6: also one that the server joined from two lines, or that no server may hand on."""
    with Door(app := Counter()) as door:
        environ = environ_of(key)
        source = environ["wsgi.input"]
        seen = call(door, environ)
        assert (seen.code, seen.problem, f'"reason": "{reason}"'.encode() in seen.body) == (
            400,
            "idempotency-key-invalid",
            True,
        )
        assert (app.effects, door.faults.foreground(), source.tell()) == (0, [], 0)


def test_quoted_and_bare_are_one_key():
    """R5."""
    with Door(app := Counter()) as door:
        door.call(key="k1")
        assert (door.call(key='"k1"').replayed, app.effects) == (True, 1)


def test_a_missing_key_is_refused_where_it_is_required():
    """R8: with the status of the policy, and no store I/O."""
    with Door(app := Counter(), policy=Policy(required=True, missing_status=428)) as door:
        seen = door.call(key=None)
        assert (seen.code, seen.problem, app.effects) == (428, "idempotency-key-missing", 0)
        assert door.faults.foreground() == []


def test_an_alias_names_the_same_key():
    """R2."""
    with Door(app := Counter(), policy=Policy(aliases=("X-Request-Key",))) as door:
        door.call(key="k1")
        assert (door.call(key=None, HTTP_X_REQUEST_KEY="k1").replayed, app.effects) == (True, 1)
        assert door.call(key="k1", HTTP_X_REQUEST_KEY="k2").problem == "idempotency-key-invalid"


def test_the_principal_comes_from_a_callable_that_takes_the_environ():
    """R12, R15: two accounts share nothing; nobody is 401, and neither body nor store is touched."""
    with Door(app := Counter(), principal=lambda environ: environ.get("REMOTE_USER")) as door:
        seen = [door.call(REMOTE_USER=user).replayed for user in ("ann", "bob", "ann")]
        calls = door.faults.foreground()
        environ = environ_of()
        nobody = call(door, environ)
        assert (seen, app.effects) == ([False, False, True], 2)
        assert (nobody.code, nobody.status, environ["wsgi.input"].tell()) == (401, "401 Unauthorized", 0)
        assert (door.faults.foreground(), nobody.all("www-authenticate")) == (calls, ["Bearer"])


def test_a_principal_that_is_no_text_is_an_error_and_runs_nothing():
    """R12: an id that could mean anything is nobody's."""
    with Door(app := Counter(), principal=lambda environ: 7) as door:
        seen = door.call()
        assert (type(seen.error), app.effects) == (TypeError, 0)
        assert str(seen.error) == "principal= must return a str, or None for nobody, not int"


def test_by_authorization_tells_accounts_apart_by_the_field():
    """R12: no field is nobody, and so is a scheme whose value changes with every request."""
    with pytest.warns(TwiceproofWarning, match="refreshed token"):
        door = Door(app := Counter(), principal=by_authorization)
    with door:
        tokens = ("Bearer a", "Bearer b", "Bearer a")
        assert [door.call(HTTP_AUTHORIZATION=token).replayed for token in tokens] == [False, False, True]
        assert [door.call().code, door.call(HTTP_AUTHORIZATION="Digest x").code, app.effects] == [401, 401, 2]


def test_another_payload_under_the_key_is_refused_and_the_first_still_replays():
    """R24, R32."""
    with Door(app := Counter()) as door:
        door.call()
        other = door.call(body=b'{"n":2}')
        again = door.call(body=b'{ "n": 1.0 }')
    assert (other.code, other.problem) == (422, "idempotency-key-reuse")
    assert (again.replayed, app.effects) == (True, 1)


def test_content_type_query_and_vary_headers_count():
    """R17: what CGI keeps apart from the other fields is a header field too."""
    with Door(app := Counter()) as door:
        door.call()
        seen = [
            door.call(CONTENT_TYPE="text/plain").problem,
            door.call(QUERY_STRING="a=1").problem,
            door.call(CONTENT_TYPE="application/json; charset=utf-8").replayed,
        ]
    assert (seen, app.effects) == (["idempotency-key-reuse", "idempotency-key-reuse", True], 1)


def test_the_store_down_at_the_claim_is_503_and_runs_nothing():
    """R48."""
    with Door(app := Counter()) as door:
        door.faults.now["claim"] = DOWN
        seen = door.call()
        door.faults.now.clear()
        assert (seen.code, seen.problem, seen.all("retry-after"), app.effects) == (503, "store-unavailable", ["5"], 0)
        assert door.call().brief == (201, False, b"effect 1")


def test_fail_open_runs_and_says_so():
    """R48: the answer passes through as it is, but for the field that tells."""
    answer = iter([b"x"])
    app = Counter(body=answer)
    with Door(app, policy=Policy(fail_open=True)) as door:
        door.faults.now["claim"] = DOWN
        serving = Serving(door, environ_of())
        assert serving.result is answer
        assert (serving.seen.all("idempotency-unprotected"), app.effects) == (["true"], 1)
        assert app.bodies == [b'{"n":1}']


def test_a_duplicate_waits_for_the_answer_where_the_policy_says_so():
    """R23: by looking again until it is there."""
    import threading

    inside, go = threading.Event(), threading.Event()

    def app(environ, start_response):
        inside.set()
        assert go.wait(20)
        start_response("200 OK", [])
        return [b"done"]

    with Door(app, policy=Policy(wait=30)) as door:
        seen = []
        threads = [threading.Thread(target=lambda: seen.append(door.call())) for _ in range(2)]
        threads[0].start()
        assert inside.wait(20)
        threads[1].start()
        while door.faults.calls.count("claim") < 2:
            pass
        go.set()
        for thread in threads:
            thread.join()
    assert sorted(one.brief for one in seen) == [(200, False, b"done"), (200, True, b"done")]


def test_a_duplicate_is_told_409_while_the_first_runs():
    """R23."""
    codes = []

    def app(environ, start_response):
        codes.append(door.call().code)
        start_response("200 OK", [])
        return []

    with Door(app) as door:
        door.call()
    assert codes == [409]
