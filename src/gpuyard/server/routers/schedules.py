"""`/api/v1/schedules`: jobs that are submitted again and again."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import msgspec
from fastapi import Body, Request
from pydantic import BaseModel

from gpuyard.controller.intake import reading_json
from gpuyard.controller.schedule_events import LiveSchedule
from gpuyard.controller.schedules import find_schedule
from gpuyard.domain.end_notices import without_addresses
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobs import Job
from gpuyard.domain.schedules import Schedule, ScheduleChanges, ScheduleSpec
from gpuyard.domain.spec_values import Name
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.validation import parse_model
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.body import read_bodies
from gpuyard.server.callers import submitter_of
from gpuyard.server.concealing import conceal_parents
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import one_json_body
from gpuyard.server.permissions import identity_of, rights_of, visibility_of
from gpuyard.server.present import present_jobs

router = api_router("/schedules", tag="schedules")


class SchedulePage(BaseModel):
    """Every schedule, the oldest first."""

    items: list[Schedule]
    next: str | None = None


class RunRequest(StrictModel):
    """The same `idempotency_key` means the same job."""

    idempotency_key: Name | None = None


@router.post("", status_code=201, openapi_extra=one_json_body("ScheduleSpec"))
async def create_schedule(request: Request, app_state: TheAppState) -> Schedule:
    """Add a schedule. A repeated idempotency key is the first schedule again."""
    bodies, many = await read_bodies(request)
    if many:
        raise InvalidInputError.of("(body)", "is a list", "send one schedule")
    with reading_json():
        document = msgspec.json.decode(bodies[0])
    spec = parse_model(ScheduleSpec, document)
    user = submitter_of(request.scope)
    rights = rights_of(request.scope, app_state.controller)
    schedule = await app_state.controller.schedules.create(spec, user, rights)
    return await _present_schedule(request, app_state, schedule)


@router.get("")
async def list_schedules(request: Request, app_state: TheAppState) -> SchedulePage:
    """Every schedule, the oldest first."""
    visibility = visibility_of(request.scope, app_state.controller)
    stored = await asyncio.to_thread(app_state.controller.schedules.stored)
    seen = [one for one in stored if visibility.sees(one.spec.get("project"))]
    return SchedulePage(items=await _present_schedules(request, app_state, seen))


@router.get("/{reference}")
async def show_schedule(
    reference: str, request: Request, app_state: TheAppState
) -> Schedule:
    """A schedule by id, by a unique ending of its id, or the newest of a name."""
    visibility = visibility_of(request.scope, app_state.controller)
    stored = await asyncio.to_thread(app_state.controller.schedules.stored)
    return await _present_schedule(
        request, app_state, find_schedule(stored, reference, visibility)
    )


@router.patch("/{reference}")
async def change_schedule(
    reference: str, request: Request, app_state: TheAppState, changes: ScheduleChanges
) -> Schedule:
    """Change when it submits jobs, pause it, or let it go on.

    Times that came while it was paused do not count.
    """
    schedule_id = _find_own(request, app_state, reference)
    schedule = await app_state.controller.schedules.change(schedule_id, changes)
    return await _present_schedule(request, app_state, schedule)


@router.delete("/{reference}")
async def delete_schedule(
    reference: str, request: Request, app_state: TheAppState
) -> Schedule:
    """Delete a schedule; answers with what it was. Its jobs go on."""
    schedule_id = _find_own(request, app_state, reference)
    schedule = await app_state.controller.schedules.delete(schedule_id)
    return await _present_schedule(request, app_state, schedule)


@router.post("/{reference}/run", status_code=201)
async def run_schedule(
    reference: str,
    request: Request,
    app_state: TheAppState,
    body: Annotated[RunRequest | None, Body()] = None,
) -> Job:
    """Submit its job now, also while it is paused. Its next time stays."""
    schedule_id = _find_own(request, app_state, reference)
    key = body.idempotency_key if body else None
    job_id = await app_state.controller.schedules.run_now(schedule_id, key)
    row = app_state.queries.job(job_id)
    assert row is not None
    (job,) = present_jobs(app_state, [row])
    return job


def _find_own(request: Request, app_state: AppState, reference: str) -> str:
    """The schedule that this means; ForbiddenError if who asks may not change it."""
    visibility = visibility_of(request.scope, app_state.controller)
    schedule = app_state.controller.schedules.find(reference, visibility)
    project = schedule.spec.get("project")
    owner = schedule.spec.get("user")
    identity = identity_of(request.scope)
    access = app_state.controller.access
    access.check_changes(identity, schedule.id, project, owner)
    return schedule.id


async def _present_schedule(
    request: Request, app_state: AppState, schedule: LiveSchedule
) -> Schedule:
    (presented,) = await _present_schedules(request, app_state, [schedule])
    return presented


async def _present_schedules(
    request: Request, app_state: AppState, schedules: Sequence[LiveSchedule]
) -> list[Schedule]:
    """The resources, with the states that their last jobs have now."""
    last_ids = [one.last_job_id for one in schedules if one.last_job_id]
    rows = await asyncio.to_thread(app_state.queries.job_outcomes, last_ids)
    states = {row["id"]: row["state"] for row in rows}
    visibility = visibility_of(request.scope, app_state.controller)
    lookup = app_state.controller.requests.lookup
    specs = await asyncio.to_thread(
        lambda: [conceal_parents(lookup, visibility, one.spec) for one in schedules]
    )
    return [
        Schedule.model_validate(
            {
                **asdict(one),
                "job": without_addresses(spec),
                "last_job_state": states.get(one.last_job_id or ""),
            }
        )
        for one, spec in zip(schedules, specs, strict=True)
    ]
