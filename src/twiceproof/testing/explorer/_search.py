"""Breadth first through every world that can come about, so that the first trace found is a shortest one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from twiceproof.testing.explorer._people import Bounds, Scene
from twiceproof.testing.explorer._story import told
from twiceproof.testing.explorer._world import FIRST, Snapshot, Step, World

Place: TypeAlias = tuple[Snapshot, int]
"""A world, and what is left of the bounds."""


@dataclass(slots=True)
class Finding:
    """What the search of one scene came to. ``cut``: the bound on states ended it."""

    scene: str
    states: int
    moves: int
    seconds: float
    broken: str | None = None
    trace: list[str] = field(default_factory=list)
    cut: bool = False


def search(scene: Scene, bounds: Bounds, *, merge: bool = True) -> Finding:
    """Walk through a scene until something is broken, all of it was seen, or ``bounds.states`` were."""
    began = time.perf_counter()
    found = _walk(World(scene, bounds, merge=merge), bounds.states, None)
    if found.broken is not None:  # once more, and remember the way: what is not broken needs no room for that
        found = _walk(World(scene, bounds, merge=merge), bounds.states, {})
    found.scene, found.seconds = scene.name, time.perf_counter() - began
    return found


def _walk(world: World, most: int, ways: dict[Place, Place] | None) -> Finding:
    below = world.budget.below
    start: Place = (world.alike(world.start())[0], world.budget.full)
    seen: dict[Snapshot, int] = {start[0]: below[start[1]]}
    level = [start]
    states = count = 0
    while level:
        following: list[Place] = []
        for place in level:
            for step in world.steps(*place):
                count += 1
                after, left = step.world, step.left
                broken = step.move.broken
                if broken is None:
                    after, _ = world.alike(after)
                    worth = seen.get(after, 0)
                    if worth >> left & 1:
                        continue
                    seen[after] = worth | below[left]
                    following.append((after, left))
                    if ways is not None:
                        ways[after, left] = place
                    broken = None if worth else world.moves.broken(after[0], after[FIRST:])
                if broken is not None:
                    trace = [] if ways is None else _trace(world, ways, place, step)
                    return Finding("", states + 1, count, 0.0, broken, trace)
        states += len(level)
        if states >= most:
            return Finding("", states, count, 0.0, cut=True)
        level = following
    return Finding("", states, count, 0.0)


def _trace(world: World, ways: dict[Place, Place], last: Place, step: Step) -> list[str]:
    """Return the way from the start to a broken promise, in words; each request keeps its letter throughout."""
    way = [last]
    while way[-1] in ways:
        way.append(ways[way[-1]])
    way.reverse()
    names: list[str] = [chr(ord("A") + who) for who in range(world.people)]
    lines: list[str] = []
    for before, after in pairwise(way):
        for taken in world.steps(*before):
            same, order = world.alike(taken.world)
            if (same, taken.left) == after:
                lines.append(told(world, before[0], taken, names))
                names = [names[who] for who in order]
                break
    return [*lines, told(world, last[0], step, names)]
