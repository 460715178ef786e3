"""A scene is as promised only where everything about it is."""

from typing import Any, cast

import pytest

from twiceproof.cli._demo.scene import Checks, Result, Scene, distinct, perform, tally
from twiceproof.cli._demo.stage import Books, Stage
from twiceproof.cli._demo.wire import Lost, Reply


class Service:
    """Books in which each scene may write; all that judging a scene needs."""

    def __init__(self) -> None:
        self.effects = 3

    def books(self) -> Books:
        return Books(self.effects, self.effects, ())


def judged(scene: Scene) -> Result:
    return perform(scene, cast("Stage", Service()))


def pay(stage: Any, checks: Checks, effects: int = 1, seen: str = "201") -> str:
    stage.effects += effects
    return seen


def test_a_scene_that_keeps_its_promise_is_as_promised():
    """What was expected was seen, with as many effects as there should be; notes are no differences."""

    def noted(stage: Stage, checks: Checks) -> str:
        checks.note("by the way")
        return pay(stage, checks)

    assert judged(Scene("s", "201", noted)) == Result("s", "201", "201", 1, ok=True, detail=("by the way",))


@pytest.mark.parametrize(
    ("scene", "seen", "effects", "detail"),
    [
        (Scene("other answer", "201", lambda s, c: pay(s, c, seen="500")), "500", 1, ("expected 201",)),
        (Scene("two effects", "201", lambda s, c: pay(s, c, 2)), "201", 2, ("2 effects instead of 1",)),
        (Scene("no effect", "201", lambda s, c: pay(s, c, 0)), "201", 0, ("0 effects instead of 1",)),
        (Scene("an effect too many", "201", pay, effects=0), "201", 1, ("1 effects instead of 0",)),
    ],
    ids=lambda value: value.name if isinstance(value, Scene) else None,
)
def test_a_scene_that_differs_says_in_what(scene: Scene, seen: str, effects: int, detail: tuple[str, ...]):
    """Another answer or another number of effects is a difference, told in a sentence."""
    assert judged(scene) == Result(scene.name, "201", seen, effects, ok=False, detail=detail)


def test_a_failed_check_is_a_difference_although_the_answer_is_right():
    """What a scene looks at beside its answers counts too, once however often it is seen."""

    def unlike(stage: Stage, checks: Checks) -> str:
        checks.that(holds=False, otherwise="the bodies differ")
        checks.that(holds=True, otherwise="never said")
        checks.that(holds=False, otherwise="the bodies differ")
        return pay(stage, checks)

    assert judged(Scene("s", "201", unlike)) == Result("s", "201", "201", 1, ok=False, detail=("the bodies differ",))


def test_a_scene_without_exact_words_is_judged_by_its_checks():
    """Where many outcomes keep the promise, the words may be others."""
    scene = Scene("race", "one 201, rest 409", lambda s, c: pay(s, c, seen="48 and 1"), exact=False)
    assert judged(scene).ok


@pytest.mark.parametrize("error", [Lost("no answer came"), KeyError("token")])
def test_a_scene_that_breaks_off_is_a_difference_and_no_end(error: Exception):
    """A service that answers nothing, or nonsense, fails its scene; the next one is played all the same."""

    def broken(stage: Stage, checks: Checks) -> str:
        raise error

    result = judged(Scene("s", "201", broken))
    assert (result.ok, str(error.args[0]) in result.detail[0]) == (False, True)


def test_answers_are_summed_up():
    """Many answers are told in a few words, in an order that doesn't depend on who came first."""
    replies = [Reply(409, (), b""), Reply(201, (), b""), Reply(409, (), b"")]
    assert (tally(replies), distinct(replies)) == ("1 × 201, 2 × 409", "409 or 201")
