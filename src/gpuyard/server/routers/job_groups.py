"""`/api/v1/jobs:cancel`, `:wait`, `:hold` and `:release`: many jobs in one request."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Annotated, Any, Self

import msgspec
from fastapi import Request, Response
from pydantic import BaseModel, Field, model_validator

from gpuyard.controller.access import Action
from gpuyard.controller.users import Identity
from gpuyard.domain.jobs import JobOutcome
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.states import TERMINAL, JobState
from gpuyard.domain.strict_model import StrictModel
from gpuyard.ledger.queries import JobFilter
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import (
    changes_only_own,
    check_own,
    identity_of,
    visibility_of,
)

# Not below `/jobs/`, where any word is the name of a job.
router = api_router(tag="jobs")
_MOST = 100_000
# The server of a model and the worker of a batch end with these.
_SUBMITTED = (JobKind.COMMAND, JobKind.SCRIPT, JobKind.LLM)
References = Annotated[list[str], Field(min_length=1, max_length=_MOST)]


class CancelRequest(StrictModel):
    """Which jobs: those in `jobs` (ids, ends of ids, names), or `all` that are not
    over, or those that are not over and meet every condition of `state`, `name` (with
    `*` and `?`), `project`, `user`, `label` and `since` (UTC seconds).

    Conditions and `all` mean only jobs that somebody submitted: the server of a model
    and the worker of a batch end with these.
    """

    jobs: References | None = None
    all: bool = False
    state: list[JobState] | None = None
    name: str | None = None
    project: str | None = None
    user: str | None = None
    label: dict[str, str] | None = None
    since: float | None = None
    dry_run: bool = Field(
        default=False, description="Cancel nothing, and say which these are."
    )

    @property
    def has_conditions(self) -> bool:
        """True when it describes the jobs."""
        conditions = (
            self.state,
            self.name,
            self.project,
            self.user,
            self.label,
            self.since,
        )
        return any(condition is not None for condition in conditions)

    @model_validator(mode="after")
    def _says_which_once(self) -> Self:
        ways = (self.jobs is not None, self.all, self.has_conditions)
        if sum(ways) != 1:
            fault = "names jobs in more than one way" if any(ways) else "names no job"
            raise ValueError(
                f"{fault}; give jobs, or all, or conditions such as state, name, label"
            )
        return self

    @model_validator(mode="after")
    def _can_be_cancelled(self) -> Self:
        for state in self.state or ():
            if state.terminal:
                live = ", ".join(s for s in JobState if s not in TERMINAL)
                raise ValueError(f"state: a job that is {state} is over; use {live}")
        return self

    def as_filter(self) -> JobFilter:
        """The jobs that it describes."""
        states = self.state or [state for state in JobState if not state.terminal]
        return JobFilter(
            states=[state.value for state in states],
            kinds=[kind.value for kind in _SUBMITTED],
            names=[] if self.name is None else [self.name],
            project=self.project,
            user=self.user,
            labels=self.label or {},
            since=self.since,
        )


class CancelledJob(BaseModel):
    """A job, its state before, and its state after that. One whose program still ends
    is not over yet. The task of an array has the id of that and its index.
    """

    id: str
    array_id: str | None = None
    array_index: int | None = None
    was: JobState
    state: JobState


class CancelledJobs(BaseModel):
    """What became of each job, in the order of the request, else oldest first."""

    items: list[CancelledJob]
    next: None = None


class ManyJobs(StrictModel):
    """Some jobs: their ids, ends of ids, or names."""

    jobs: References


class HeldJob(BaseModel):
    """A queued job, and whether it is held."""

    id: str
    held: bool


class HeldJobs(BaseModel):
    """The jobs in the order of the request."""

    items: list[HeldJob]
    next: None = None


class WaitRequest(StrictModel):
    """For which jobs (ids, ends of ids, names), and how long at most."""

    jobs: References
    timeout_s: float = Field(default=10.0, ge=0, le=60)


class JobOutcomes(BaseModel):
    """How those ended that are over, in the order of the request; of the others, how
    many are in each state.
    """

    items: list[JobOutcome]
    waiting: dict[JobState, int]
    next: None = None


@router.post("/jobs:cancel", response_model=CancelledJobs)
async def cancel_jobs(
    request: Request, app_state: TheAppState, body: CancelRequest
) -> Response:
    """End many jobs in one request. Idempotent; jobs that are over stay as they are.

    If one of `jobs` is not known, or may not be changed by who asks, nothing is
    cancelled. `all` and conditions mean only jobs that may be.
    """
    requests = app_state.controller.requests
    if body.jobs is not None:
        visibility = visibility_of(request.scope, app_state.controller)
        job_ids = await requests.lookup.find_many(body.jobs, visibility)
        await check_own(request.scope, app_state.controller, job_ids)
    else:
        job_ids = await _meant(app_state, body, identity_of(request.scope))
    before = await _outcomes(app_state, job_ids)
    if body.dry_run:
        after = before
    else:
        await requests.cancel_many(job_ids)
        after = await _outcomes(app_state, job_ids)
    items = [
        {
            "id": job_id,
            "array_id": before[job_id]["array_id"],
            "array_index": before[job_id]["array_index"],
            "was": before[job_id]["state"],
            "state": after[job_id]["state"],
        }
        for job_id in job_ids
        if job_id in before and job_id in after  # history may have ended
    ]
    # Not through the models: of 10,000 jobs, that would hold up all others.
    answer = msgspec.json.encode({"items": items, "next": None})
    return Response(answer, media_type="application/json")


async def _meant(
    app_state: AppState, body: CancelRequest, identity: Identity
) -> list[str]:
    """The jobs that the conditions describe, and that who asks may change."""
    access = app_state.controller.access
    wanted = replace(body.as_filter(), hidden=access.visibility_of(identity).hidden)
    is_only_own = wanted.project is None and changes_only_own(identity)
    if is_only_own:
        if wanted.user not in (None, identity.user):
            return []
        wanted = replace(wanted, user=identity.user)
    job_ids = await asyncio.to_thread(app_state.queries.job_ids, wanted)
    if access.changes_all(identity):
        return job_ids
    belongings = await asyncio.to_thread(app_state.queries.belongings_of, job_ids)
    return [
        job_id
        for job_id in job_ids
        if access.may(identity, Action.CHANGE, *belongings[job_id])
    ]


@router.post("/jobs:hold")
async def hold_jobs(
    request: Request, app_state: TheAppState, body: ManyJobs
) -> HeldJobs:
    """Hold queued jobs, all or none: none of them starts before its release. An array
    means its tasks that wait.
    """
    job_ids, tasks = await _waiting(request, app_state, body.jobs)
    held = await app_state.controller.changes.hold(job_ids, tasks)
    return HeldJobs(items=[HeldJob(id=job_id, held=True) for job_id in held])


@router.post("/jobs:release")
async def release_jobs(
    request: Request, app_state: TheAppState, body: ManyJobs
) -> HeldJobs:
    """Release queued jobs, all or none; one that is not held stays as it is. An array
    means its tasks that wait.
    """
    job_ids, tasks = await _waiting(request, app_state, body.jobs, starts=True)
    released = await app_state.controller.changes.release(job_ids, tasks)
    return HeldJobs(items=[HeldJob(id=job_id, held=False) for job_id in released])


async def _waiting(
    request: Request,
    app_state: AppState,
    references: list[str],
    *,
    starts: bool = False,
) -> tuple[list[str], list[str]]:
    """The jobs that these mean, and the tasks that wait of the arrays that they mean.
    ForbiddenError if who asks may not change one of them; `starts`: nor start something
    in its project.
    """
    lookup = app_state.controller.requests.lookup
    visibility = visibility_of(request.scope, app_state.controller)
    job_ids, tasks = await lookup.find_waiting(references, visibility)
    meant = [*job_ids, *tasks]
    await check_own(request.scope, app_state.controller, meant, starts=starts)
    return job_ids, tasks


async def _outcomes(
    app_state: AppState, job_ids: list[str]
) -> dict[str, dict[str, Any]]:
    rows = await asyncio.to_thread(app_state.queries.job_outcomes, job_ids)
    return {row["id"]: row for row in rows}


@router.post("/jobs:wait")
async def wait_for_jobs(
    request: Request, app_state: TheAppState, body: WaitRequest
) -> JobOutcomes:
    """Answer when all of these jobs are over, or after `timeout_s`."""
    visibility = visibility_of(request.scope, app_state.controller)
    job_ids = await app_state.controller.requests.lookup.find_many(
        body.jobs, visibility
    )
    await app_state.controller.core.folded()
    deadline = time.monotonic() + body.timeout_s
    live = job_ids[::-1]
    while _any_live(app_state, live):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not await app_state.stream.changed(left_s):
            break
    await app_state.controller.core.committed()
    rows = await asyncio.to_thread(app_state.queries.job_outcomes, job_ids)
    by_id: dict[str, Any] = {row["id"]: row for row in rows}
    outcomes = [
        JobOutcome.model_validate(by_id[job_id])
        for job_id in job_ids
        if job_id in by_id  # history may have ended
    ]
    waiting = Counter(o.state for o in outcomes if not o.state.terminal)
    over = [outcome for outcome in outcomes if outcome.state.terminal]
    return JobOutcomes(items=over, waiting=dict(waiting))


def _any_live(app_state: AppState, job_ids: list[str]) -> bool:
    """Whether one of these jobs is not over. Takes those that are from the end of the
    list, so that nobody asks for thousands of them again and again.
    """
    view = app_state.controller.core.view
    while job_ids and job_ids[-1] not in view.jobs:
        job_ids.pop()
    return bool(job_ids)
