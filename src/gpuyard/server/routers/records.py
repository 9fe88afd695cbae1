"""`/api/v1/jobs/{job}/record` and `/rerun`: what a job ran, and the same once more."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import Body, Request
from pydantic import BaseModel

from gpuyard.domain.errors import ForbiddenError, GpuyardError
from gpuyard.domain.jobs import Job
from gpuyard.domain.records import RunRecord, differences
from gpuyard.domain.spec_values import Name
from gpuyard.domain.strict_model import StrictModel
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import submitter_of
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import check_own, rights_of, visibility_of
from gpuyard.server.present import present_jobs, present_spec
from gpuyard.server.run_records import rerun_body, run_record

router = api_router("/jobs", tag="jobs")


class Rerun(BaseModel):
    """The job that repeats another one, and what may differ."""

    job: Job
    notes: list[str]


class RerunRequest(StrictModel):
    """The same `idempotency_key` means the same job."""

    idempotency_key: Name | None = None


@router.get("/{reference}/record")
async def record(reference: str, request: Request, app_state: TheAppState) -> RunRecord:
    """What a job ran: command, code, packages, data, host and driver. Of a job that
    repeats another one, also how they differ.
    """
    found = await _record(request, app_state, reference)
    if found.rerun_of is None:
        return found
    try:
        before = await _record(request, app_state, found.rerun_of)
    except GpuyardError:
        return found  # it was removed, or who asks may not see it
    return found.model_copy(update={"differences": differences(before, found)})


@router.post("/{reference}/rerun", status_code=201)
async def rerun(
    reference: str,
    request: Request,
    app_state: TheAppState,
    given: Annotated[RerunRequest | None, Body()] = None,
) -> Rerun:
    """Submit a job again, with the code, environment, packages and data that it had. It
    belongs to who asks, who gets no keys of others with it. A repeated idempotency key
    gives the first job with that key.
    """
    job = _job(request, app_state, reference)
    spec = app_state.queries.specs([job.id])[job.id]
    controller = app_state.controller
    is_own = await _is_own(request, app_state, job)
    user = submitter_of(request.scope)
    (body, notes) = await asyncio.to_thread(
        rerun_body, controller.submissions, job, spec, user, is_own=is_own
    )
    if given and given.idempotency_key:
        body["idempotency_key"] = given.idempotency_key
    raw = msgspec.Raw(msgspec.json.encode(body))
    rights = rights_of(request.scope, controller)
    (queued,) = await controller.requests.accept([raw], user=user, rights=rights)
    return Rerun(job=_by_id(app_state, queued.id), notes=notes)


async def _is_own(request: Request, app_state: AppState, job: Job) -> bool:
    """Whether who asks may change the job."""
    try:
        await check_own(request.scope, app_state.controller, [job.id])
    except ForbiddenError:
        return False
    return True


async def _record(request: Request, app_state: AppState, reference: str) -> RunRecord:
    job = _job(request, app_state, reference)
    spec = present_spec(app_state, job.id)
    with_spec = job.model_copy(update={"spec": spec})
    return await asyncio.to_thread(run_record, app_state, with_spec)


def _job(request: Request, app_state: AppState, reference: str) -> Job:
    visibility = visibility_of(request.scope, app_state.controller)
    return _by_id(app_state, app_state.controller.requests.find(reference, visibility))


def _by_id(app_state: AppState, job_id: str) -> Job:
    row = app_state.queries.job(job_id)
    assert row is not None
    (job,) = present_jobs(app_state, [row])
    return job
