"""`/api/v1/arrays`: one job with many tasks."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any, Self

import msgspec
from fastapi import Body, Query, Request
from pydantic import BaseModel, Field, model_validator

from gpuyard.controller.intake import reading_json
from gpuyard.controller.job_lookup import ARRAY_ID
from gpuyard.domain.arrays import MAX_TASKS, Array, count_words
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.spec_values import Priority
from gpuyard.domain.strict_model import StrictModel
from gpuyard.ledger.queries import JobFilter
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.body import read_bodies
from gpuyard.server.callers import submitter_of
from gpuyard.server.concealing import conceal, conceal_parents
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import one_json_body
from gpuyard.server.permissions import check_own, rights_of, visibility_of
from gpuyard.server.present_arrays import present_array, present_arrays
from gpuyard.server.routers.jobs import Deadline, ResumeRequest

router = api_router("/arrays", tag="arrays")


class ArrayPage(BaseModel):
    """Arrays, newest first, and the cursor of the next page."""

    items: list[Array]
    next: str | None = None


class UpdateArrayRequest(StrictModel):
    """What is to differ of an array; what is left out stays. `at_most`: so many tasks
    may run at once, null for any number. `deadline` of its tasks: null for none.
    """

    at_most: Annotated[int, Field(ge=1, le=MAX_TASKS)] | None = None
    priority: Priority | None = None
    deadline: Deadline | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.changes():
            raise ValueError("changes nothing; give at_most, priority or deadline")
        return self

    def changes(self) -> dict[str, Any]:
        """What is to differ."""
        given = self.model_dump(exclude_unset=True)
        return {
            name: value
            for name, value in given.items()
            if name != "priority" or value is not None
        }


@router.post("", status_code=201, openapi_extra=one_json_body("ArraySpec"))
async def submit_array(request: Request, app_state: TheAppState) -> Array:
    """Queue an array: a JobSpec, and in `array` the indices of its tasks, such as
    `0-1999%20`. A repeated idempotency key returns the first array.
    """
    (bodies, many) = await read_bodies(request)
    if many:
        raise InvalidInputError.of("(body)", "is a list", "send one array")
    with reading_json():
        document = msgspec.json.decode(bodies[0])
    user = submitter_of(request.scope)
    rights = rights_of(request.scope, app_state.controller)
    arrays = app_state.controller.requests.arrays
    array_id = await arrays.create(document, user, rights)
    return await _present_array(request, app_state, array_id)


@router.get("")
async def list_arrays(
    request: Request,
    app_state: TheAppState,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: str | None = None,
) -> ArrayPage:
    """Arrays, newest first."""
    if cursor is not None and not ARRAY_ID.fullmatch(cursor):
        raise InvalidInputError.of(
            "cursor", f"is {quoted(cursor)}", "send the `next` of the page before"
        )

    wanted = JobFilter(hidden=visibility_of(request.scope, app_state.controller).hidden)

    def read() -> list[Array]:
        queries = app_state.queries
        rows = queries.arrays_page(limit=limit + 1, before=cursor, wanted=wanted)
        return present_arrays(queries, rows)

    items = await asyncio.to_thread(read)
    more = len(items) > limit
    return ArrayPage(items=items[:limit], next=items[limit - 1].id if more else None)


@router.get("/{reference}")
async def show_array(reference: str, request: Request, app_state: TheAppState) -> Array:
    """An array by id, by a unique ending of its id, or the newest of a name; with its
    spec and what it has cost. `/api/v1/jobs?array=` lists its tasks.
    """
    return await _present_array(
        request, app_state, _find(request, app_state, reference)
    )


@router.patch("/{reference}")
async def update_array(
    reference: str, request: Request, app_state: TheAppState, body: UpdateArrayRequest
) -> Array:
    """Change how many of its tasks may run at once, or the priority or the deadline of
    those that are not over. With a lower limit, tasks that run go on to their end.
    """
    array_id = await _find_own(request, app_state, reference)
    await app_state.controller.changes.update_array(array_id, body.changes())
    return await _present_array(request, app_state, array_id)


@router.post("/{reference}/cancel")
async def cancel_array(
    reference: str, request: Request, app_state: TheAppState
) -> Array:
    """End all its tasks. Idempotent; those that are over stay as they are."""
    array_id = await _find_own(request, app_state, reference)
    job_ids = await asyncio.to_thread(app_state.queries.task_ids, array_id)
    await app_state.controller.requests.cancel_many(job_ids)
    return await _present_array(request, app_state, array_id)


@router.post("/{reference}/resume")
async def resume_array(
    reference: str,
    request: Request,
    app_state: TheAppState,
    body: Annotated[ResumeRequest | None, Body()] = None,
) -> Array:
    """Start a new attempt of each task that has ended without completing, from its
    newest checkpoint.
    """
    array_id = await _find_own(request, app_state, reference, starts=True)
    wanted = body or ResumeRequest()
    if wanted.checkpoint is not None:
        raise InvalidInputError.of(
            "checkpoint",
            "is that of one job, and this is an array",
            "resume one task of it, or leave the checkpoint out",
        )
    requests = app_state.controller.requests
    await requests.resume_array(array_id, wanted.changes())
    return await _present_array(request, app_state, array_id)


@router.get("/{reference}/why")
async def why_array(
    reference: str, request: Request, app_state: TheAppState
) -> dict[str, Any]:
    """Why the first of its tasks that waits is not running; as for a job."""
    array_id = _find(request, app_state, reference)
    queued = await asyncio.to_thread(app_state.queries.task_ids, array_id, queued=True)
    for job_id in queued:
        answer = app_state.controller.requests.why(job_id)
        if answer is not None:
            told = {
                "array_id": array_id,
                "job_id": job_id,
                "waiting": len(queued),
                "pending": True,
                **asdict(answer),
            }
            visibility = visibility_of(request.scope, app_state.controller)
            return conceal(app_state.queries, visibility, told)
    array = await _present_array(request, app_state, array_id)
    summary = f"None of its tasks waits: {count_words(array.counts)}."
    return {
        "array_id": array_id,
        "waiting": 0,
        "pending": False,
        "summary": summary,
        "state": array.state,
    }


async def _find_own(
    request: Request, app_state: AppState, reference: str, *, starts: bool = False
) -> str:
    """The array that this means; ForbiddenError if who asks may not change it.
    `starts`: its tasks are to start again.
    """
    array_id = _find(request, app_state, reference)
    await check_own(request.scope, app_state.controller, [array_id], starts=starts)
    return array_id


def _find(request: Request, app_state: AppState, reference: str) -> str:
    visibility = visibility_of(request.scope, app_state.controller)
    return app_state.controller.requests.lookup.find_array(reference, visibility)


async def _present_array(request: Request, app_state: AppState, array_id: str) -> Array:
    visibility = visibility_of(request.scope, app_state.controller)
    lookup = app_state.controller.requests.lookup

    def read() -> Array:
        array = present_array(app_state.queries, array_id)
        spec = conceal_parents(lookup, visibility, array.spec or {})
        return array.model_copy(update={"spec": spec})

    return await asyncio.to_thread(read)
