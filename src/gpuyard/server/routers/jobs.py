"""`/api/v1/jobs`: submit, list, show, cancel, resume, why, logs, metrics,
checkpoints.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Self

from fastapi import Body, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, BeforeValidator, model_validator

from gpuyard.controller.intake import PreparedJob
from gpuyard.controller.malloc_trim import MANY_JOBS, trim_memory_soon
from gpuyard.domain.arrays import Array
from gpuyard.domain.deadlines import from_now
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.jobs import Job
from gpuyard.domain.jobspec import GpuRequest, gpus_as_fields
from gpuyard.domain.spec_values import Moment, Name, Priority, Seconds
from gpuyard.domain.states import JobState
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.tasks import task_of
from gpuyard.ledger.queries import JobFilter
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.body import read_bodies
from gpuyard.server.callers import submitter_of
from gpuyard.server.concealing import conceal, conceal_parents
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.log_stream import (
    NDJSON,
    POSITION,
    begin,
    framed,
    plain,
    position_of,
)
from gpuyard.server.openapi import json_body, one_of, text
from gpuyard.server.permissions import (
    check_own,
    rights_of,
    sees_for_as_long,
    visibility_of,
)
from gpuyard.server.present import (
    present_checkpoint,
    present_code,
    present_end,
    present_environment,
    present_jobs,
    present_queued,
    present_spec,
)
from gpuyard.server.present_arrays import present_arrays

router = api_router("/jobs", tag="jobs")
# A page's cursor is the id of its last job.
_CURSOR = re.compile(r"(?:job|array)_([0-9a-f]{32})")
_JSON = "application/json"
# More lines than any log has, and more attempts than any job.
_MOST = 2**31 - 1
_MOST_LABELS = 50
# So many jobs become JSON in a millisecond.
_PIECE = 200


def _counted_from_now(value: Any) -> Any:
    return from_now(value, time.time())


Deadline = Annotated[Moment, BeforeValidator(_counted_from_now)]


class JobPage(BaseModel):
    """Jobs, newest first, and the cursor of the next page. A folded listing has arrays
    among them.
    """

    items: list[Job | Array]
    next: str | None = None


class ResumeRequest(StrictModel):
    """From which checkpoint: its id, path, file name or step; the newest when not
    given. What the job needs from now on, where it differs: of `gpus`, what is left out
    stays.
    """

    checkpoint: str | None = None
    priority: Priority | None = None
    timeout_s: Seconds | None = None
    deadline: Deadline | None = None
    gpus: Annotated[GpuRequest, BeforeValidator(gpus_as_fields)] | None = None

    def changes(self) -> dict[str, Any]:
        """What is to differ."""
        given = self.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        return {name: value for name, value in given.items() if name != "checkpoint"}


class UpdateRequest(StrictModel):
    """What is to differ of a job; what is left out stays. `deadline` may be null: then
    it has none any more.
    """

    name: Name | None = None
    priority: Priority | None = None
    timeout_s: Seconds | None = None
    deadline: Deadline | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.changes():
            raise ValueError(
                "changes nothing; give name, priority, timeout_s or deadline"
            )
        return self

    def changes(self) -> dict[str, Any]:
        """What is to differ."""
        given = self.model_dump(mode="json", exclude_none=True)
        if "deadline" in self.model_fields_set:
            given["deadline"] = self.deadline
        return given


@router.post(
    "",
    status_code=201,
    openapi_extra=json_body("JobSpec", "JobConfig"),
    responses={201: one_of("Job", "JobPage")},
)
async def submit(request: Request, app_state: TheAppState) -> Response:
    """Submit a JobSpec (or S2's JobConfig), or a list of them: all are queued, or none.

    Answers after the commit, with the jobs as they were queued.
    """
    bodies, many = await read_bodies(request)
    user = submitter_of(request.scope)
    controller = app_state.controller
    rights = rights_of(request.scope, controller)
    jobs = await controller.requests.accept(bodies, user=user, rights=rights)
    if not many:
        return Response(_accepted(app_state, jobs)[0], 201, media_type=_JSON)
    return StreamingResponse(_page_of(app_state, jobs), 201, media_type=_JSON)


async def _page_of(
    app_state: AppState, jobs: Sequence[PreparedJob], piece: int = _PIECE
) -> AsyncIterator[bytes]:
    """A JobPage as JSON, made in pieces: others have their turn in between, and it
    never stands in memory whole.
    """
    yield b'{"items":['
    for start in range(0, len(jobs), piece):
        yield (b"," if start else b"") + b",".join(
            _accepted(app_state, jobs[start : start + piece])
        )
        # To send a piece is no turn of others: it waits only for a slow client.
        await asyncio.sleep(0)
    yield b'],"next":null}'
    if len(jobs) >= MANY_JOBS:
        trim_memory_soon()


def _accepted(app_state: AppState, jobs: Sequence[PreparedJob]) -> list[bytes]:
    """Each job as JSON; one that an earlier request made as it is now."""
    before = [job.id for job in jobs if job.queued_at is None]
    rows = list(app_state.queries.jobs_by_id(before).values()) if before else []
    known = (
        {
            job.id: job.model_dump_json().encode()
            for job in present_jobs(app_state, rows)
        }
        if rows
        else {}
    )
    return [known.get(job.id) or present_queued(job) for job in jobs]


@router.get("", response_model=JobPage)
async def list_jobs(
    request: Request,
    app_state: TheAppState,
    state: Annotated[list[JobState] | None, Query()] = None,
    name: Annotated[
        str | None, Query(description="`*`: any characters; `?`: one.")
    ] = None,
    project: str | None = None,
    user: Annotated[
        str | None, Query(description="Who submitted it; on a shared workstation.")
    ] = None,
    label: Annotated[
        list[str] | None, Query(description="NAME=VALUE; a job must have all of them.")
    ] = None,
    since: Annotated[
        float | None,
        Query(
            allow_inf_nan=False, description="Submitted at it or later; UTC seconds."
        ),
    ] = None,
    array: Annotated[
        str | None, Query(description="Only the tasks of this array.")
    ] = None,
    folded: Annotated[
        bool, Query(description="Each array as one item in place of its tasks.")
    ] = False,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: str | None = None,
) -> Response:
    """Jobs, newest first; the tasks of arrays among them, or `folded`."""
    before = _place_of(cursor)
    _refuse_filters(label or (), array, folded=folded)
    find_array = app_state.controller.requests.lookup.find_array
    visibility = visibility_of(request.scope, app_state.controller)
    wanted = JobFilter(
        states=[one.value for one in state or ()],
        names=[name] if name else [],
        project=project or None,
        user=user or None,
        labels=dict(map(_label, label or ())),
        since=since,
        array_id=None if array is None else find_array(array, visibility),
        without_tasks=folded,
        hidden=visibility.hidden,
    )
    # Some conditions make it look through all history.
    rows = await asyncio.to_thread(
        app_state.queries.jobs_page,
        limit=limit + 1,
        before=before and f"job_{before}",
        wanted=wanted,
    )
    items: list[Job | Array] = list(present_jobs(app_state, rows[: limit + 1]))
    if folded:
        arrays = await asyncio.to_thread(_arrays, app_state, wanted, before, limit + 1)
        # Behind their prefixes, ids sort by time.
        items = sorted([*items, *arrays], key=lambda item: item.id[-32:], reverse=True)
    more = len(items) > limit
    page = JobPage(items=items[:limit], next=items[limit - 1].id if more else None)
    # So that FastAPI does not validate it again.
    return Response(page.model_dump_json(), media_type=_JSON)


def _place_of(cursor: str | None) -> str | None:
    """The end of the id of the last item before a page; None for the first page.
    InvalidInputError.
    """
    if cursor is None:
        return None
    known = _CURSOR.fullmatch(cursor)
    if known is None:
        raise InvalidInputError.of(
            "cursor", f"is {quoted(cursor)}", "send the `next` of the page before"
        )
    return known[1]


def _refuse_filters(labels: Sequence[str], array: str | None, *, folded: bool) -> None:
    """InvalidInputError for filters that exclude each other, or are too many."""
    if folded and array is not None:
        raise InvalidInputError.of(
            "folded", "does not go with array", "leave one of them out"
        )
    if len(labels) > _MOST_LABELS:
        fault = f"is given {len(labels)} times"
        raise InvalidInputError.of("label", fault, f"give {_MOST_LABELS} at most")


def _arrays(
    app_state: AppState, wanted: JobFilter, before: str | None, limit: int
) -> list[Array]:
    """The arrays of a page of jobs."""
    rows = app_state.queries.arrays_page(
        limit=limit,
        before=before and f"array_{before}",
        wanted=replace(wanted, without_tasks=False),
    )
    return present_arrays(app_state.queries, rows)


def _label(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise InvalidInputError.of("label", f"is {quoted(text)}", "write NAME=VALUE")
    return name, value


def _present_job(app_state: AppState, job_id: str) -> Job:
    row = app_state.queries.job(job_id)
    assert row is not None
    (job,) = present_jobs(app_state, [row])
    return job


async def _with_spec(request: Request, app_state: AppState, reference: str) -> Job:
    """The job that this means to who asks, with its spec."""
    job = _present_job(app_state, _find(request, app_state, reference))
    visibility = visibility_of(request.scope, app_state.controller)
    lookup = app_state.controller.requests.lookup
    spec = present_spec(app_state, job.id)
    seen = await asyncio.to_thread(conceal_parents, lookup, visibility, spec)
    return job.model_copy(update={"spec": seen})


def _find(request: Request, app_state: AppState, reference: str) -> str:
    """The job that this means to who asks."""
    visibility = visibility_of(request.scope, app_state.controller)
    return app_state.controller.requests.find(reference, visibility)


@router.get("/{reference}")
async def show(reference: str, request: Request, app_state: TheAppState) -> Job:
    """A job by id, by a unique ending of its id, or the newest of a name; with its
    spec.
    """
    job = await _with_spec(request, app_state, reference)
    environment = present_environment(app_state, job)
    code = await asyncio.to_thread(present_code, app_state, job)
    return job.model_copy(update={"environment": environment, "code": code})


@router.get("/{reference}/task")
async def show_task(
    reference: str, request: Request, app_state: TheAppState
) -> dict[str, Any]:
    """A job in the form of the seed document's task, schema v2.

    `assigned_gpu` is the index of its GPU, and `assigned_gpu_uuid` says which one that
    is: indices change, and each node has its own.
    """
    job = await _with_spec(request, app_state, reference)
    indices = {row["uuid"]: row["index"] for row in app_state.queries.gpus()}
    return task_of(job, indices.get)


async def _find_own(
    request: Request, app_state: AppState, reference: str, *, starts: bool = False
) -> str:
    """The job that this means; ForbiddenError if who asks may not change it. `starts`:
    it is to start again.
    """
    job_id = _find(request, app_state, reference)
    await check_own(request.scope, app_state.controller, [job_id], starts=starts)
    return job_id


@router.post("/{reference}/cancel")
async def cancel(reference: str, request: Request, app_state: TheAppState) -> Job:
    """End a job. Idempotent; a job that is over stays as it is."""
    job_id = await _find_own(request, app_state, reference)
    await app_state.controller.requests.cancel(job_id)
    return _present_job(app_state, job_id)


@router.post("/{reference}/resume")
async def resume(
    reference: str,
    request: Request,
    app_state: TheAppState,
    body: Annotated[ResumeRequest | None, Body()] = None,
) -> Job:
    """Start a new attempt of an ended job from a checkpoint."""
    job_id = await _find_own(request, app_state, reference, starts=True)
    wanted = body or ResumeRequest()
    await app_state.controller.requests.resume(
        job_id, wanted.checkpoint, wanted.changes()
    )
    return _present_job(app_state, job_id)


@router.patch("/{reference}")
async def update(
    reference: str, request: Request, app_state: TheAppState, body: UpdateRequest
) -> Job:
    """Change a job that is not over; of one that is over, its name.

    The time limit changes only while the job waits in the queue.
    """
    job_id = await _find_own(request, app_state, reference)
    await app_state.controller.changes.update(job_id, body.changes())
    return _present_job(app_state, job_id)


@router.get("/{reference}/why")
async def why(
    reference: str, request: Request, app_state: TheAppState
) -> dict[str, Any]:
    """Why a pending job is not running: constraint, the jobs behind which it waits,
    candidates and their rejections, what would help, an estimate.
    """
    job_id = _find(request, app_state, reference)
    answer = app_state.controller.requests.why(job_id)
    if answer is not None:
        told = {"job_id": job_id, "pending": True, **asdict(answer)}
        visibility = visibility_of(request.scope, app_state.controller)
        return conceal(app_state.queries, visibility, told)
    job = _present_job(app_state, job_id)
    return {
        "job_id": job_id,
        "pending": False,
        "summary": present_end(job),
        "state": job.state,
        "reason": job.reason,
    }


@router.get(
    "/{reference}/logs",
    response_class=StreamingResponse,
    responses=text("text/plain", NDJSON),
)
async def logs(
    reference: str,
    request: Request,
    app_state: TheAppState,
    lines: Annotated[int | None, Query(ge=0, le=_MOST)] = None,
    follow: bool = False,
    attempt: Annotated[int | None, Query(ge=1, le=_MOST)] = None,
    position: Annotated[str | None, Query(pattern=POSITION)] = None,
) -> StreamingResponse:
    """Output as plain text: of the last attempt, or of `attempt`; with `follow`, until
    the job is over; from `position` (ATTEMPT:BYTE) on.

    With `Accept: application/x-ndjson`, each line is `{"attempt", "offset", "data"}`,
    data in Base64; `{}` first and while nothing comes; the last one is `{"end": true}`.
    Without that, the connection broke: go on at the position after the last byte.
    """
    job_id = _find(request, app_state, reference)
    sees_for_as_long(request.scope, app_state.controller, job_id)
    parts = app_state.controller.logs.read(
        job_id,
        lines=lines,
        follow=follow,
        number=attempt,
        position=position_of(position),
    )
    first = await begin(parts)
    headers = {"X-Accel-Buffering": "no"}
    if NDJSON in request.headers.get("accept", ""):
        body = framed(first, parts, app_state.stopping)
        return StreamingResponse(body, media_type=NDJSON, headers=headers)
    return StreamingResponse(
        plain(first, parts), media_type="text/plain; charset=utf-8", headers=headers
    )


@router.get("/{reference}/metrics")
async def metrics(
    reference: str,
    request: Request,
    app_state: TheAppState,
    name: Annotated[list[str] | None, Query()] = None,
    points: Annotated[int, Query(ge=4, le=100_000)] = 1000,
) -> dict[str, Any]:
    """Metric series over all attempts; each at most `points` long, its extremes
    kept.
    """
    job_id = _find(request, app_state, reference)
    # A long training has hundreds of thousands of points: reading them must not hold up
    # anyone else.
    items = await asyncio.to_thread(_drawn_series, app_state, job_id, name, points)
    return {"items": items, "next": None}


def _drawn_series(
    app_state: AppState, job_id: str, names: list[str] | None, limit: int
) -> list[dict[str, Any]]:
    """The series of these names, or all; blocks on the ledger."""
    items: list[dict[str, Any]] = []
    found = app_state.series.drawn(job_id, names or (), limit)
    for name, (count, kept) in found.items():
        points = [
            {"step": point.step, "value": point.value, "at": point.at} for point in kept
        ]
        items.append({"name": name, "count": count, "points": points})
    return items


@router.get("/{reference}/checkpoints")
async def checkpoints(
    reference: str, request: Request, app_state: TheAppState
) -> dict[str, Any]:
    """The job's checkpoints, oldest first."""
    job_id = _find(request, app_state, reference)
    rows = app_state.queries.checkpoints_of(job_id)
    return {
        "items": [present_checkpoint(row) for row in rows if row["kept"]],
        "next": None,
    }
