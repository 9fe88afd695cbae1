"""Changes of jobs and arrays by their owners: hold and release, and other values in the
spec.

Each request that changes something returns after its commit.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gpuyard.controller import array_events, owner_transitions
from gpuyard.controller.array_events import OF_TASKS
from gpuyard.controller.core import SLICE, Core
from gpuyard.domain.deadlines import refuse_past
from gpuyard.domain.errors import InvalidInputError, NotFoundError, RefusedError
from gpuyard.domain.jobspec import JobKind, JobSpec
from gpuyard.domain.spec_values import STORED
from gpuyard.domain.states import JobState
from gpuyard.domain.validation import faults_of
from gpuyard.scheduler.jobs import LiveJob

# gpuyard itself submits and ends these.
_OWN_KINDS = (JobKind.MODEL, JobKind.WORKER)


class JobChanges:
    """Carries out changes of jobs on the core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def hold(
        self, job_ids: Sequence[str], tasks: Sequence[str] = ()
    ) -> list[str]:
        """Hold these jobs, all or none, and those of the `tasks` of arrays that still
        wait: they stay queued until they are released. Returns which these are.

        Raises RefusedError for a job that does not wait in the queue, and if nothing
        does.
        """
        return await self._set_held(job_ids, tasks, held=True)

    async def release(
        self, job_ids: Sequence[str], tasks: Sequence[str] = ()
    ) -> list[str]:
        """Release these jobs, all or none, and those of the `tasks` of arrays that
        still wait; one that is not held stays as it is. Returns which these are.

        Raises RefusedError for a job that does not wait in the queue, and if nothing
        does.
        """
        return await self._set_held(job_ids, tasks, held=False)

    async def _set_held(
        self, job_ids: Sequence[str], tasks: Sequence[str], *, held: bool
    ) -> list[str]:
        core = self._core
        await core.folded()
        await core.committed()  # of a submission just before
        rows = core.queries.jobs_by_id(job_ids)
        for job_id in job_ids:
            if job_id not in rows:
                raise NotFoundError(f"There is no job {job_id}.", "See `gpuyard jobs`.")
        jobs = [self._waiting(rows[job_id], held=held) for job_id in job_ids]
        self._emit_held(jobs, held=held)
        done = list(job_ids)
        commits: list[asyncio.Future[None]] = []
        for start in range(0, len(tasks), SLICE):
            found = [core.view.jobs.get(i) for i in tasks[start : start + SLICE]]
            waiting = [job for job in found if job and job.state is JobState.QUEUED]
            self._emit_held(waiting, held=held)
            done += [job.id for job in waiting]
            commits.append(core.committed())
            await asyncio.sleep(0)
        if not done:
            raise RefusedError(
                "None of its tasks waits in the queue.", "There is nothing to do."
            )
        core.schedule()
        await asyncio.gather(*commits, core.committed())
        return done

    def _emit_held(self, jobs: Sequence[LiveJob], *, held: bool) -> None:
        now = self._core.clock()
        changed = [job for job in jobs if job.held is not held]
        events = [owner_transitions.held(job, now, held=held) for job in changed]
        self._core.emit(events)

    def _waiting(self, row: Mapping[str, Any], *, held: bool) -> LiveJob:
        """The job, which has no attempt; else RefusedError."""
        verb = "held" if held else "released"
        job = self._core.view.jobs.get(row["id"])
        if row["kind"] in _OWN_KINDS:
            raise RefusedError(
                f"Job {row['id']} belongs to a {_owner(row)} and cannot be {verb}.",
                _remedy_of(row),
            )
        if job is None or job.state is not JobState.QUEUED:
            state = job.state if job else row["state"]
            remedy = "There is nothing to do."
            if job and held:
                remedy = "`gpuyard cancel` ends it; `gpuyard resume` goes on later."
            raise RefusedError(
                f"Job {row['id']} is {state}; only a queued job can be {verb}.", remedy
            )
        return job

    async def update(self, job_id: str, changes: Mapping[str, Any]) -> None:
        """Give a job another `name`, `priority`, `timeout_s` or `deadline` (None: none
        any more), without a new attempt.

        Raises RefusedError for what cannot change any more.
        """
        core = self._core
        await core.committed()  # of an update just before: it must not be undone
        row = core.queries.job(job_id)
        assert row is not None
        self._refuse_late(row, changes)
        if changes.get("deadline") is not None:
            refuse_past(changes["deadline"], core.clock())
        spec = changed_spec(core.queries.specs([job_id])[job_id], changes)
        core.emit([owner_transitions.updated(row, changes, spec, core.clock())])
        core.schedule()
        await core.committed()

    def _refuse_late(self, row: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        """RefusedError for a value that is not used any more."""
        job = self._core.view.jobs.get(row["id"])
        if row["kind"] in _OWN_KINDS:
            raise RefusedError(
                f"Job {row['id']} belongs to a {_owner(row)} and cannot be changed.",
                _remedy_of(row),
            )
        if job is None and changes.keys() & {"priority", "timeout_s", "deadline"}:
            raise RefusedError(
                f"Job {row['id']} is over; only its name can change.",
                "`gpuyard resume` takes --priority, --timeout, --deadline and --gpus.",
            )
        if job and job.attempt_id and "timeout_s" in changes:
            raise RefusedError(
                f"Job {row['id']} is {job.state}; the time limit of an attempt is fixed"
                " when it starts.",
                "Cancel it, and give `gpuyard resume` another --timeout.",
            )

    async def update_array(self, array_id: str, changes: Mapping[str, Any]) -> None:
        """Give an array another limit of how many tasks run at once (`at_most`, None:
        no limit), and its tasks that are not over another `priority` or `deadline`
        (None: none any more).

        Raises RefusedError for these two if the array is over.
        """
        core = self._core
        await core.folded()
        await core.committed()
        view = core.view
        live = [job for job in view.jobs.values() if job.array_id == array_id]
        of_tasks = {name: changes[name] for name in OF_TASKS if name in changes}
        if of_tasks and not live:
            raise RefusedError(
                f"The array {array_id} is over; only its limit can change.",
                "`gpuyard resume` takes --priority and --deadline.",
            )
        if changes.get("deadline") is not None:
            refuse_past(changes["deadline"], core.clock())
        row = core.queries.array(array_id)
        assert row is not None
        spec = core.queries.specs([array_id])[array_id]
        now = core.clock()
        core.emit([array_events.updated(row, changes, spec, now)])
        commits = [core.committed()]
        if of_tasks:
            commits += await self._change_tasks(array_id, live, of_tasks)
        core.schedule()
        await asyncio.gather(*commits, core.committed())

    async def _change_tasks(
        self, array_id: str, tasks: Sequence[LiveJob], changes: Mapping[str, Any]
    ) -> list[asyncio.Future[None]]:
        """Give those of the tasks of an array that are not over other values; returns
        the commits.
        """
        core = self._core
        commits: list[asyncio.Future[None]] = []
        own_specs = core.queries.own_specs(array_id)
        now = core.clock()
        for start in range(0, len(tasks), SLICE):
            events = [
                array_events.task_updated(job.id, changes, own_specs.get(job.id), now)
                for job in tasks[start : start + SLICE]
                if job.id in core.view.jobs
            ]
            core.emit(events)
            commits.append(core.committed())
            await asyncio.sleep(0)
        return commits


def _owner(row: Mapping[str, Any]) -> str:
    return "batch" if row["kind"] == JobKind.WORKER else "model"


def _remedy_of(row: Mapping[str, Any]) -> str:
    if row["kind"] == JobKind.WORKER:
        return "`gpuyard batch cancel` ends the batch."
    return "`gpuyard models unload` ends the model's server."


def changed_spec(body: Mapping[str, Any], changes: Mapping[str, Any]) -> JobSpec:
    """The spec in the ledger (`body`) with other values; InvalidInputError."""
    try:
        return JobSpec.model_validate({**body, **changes}, context=STORED)
    except ValidationError as error:
        raise InvalidInputError(faults_of(error, JobSpec)) from None


def with_gpus(body: Mapping[str, Any], gpus: Mapping[str, Any]) -> dict[str, Any]:
    """The resources of the spec in the ledger (`body`) with other GPUs: what `gpus`
    leaves open stays as it was.
    """
    resources: Mapping[str, Any] = body.get("resources", {})
    before: Mapping[str, Any] = resources.get("gpus", {})
    return {**resources, "gpus": {**before, **gpus}}
