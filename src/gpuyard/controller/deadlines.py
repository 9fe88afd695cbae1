"""Tells the owners of jobs once that a deadline will probably be missed, and once that
it was.

The row of the job says what its owner was told, so that the next server does not
repeat it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.domain.deadlines import in_words
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.scheduler.deadlines import Told
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.lateness import look, warning

# So many jobs are looked at before one decision; more follow at once.
MOST_LOOKED_AT = 100
_RETRY_S = 1.0
_KINDS = {
    Told.LATE: EventKind.JOB_WARNING,
    Told.MISSED: EventKind.JOB_DEADLINE_MISSED,
}


class Deadlines:
    """The deadlines of an instance, as an extension of the controller."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def start(self) -> None:
        """Nothing: the view knows when to look."""

    def reload(self) -> None:
        """Nothing: the new view knows it, too."""

    @property
    def idle(self) -> bool:
        """Always: a job with a deadline is live."""
        return True

    async def close(self) -> None:
        """Nothing: it has no tasks."""

    def before_deciding(self) -> None:
        """Look at the jobs whose time has come. The decision wakes for the next."""
        core = self._core
        now = core.clock()
        due = core.view.deadlines.take_due(now, MOST_LOOKED_AT)
        found: dict[Told, list[LiveJob]] = {}
        for job_id in due:
            job = core.view.jobs[job_id]
            told = look(core.view, job, now, self._eta_s(job))
            if told is not None:
                found.setdefault(told, []).append(job)
        for told, jobs in found.items():
            self._tell(jobs, told, now)

    def _tell(self, jobs: Sequence[LiveJob], told: Told, now: float) -> None:
        """Tell it of each job in an event of its own; of the tasks of an array, in
        one.
        """
        rows = self._core.queries.jobs_by_id([job.id for job in jobs])
        written = [job for job in jobs if job.id in rows]
        for job in jobs:
            if job.id not in rows:  # its submission is not committed yet
                self._core.view.deadlines.look_at(job, now + _RETRY_S)
        in_arrays = sorted(written, key=_array)
        for array_id, group in groupby(in_arrays, key=_array):
            same = list(group)
            parts = [same] if array_id else [[job] for job in same]
            self._core.emit([self._event(part, rows, told, now) for part in parts])

    def _event(
        self,
        jobs: Sequence[LiveJob],
        rows: Mapping[str, Mapping[str, Any]],
        told: Told,
        now: float,
    ) -> Event:
        changes: list[Change] = []
        for job in jobs:
            words = warning(self._core.view, job, told, now, self._eta_s(job))
            changes.append(told_change(job, rows[job.id]["warnings"], told, words))
        first = jobs[0]
        tasks = {} if first.array_id is None else {"tasks": len(jobs)}
        return _event_of(first, changes, told, now, tasks)

    def _eta_s(self, job: LiveJob) -> float | None:
        """What the running program of the job says of how long it takes."""
        return self._core.progress.get(job.id, {}).get("eta_s")


def _array(job: LiveJob) -> str:
    return job.array_id or ""


def told_change(
    job: LiveJob, warnings: Iterable[str] | None, told: Told, words: str
) -> Change:
    """The row of the job, of which that is told now; `warnings` are those before."""
    values = {"deadline_told": int(told), "warnings": [*(warnings or ()), words]}
    return Change(Table.JOBS, job.id, values)


def _event_of(
    job: LiveJob,
    changes: Sequence[Change],
    told: Told,
    now: float,
    more: Mapping[str, Any],
) -> Event:
    deadline = job.deadline or 0.0
    info: dict[str, Any] = {"deadline": deadline, "state": job.state, **more}
    if told is Told.LATE:
        detail = f"It will probably miss its deadline, {in_words(deadline)}."
        info |= {"topic": "deadline", "detail": detail}
    return Event(_KINDS[told], now, tuple(changes), job.id, info)


def ended_late(core: Core, job: LiveJob, ended_at: float) -> list[Event]:
    """The event that a job has missed its deadline which ends now, if nobody was told
    before: no server was there in time. `ended_at`: when it ended (UTC seconds).
    """
    is_told = job.deadline_told == Told.MISSED
    if job.deadline is None or is_told or ended_at <= job.deadline:
        return []
    row = core.queries.job(job.id) or {}
    words = warning(core.view, job, Told.MISSED, ended_at)
    change = told_change(job, row.get("warnings"), Told.MISSED, words)
    return [_event_of(job, [change], Told.MISSED, core.clock(), {})]
