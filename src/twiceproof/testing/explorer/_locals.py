"""One request and its process as the search sees them: where it rests, and what it left behind."""

from __future__ import annotations

from typing import Final, NamedTuple

from twiceproof.core import _engine as core
from twiceproof.core._background import after_renewal, is_over
from twiceproof.core._record import Done, Fenced
from twiceproof.testing.explorer._frozen import Numbered, freeze
from twiceproof.testing.explorer._paths import Asked, End, Paths, Turn
from twiceproof.testing.explorer._people import ME

NOWHERE: Final = -1


class Job(NamedTuple):
    """A write that the engine's thread repeats; ``recent`` until time passes."""

    step: int
    note: str
    recent: bool


class Local(NamedTuple):
    """One request. ``point`` is `NOWHERE` once it ended or its process died."""

    kind: int
    point: int
    dead: bool = False
    old: bool = False
    """Granted before the key became new again: what it does counts no more (R33, R42)."""
    watched: bool = False
    """Its claim is renewed (R31)."""
    overtaken: bool = False
    """It is parked, and a renewal that was sent before may still be on its way."""
    parked: int = NOWHERE
    jobs: tuple[Job, ...] = ()
    late: tuple[int, ...] = ()
    """Calls whose reply was given up, on their way to the store."""


class Locals:
    """Every state that a request can be in, by number, and how it goes on from each; all of it remembered."""

    def __init__(self, paths: Paths, steps: Numbered[Asked]) -> None:
        self._paths = paths
        self._steps = steps
        self._numbers: Numbered[Local] = Numbered()
        self._told: dict[tuple[int, int], tuple[int, End]] = {}
        self._aged: dict[tuple[int, bool], int] = {}
        self.quiet: dict[int, int] = {}
        """For each request whose process died and left nothing: the one that ended."""

    def __getitem__(self, number: int) -> Local:
        return self._numbers.values[number]

    def number(self, local: Local) -> int:
        """Return the number of a local state, with what no later move depends on dropped."""
        if not local.watched and not local.overtaken and local.parked != NOWHERE:
            local = local._replace(parked=NOWHERE)
        return self._numbers.of(local)

    def step(self, number: int) -> core.Step | None:
        """Return what a request wants done, or None where it has ended."""
        point = self._numbers.values[number].point
        return None if point == NOWHERE else self._paths.point(point).step

    def step_number(self, step: Asked) -> int:
        """Return the number of a call."""
        return self._steps.of(step, freeze(step))

    def start(self, kind: int) -> int:
        """Return a request that is about to begin."""
        return self.number(Local(kind, self._paths.start(kind)))

    def told(self, number: int, answer: int) -> tuple[int, End]:
        """Return a request after this answer, and its reply if that ended it without a run."""
        found = self._told.get((number, answer))
        if found is None:
            turn = self._paths.turn(self[number].point, answer)
            found = self._told[number, answer] = self._moved(number, turn), turn.end
        return found

    def cancelled(self, number: int) -> int:
        """Return a request that is cancelled from outside in the middle of a step (R40)."""
        step = self.step(number)
        assert step is not None
        job = core.cleanup(step)
        return self._moved(number, Turn(None, None, () if job is None else (job,)))

    def _moved(self, number: int, turn: Turn) -> int:
        local = self[number]
        point = self._paths.point(local.point)
        jobs = self._with_jobs(local.jobs, turn.jobs)
        watched, overtaken, parked = local.watched, False, local.parked
        if point.finishing and isinstance(point.step, core.DoPark):
            parked = self.step_number(point.step)
        if turn.point is not None and isinstance(self._paths.point(turn.point).step, core.DoRun):
            watched = True
        if turn.point is None and watched and not turn.jobs:
            watched, overtaken = False, parked != NOWHERE
        late = self._without_claims(local.late) if parked != NOWHERE else local.late
        where = NOWHERE if turn.point is None else turn.point
        return self.number(Local(local.kind, where, False, False, watched, overtaken, parked, jobs, late))  # noqa: FBT003

    def _without_claims(self, late: tuple[int, ...]) -> tuple[int, ...]:
        """Drop claims: one is on its way no longer than its run; see the bounds in the documentation."""
        return tuple(step for step in late if not isinstance(self._steps.values[step], core.DoClaim))

    def _with_jobs(self, jobs: tuple[Job, ...], new: tuple[core.DoLater, ...]) -> tuple[Job, ...]:
        for job in new:  # as the engine's thread keeps them: one for each nonce
            made = Job(self.step_number(job.write), job.note, recent=_matters(job))
            jobs = (*(old for old in jobs if self._nonce(old) != job.write.nonce), made)
        return tuple(sorted(jobs))

    def _nonce(self, job: Job) -> bytes:
        write = self._steps.values[job.step]
        assert isinstance(write, core.DoComplete | core.DoRelease | core.DoPark)
        return write.nonce

    def crashed(self, number: int) -> int:
        """Return a request whose process died: only what it had sent may still arrive."""
        local = self[number]
        died = Local(local.kind, NOWHERE, dead=True, late=local.late)
        number = self.number(died)
        if not died.late:
            self.quiet[number] = self.number(Local(local.kind, NOWHERE))
        return number

    def sent(self, number: int, step: int) -> int:
        """Return a request with one more call on its way whose reply nobody awaits."""
        local = self[number]
        return self.number(local._replace(late=tuple(sorted((*local.late, step)))))

    def arrived(self, number: int, step: int) -> int:
        """Return a request one of whose late calls reached the store."""
        late = list(self[number].late)
        late.remove(step)
        local = self[number]._replace(late=tuple(late))
        return self.crashed(self.number(local)) if local.dead else self.number(local)

    def job_done(self, number: int, job: Job, answer: int) -> int:
        """Return a request whose background write was answered; it is repeated where the rule says so."""
        local = self[number]
        back = self._paths.answers.values[answer]
        assert isinstance(back, Done | Fenced)
        write = self._steps.values[job.step]
        assert isinstance(write, core.DoComplete | core.DoRelease | core.DoPark)
        if not is_over(core.DoLater(write, job.note), back, recent=job.recent):
            return number
        jobs = list(local.jobs)
        jobs.remove(job)
        watched = local.watched and write.nonce != ME
        return self.number(local._replace(jobs=tuple(jobs), watched=watched))

    def renewed(self, number: int, *, fenced: bool) -> int:
        """Return a request after a renewal, with what must follow it."""
        local = self[number]
        if fenced:
            return self.number(local._replace(watched=False, overtaken=False))
        parked = None if local.parked == NOWHERE else self._steps.values[local.parked]
        assert parked is None or isinstance(parked, core.DoPark)
        job = after_renewal(parked)
        jobs = local.jobs if job is None else self._with_jobs(local.jobs, (job,))
        return self.number(local._replace(overtaken=False, jobs=jobs))

    def aged(self, number: int, *, old: bool = False) -> int:
        """Return a request after time passed: what was on its way has arrived or is lost.

        ``old``: the key is new now, so that a run which was granted before counts no more.
        """
        found = self._aged.get((number, old))
        if found is None:
            local = self[number]
            jobs = tuple(sorted(job._replace(recent=False) for job in local.jobs))
            running = old and isinstance(self.step(number), core.DoRun)
            aged = local._replace(jobs=jobs, late=(), overtaken=False, old=local.old or running)
            found = self.crashed(self.number(aged)) if aged.dead else self.number(aged)
            self._aged[number, old] = found
        return found

    def may_act(self, number: int, *, owner: bool) -> bool:
        """Whether its handler may still take effect on this incarnation: then no hook says that nothing happened."""
        step = self.step(number)
        return not self[number].old and (isinstance(step, core.DoRun) or (owner and isinstance(step, core.DoClaim)))

    def abandoned(self, number: int) -> bool:
        """Whether nobody will settle a claim of its own that is in flight, although its process lives (R47, R48)."""
        local = self[number]
        return local.point == NOWHERE and not (local.dead or local.jobs or local.late or local.overtaken)


def _matters(job: core.DoLater) -> bool:
    """Whether the rule on when a job is over asks how old it is."""
    return not all(is_over(job, back, recent=True) for back in (Done(), Fenced()))
