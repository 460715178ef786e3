"""Answers that come in parts, and how they end: R26, R39, R43, R45, R50, R51; ``close`` is called once (B45)."""

import tracemalloc

import pytest

from tests.support.wsgi_door import Door, Serving, answering, environ_of
from twiceproof import Policy


def test_the_first_part_goes_out_before_the_second_is_asked_for():
    """R43, R52: nothing waits for what comes after it."""
    app, made = answering(b"a", b"b", b"c")
    with Door(app) as door:
        serving = door.serve()
        steps = [(serving.next(), made[0].asked) for _ in range(4)]
        assert steps == [(b"a", 1), (b"b", 2), (b"c", 3), (None, 4)]
        serving.close()
        assert (door.call().brief, made[0].closed) == ((201, True, b"abc"), 1)


def test_an_application_that_is_a_generator_runs_when_it_is_asked():
    """PEP 3333: its head comes with its first part, and it is recorded like any other."""

    def app(environ, start_response):
        start_response("200 OK", [])
        yield b"a"
        yield b"b"

    with Door(app) as door:
        serving = door.serve()
        assert serving.seen.status == ""
        assert (serving.next(), serving.seen.status) == (b"a", "200 OK")
        serving.next(), serving.next()
        serving.close()
        assert door.call().brief == (200, True, b"ab")


@pytest.mark.parametrize("size", [10, 11])
def test_a_stream_is_kept_up_to_its_bound(size):
    """R43, R26: beyond it the answer is completed without its body."""
    app, made = answering(b"x" * 5, b"x" * (size - 5))
    with Door(app, policy=Policy(max_response_bytes=10)) as door:
        assert door.call().body == b"x" * size
        again = door.call()
    assert (again.replayed, again.problem) == ((True, "") if size == 10 else (False, "replay-unavailable"))
    assert [one.closed for one in made] == [1]


def test_an_event_stream_is_completed_without_its_body():
    """R43."""

    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        yield b"data: 1\n\n"

    with Door(app) as door:
        assert (door.call().body, door.call().problem) == (b"data: 1\n\n", "replay-unavailable")


def test_memory_stays_bounded_in_a_long_stream():
    """R43: what is over the bound is not kept."""

    def app(environ, start_response):
        start_response("200 OK", [])
        for _ in range(400):
            yield bytes(100_000)

    with Door(app) as door:
        serving = door.serve()
        serving.next()
        tracemalloc.start()
        size = sum(len(part) for part in serving.iterator)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        serving.close()
    assert (size, peak < 3_000_000) == (39_900_000, True)


@pytest.mark.parametrize("length", [None, 6], ids=["unannounced", "announced"])
@pytest.mark.parametrize(("guarantee", "states"), [("at_most_once", ["parked"]), ("at_least_once", [])])
def test_an_answer_cut_short_is_not_stored_as_finished(length, guarantee, states):
    """R50: the error reaches the server, which breaks the connection; the iterable is closed once."""
    app, made = answering(b"ab", LookupError("late"), length=length)
    with Door(app, policy=Policy(guarantee=guarantee)) as door:
        seen = door.call()
        assert (seen.body, str(seen.error), door.states()) == (b"ab", "late", states)
        assert (door.causes, made[0].closed) == (["cut-short"] * len(states), 1)


def test_an_error_before_the_first_part_is_an_exception():
    """R50: nothing was sent, empty parts are not."""
    app, _ = answering(b"", LookupError("early"))
    with Door(app) as door:
        door.call()
        assert door.causes == ["exception"]


@pytest.mark.parametrize("length", [None, 4], ids=["unannounced", "announced"])
def test_a_client_that_leaves_half_way_cuts_the_answer_short(length):
    """R50, B45: the server closes without asking for the rest; ``close`` reaches the application, once."""
    app, made = answering(b"ab", b"cd", length=length)
    with Door(app) as door:
        serving = door.serve()
        serving.next()
        serving.close()
        serving.close()
        assert (door.states(), door.causes, made[0].closed) == (["parked"], ["cut-short"], 1)


def test_a_client_that_leaves_with_the_last_part_changes_nothing():
    """R45, R50: the answer was recorded before that part went out."""
    app, made = answering(b"ab", b"cd", length=4)
    with Door(app) as door:
        serving = door.serve()
        serving.next(), serving.next()
        serving.close()
        assert (door.call().brief, made[0].closed) == ((201, True, b"abcd"), 1)


@pytest.mark.parametrize(("length", "parts"), [(5, [b"ab", b"cd"]), (3, [b"ab", b"cd"])], ids=["less", "more"])
def test_a_body_of_another_length_than_announced_is_not_kept(length, parts):
    """R50: its client saw a broken answer."""
    app, _ = answering(*parts, length=length)
    with Door(app) as door:
        assert (door.call().body, door.call().problem) == (b"abcd", "replay-unavailable")


@pytest.mark.parametrize("length", [None, 4], ids=["unannounced", "announced"])
def test_a_5xx_is_settled_when_the_application_has_closed(length):
    """CONTRACT 5: its last part waits; the first goes out at once."""
    app, made = answering(b"ab", b"cd", status="500 Oh", length=length)
    with Door(app) as door:
        serving = door.serve()
        assert (serving.next(), made[0].asked) == (b"ab", 1)
        last = serving.next()
        assert (last, made[0].closed, door.states()) == (
            (b"cd", 1, ["completed"]) if length else (b"cd", 0, ["in_flight"])
        )
        assert serving.next() is None
        assert (made[0].closed, door.states()) == (1, ["completed"])
        serving.close()
        assert (made[0].closed, door.call().brief) == (1, (500, True, b"abcd"))


@pytest.mark.parametrize("length", [None, 4], ids=["unannounced", "announced"])
@pytest.mark.parametrize("where", ["iteration", "close"])
def test_a_5xx_whose_application_fails_after_it_is_an_exception(length, where):
    """CONTRACT 5: the answer still goes out, and the server hears of the error."""
    error = LookupError("late")
    app, made = answering(
        b"ab",
        b"cd",
        *([error] if where == "iteration" else []),
        status="500 Oh",
        length=length,
        close=error if where == "close" else None,
    )
    with Door(app) as door:
        seen = door.call()
        assert (seen.body, seen.error, made[0].closed) == (b"abcd", error, 1)
        cut = where == "iteration" and length is None  # there was no last part to hold
        assert door.causes == ["cut-short" if cut else "exception"]


@pytest.mark.parametrize("length", [None, 4], ids=["unannounced", "announced"])
def test_an_error_in_close_after_a_recorded_answer_changes_nothing(length):
    """R51: the record stays, an event says so, and the server hears of it."""
    error = LookupError("late")
    app, made = answering(b"ab", b"cd", length=length, close=error)
    with Door(app) as door:
        seen = door.call()
        assert (seen.body, seen.error, made[0].closed) == (b"abcd", error, 1)
        assert (door.states(), door.events[-1]) == (["completed"], ("completed", "late-error"))


def test_an_error_after_the_announced_length_changes_nothing():
    """R51."""
    app, _ = answering(b"abcd", LookupError("late"), length=4)
    with Door(app) as door:
        assert str(door.call().error) == "late"
        assert (door.call().replayed, ("completed", "late-error") in door.events) == (True, True)


def test_an_error_in_close_of_an_unfinished_answer_settles_it():
    """R50: a client that left, and an application that fails over it."""
    app, made = answering(b"ab", b"cd", close=LookupError("late"))
    with Door(app) as door:
        serving = door.serve()
        serving.next()
        with pytest.raises(LookupError):
            serving.close()
        assert (door.causes, made[0].closed) == (["cut-short"], 1)


@pytest.mark.parametrize("key", [None, "k1"])
def test_close_is_called_once_for_every_request(key):
    """B45: protected or not, first or refused, the application's iterables are closed once each."""
    app, made = answering(b"ab")
    with Door(app) as door:
        for _ in range(3):
            door.call(key=key)
    assert [one.closed for one in made] == ([1, 1, 1] if key is None else [1])


def test_an_iterable_without_close_is_fine():
    """PEP 3333: ``close`` is optional."""
    with Door(lambda environ, start_response: start_response("200 OK", []) and iter([b"a"])) as door:
        serving = Serving(door, environ_of())
        assert (serving.next(), serving.next()) == (b"a", None)
        serving.close()
        assert door.states() == ["completed"]
