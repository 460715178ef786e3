"""What a scene is, and how one is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from twiceproof.cli._demo.stage import Stage
from twiceproof.cli._demo.wire import Lost, Reply


@dataclass(slots=True)
class Checks:
    """What a scene looks at beside the answers in its line."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def that(self, holds: bool, otherwise: str) -> None:  # noqa: FBT001  # reads as a sentence
        """Note ``otherwise`` as a difference unless it holds."""
        if not holds:
            self.differ(otherwise)

    def differ(self, sentence: str) -> None:
        """Note a difference, once."""
        if sentence not in self.differences:
            self.differences.append(sentence)

    def note(self, sentence: str) -> None:
        """Say something that belongs to the result although nothing differs."""
        self.notes.append(sentence)


Play = Callable[[Stage, Checks], str]
"""Plays a scene and returns what was seen, in the words of `Scene.expected`."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One promise, played over real sockets.

    ``expected`` is what must be seen: these very words, or where ``exact`` is false what the scene's own checks say.
    ``intents`` is how many things clients wanted done, ``effects`` how many must have happened. ``outage``: it takes
    the store away.
    """

    name: str
    expected: str
    play: Play
    intents: int = 1
    effects: int = 1
    exact: bool = True
    outage: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a scene. ``detail`` says what differs, or what else there is to say."""

    name: str
    expected: str
    seen: str
    effects: int
    ok: bool
    detail: tuple[str, ...]


def perform(scene: Scene, stage: Stage) -> Result:
    """Play one scene and judge it; a failure in it is a difference, and the next scene can go on."""
    checks = Checks()
    before = after = 0
    try:
        before = stage.books().effects
        seen = scene.play(stage, checks)
        after = stage.books().effects
    except Lost as error:
        seen = "no answer"
        checks.differ(str(error))
    except Exception as error:  # noqa: BLE001  # a service may answer whatever it likes; the other scenes go on
        seen = "an answer that makes no sense"
        checks.differ(f"{type(error).__name__}: {error}")
    effects = max(0, after - before)
    if not checks.differences:
        checks.that(seen == scene.expected or not scene.exact, f"expected {scene.expected}")
    checks.that(effects == scene.effects, f"{effects} effects instead of {scene.effects}")
    return Result(
        scene.name,
        scene.expected,
        seen,
        effects,
        not checks.differences,
        (*checks.differences, *checks.notes),
    )


def tally(replies: Iterable[Reply]) -> str:
    """Return what came how often, such as 49 times 409."""
    counted = Counter(str(reply) for reply in replies)
    return ", ".join(f"{count} × {answer}" for answer, count in sorted(counted.items()))  # noqa: RUF001  # times


def distinct(replies: Iterable[Reply]) -> str:
    """Return each answer that came, once."""
    return " or ".join(dict.fromkeys(str(reply) for reply in replies))
