"""Answers at the WSGI door: what is recorded, when, and what is passed on: CONTRACT 5, R25, R26, R45, R46, R50."""

import functools
import sys
from typing import Any
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import pytest

from tests.support.faulty_store import DOWN
from tests.support.wsgi_door import Counter, Door, Serving, answering, environ_of
from twiceproof import NotExecuted, Policy


def wsgi(*body, status="201 Created", headers=()):
    return Counter(status, headers, list(body))


def test_a_list_is_recorded_before_it_is_handed_over_and_stays_the_same_list():
    """R45, R52: the server sees the very list, so that it can count its length as it does without us."""
    body = [b"a", b"b"]
    with Door(Counter(body=body)) as door:
        serving = door.serve()
        assert serving.result is body
        assert door.states() == ["completed"]
        assert door.call().brief == (201, True, b"ab")


def test_the_part_that_completes_the_announced_length_waits_for_the_record():
    """R45: the others go out as they come."""
    app, [] = answering(b"ab", b"cd", b"ef", length=6)
    with Door(app) as door:
        serving = door.serve()
        states = [(serving.next(), door.states()) for _ in range(3)]
        assert states == [(b"ab", ["in_flight"]), (b"cd", ["in_flight"]), (b"ef", ["completed"])]
        assert (serving.next(), door.call().brief) == (None, (201, True, b"abcdef"))
        serving.close()


def test_without_an_announced_length_the_end_waits_for_the_record():
    """R43, R45: every part goes out at once, and the client can't take the answer for whole before it is stored."""
    app, [] = answering(b"ab", b"", b"cd")
    with Door(app) as door:
        serving = door.serve()
        seen = [(serving.next(), door.states()) for _ in range(4)]
    assert seen == [(b"ab", ["in_flight"]), (b"", ["in_flight"]), (b"cd", ["in_flight"]), (None, ["completed"])]


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("body", [[], iter(())], ids=["list", "iterator"])
def test_an_answer_without_a_body_is_recorded(status, body):
    """R25: and replayed without one, and without a length."""
    announced = [("Content-Length", "5")] if status[:3] == "304" else []  # of the answer that it stands for
    with Door(app := Counter(status, [("ETag", '"1"'), *announced], body)) as door:
        door.call()
        again = door.call()
    assert (again.status, again.body, again.headers) == (
        status,
        b"",
        [("ETag", '"1"'), ("idempotent-replayed", "true")],
    )
    assert app.effects == 1


@pytest.mark.parametrize(("status", "stored"), [("404 Not Found", True), ("409 Conflict", True), ("401 No", False)])
def test_a_4xx_is_stored_but_for_the_gates(status, stored):
    """R36, R37."""
    with Door(app := Counter(status)) as door:
        door.call()
        assert (door.call().replayed, app.effects) == (stored, 1 if stored else 2)


def test_fields_are_kept_in_order_and_those_of_one_message_are_not():
    """R25, R46: bytes beyond ASCII come back as they were; what hops or names a session stays out."""
    kept = [("Location", "/o/1"), ("Link", "</a>"), ("Link", "</b>"), ("X-Name", "caf\xe9")]
    lost = [("Set-Cookie", "s=1"), ("Date", "x"), ("X-Request-Id", "7"), ("Content-Length", "8")]
    with Door(Counter(headers=kept + lost)) as door:
        first, again = door.call(), door.call()
    assert first.headers == kept + lost
    assert again.headers == [*kept, ("idempotent-replayed", "true"), ("content-length", "8")]


def test_an_odd_status_is_replayed_with_some_reason():
    """PEP 3333 wants a reason; a status without a usual one gets one too."""
    with Door(Counter("299 Fine")) as door:
        door.call()
        assert door.call().status == "299 Status"


@pytest.mark.parametrize(
    ("guarantee", "second", "state"),
    [("at_most_once", (500, True), ["completed"]), ("at_least_once", (500, False), [])],
)
def test_a_5xx_answer_is_kept_or_frees_the_key_as_the_guarantee_says(guarantee, second, state):
    """CONTRACT 5."""
    with Door(app := Counter("500 Oh"), policy=Policy(guarantee=guarantee)) as door:
        door.call()
        assert door.states() == state
        seen = door.call()
    assert ((seen.code, seen.replayed), app.effects) == (second, 1 if second[1] else 2)


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_an_exception_before_the_first_byte_reaches_the_server_and_settles(guarantee):
    """CONTRACT 5: parked, or released; the error is the application's own."""
    error = LookupError("as the test wants it")

    def app(environ, start_response):
        start_response("200 OK", [])
        raise error

    with Door(app, policy=Policy(guarantee=guarantee)) as door:
        assert door.call().error is error
        assert (door.states(), door.causes) == (
            (["parked"], ["exception"]) if guarantee == "at_most_once" else ([], [])
        )


@pytest.mark.parametrize("where", ["call", "iteration", "after the first part"])
def test_not_executed_frees_the_key_wherever_it_is_raised(where):
    """CONTRACT 5."""
    if where == "call":

        def app(environ, start_response):
            raise NotExecuted

    else:
        app, _ = answering(*([b"x"] if where.startswith("after") else []), NotExecuted())
    with Door(app) as door:
        assert isinstance(door.call().error, NotExecuted)
        assert door.states() == []


@pytest.mark.parametrize(("status", "states"), [("422 No", []), ("201 Created", ["completed"])])
def test_release_frees_the_key_of_a_refusal_only(status, states):
    """CONTRACT 5: through ``environ["twiceproof"]``, which knows its run."""
    seen = []

    def app(environ, start_response):
        attempt = environ["twiceproof"]
        seen.append((attempt.key, attempt.protected, attempt.attempt, attempt.token is not None))
        attempt.release()
        start_response(status, [])
        return [b"x"]

    with Door(app) as door:
        door.call()
        assert (door.states(), seen) == (states, [("k1", True, 1, True)])


def test_an_interrupt_in_the_handler_parks_at_once():
    """R40: a server that ends a worker in mid-handler raises SystemExit in it."""

    def app(environ, start_response):
        sys.exit(1)

    with Door(app) as door:
        with pytest.raises(SystemExit):
            door.serve()
        assert (door.states(), door.causes) == (["parked"], ["cancelled"])


def test_an_application_that_never_starts_its_answer_has_failed():
    """CONTRACT 5: what the server makes of it is its own business."""

    def app(environ, start_response):
        return []

    with Door(app) as door:
        Serving(door, environ_of()).close()
        assert (door.states(), door.causes) == (["parked"], ["cut-short"])
    with Door(lambda environ, start_response: iter(())) as door:
        door.call()
        assert (door.states(), door.causes) == (["parked"], ["exception"])


def test_an_application_that_returns_no_iterable_has_failed():
    """CONTRACT 5: at once, and not when its lease runs out."""

    def app(environ, start_response):
        start_response("200 OK", [])

    with Door(app) as door:
        assert isinstance(door.call().error, TypeError)
        assert (door.states(), door.causes) == (["parked"], ["exception"])


def test_the_store_down_at_complete_delivers_the_answer_and_stores_it_later():
    """R47."""
    with Door(app := Counter()) as door:
        door.faults.now["complete"] = DOWN
        first, meanwhile = door.call(), door.call()
        door.faults.now.clear()
        while door.states() != ["completed"]:
            pass
        again = door.call()
    assert (first.brief, meanwhile.code, again.brief, app.effects) == (
        (201, False, b"effect 1"),
        409,
        (201, True, b"effect 1"),
        1,
    )


@pytest.mark.parametrize("wrapped", ["file", "stream"])
def test_a_file_goes_out_by_the_server_s_own_means_and_its_body_is_not_kept(wrapped, tmp_path):
    """R26, R52: the wrapper is the server's own object, so that it can use sendfile; a retry is told 409."""
    (tmp_path / "f").write_bytes(b"x" * 9)
    made = []

    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "9"), ("Location", "/f")])
        made.append(environ["wsgi.file_wrapper"]((tmp_path / "f").open("rb")))
        return made[-1]

    with Door(app) as door:
        more: dict[str, Any] = {"wsgi.file_wrapper": FileWrapper}
        if wrapped == "stream":
            more = {"wsgi.file_wrapper": functools.partial(FileWrapper)}  # no class: it can't be recognised
        serving = door.serve(**more)
        assert (serving.result is made[0]) == (wrapped == "file")
        sent = [serving.next(), serving.next()]
        serving.close()
        again = door.call(**more)
    assert sent == [b"x" * 9, None]
    assert made[0].filelike.closed
    if wrapped == "file":
        assert (again.problem, again.all("location"), len(made)) == ("replay-unavailable", ["/f"], 1)
    else:
        assert again.brief == (200, True, b"x" * 9)


def test_a_second_head_replaces_the_first_while_nothing_was_sent():
    """PEP 3333: exc_info before the first byte."""

    def app(environ, start_response):
        start_response("200 OK", [("X-A", "1")])
        try:
            raise LookupError
        except LookupError:
            start_response("500 Oh", [("X-B", "2")], sys.exc_info())
        return [b"sorry"]

    with Door(app) as door:
        first, again = door.call(), door.call()
    assert (first.status, first.headers) == ("500 Oh", [("X-B", "2")])
    assert (again.brief, again.all("x-b")) == ((500, True, b"sorry"), ["2"])


@pytest.mark.parametrize("status", ["200 OK", "500 Oh"])
def test_a_second_head_after_the_first_byte_raises_the_application_s_error(status):
    """PEP 3333: also where that byte is still held back, since the application has let go of it."""

    def app(environ, start_response):
        start_response(status, [("Content-Length", "1" if status == "500 Oh" else "2")])
        yield b"x"
        try:
            raise LookupError("late")
        except LookupError:
            start_response("500 Oh", [], sys.exc_info())

    with Door(app) as door:
        seen = door.call()
    assert (seen.status, seen.body, str(seen.error)) == (status, b"x", "late")
    assert door.causes == ["exception" if status == "500 Oh" else "cut-short"]


def test_write_sends_at_once_and_is_copied():
    """PEP 3333: the old way; together with what is returned it is one answer."""
    states = []

    def app(environ, start_response):
        write = start_response("200 OK", [])
        write(b"a")
        states.append((list(serving_steps), door.states()))
        write(b"b")
        return [b"c"]

    serving_steps: list[bytes] = []

    def start_response(status, headers, exc_info=None):
        return serving_steps.append

    with Door(app) as door:
        result = door(environ_of(), start_response)
        assert (states, serving_steps, list(result)) == ([([b"a"], ["in_flight"])], [b"a", b"b"], [b"c"])
        assert door.call().brief == (200, True, b"abc")


@pytest.mark.parametrize("fails", [False, True])
def test_write_of_a_whole_5xx_waits_for_how_the_application_ends(fails):
    """CONTRACT 5: it still goes out, also if the application raises."""
    seen = []

    def app(environ, start_response):
        write = start_response("500 Oh", [("Content-Length", "2")])
        write(b"a")
        write(b"b")
        seen.append((list(sent), door.states()))
        if fails:
            raise LookupError
        return []

    sent: list[bytes] = []

    with Door(app) as door:
        try:
            sent += door(environ_of(), lambda *_: sent.append)
        except LookupError:
            assert fails
        assert (seen, b"".join(sent)) == ([([b"a"], ["in_flight"])], b"ab")
        assert door.causes == (["exception"] if fails else [None])


def test_write_of_the_last_byte_waits_for_the_record():
    """R45."""
    states = []

    def app(environ, start_response):
        write = start_response("200 OK", [("Content-Length", "2")])
        write(b"a")
        write(b"b")
        return []

    with Door(app) as door:
        list(door(environ_of(), lambda *_: lambda part: states.append((part, door.states()))))
    assert states == [(b"a", ["in_flight"]), (b"b", ["completed"])]


def list_of_one(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ab"]


def generator(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"a"
    yield b"b"


@pytest.mark.parametrize("app", [list_of_one, generator])
def test_both_sides_keep_to_pep_3333(app):
    """The standard library's validator finds nothing to complain of, on either side of the door: first and replay."""

    def inner(environ, start_response):
        del environ["twiceproof"]  # the validator wants texts only; servers and frameworks don't
        return validator(app)(environ, start_response)

    with Door(inner) as door:
        for _ in range(2):
            heads: list[object] = []

            def start_response(status, headers, exc_info=None, heads=heads):
                heads.append(status)
                return print

            result: Any = validator(door)(environ_of(CONTENT_TYPE="text/plain"), start_response)
            body = b"".join(result)
            result.close()
            assert (body, heads) == (b"ab", ["200 OK"])
        assert door.states() == ["completed"]
