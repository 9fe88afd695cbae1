"""`/api/v1/tensorboards`: TensorBoard over the event files of jobs, on demand, and a
link that opens it.
"""

import asyncio
from typing import Annotated

from fastapi import Request
from pydantic import Field

from gpuyard.controller.visibility import Visibility
from gpuyard.domain.jobs import Job
from gpuyard.domain.strict_model import StrictModel
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of
from gpuyard.server.present import present_code, present_jobs
from gpuyard.server.tools import boards
from gpuyard.server.tools.links import ToolLink, link_to, refuse_without_door

router = api_router("/tensorboards", tag="jobs")
_MOST_JOBS = 50


class BoardRequest(StrictModel):
    """The jobs to show side by side: ids, unique endings of ids, or names."""

    jobs: Annotated[list[str], Field(min_length=1, max_length=_MOST_JOBS)]


class BoardLink(ToolLink):
    """Opens a TensorBoard, which runs as `job`."""

    job: str


@router.post("", status_code=201)
async def open_board(
    body: BoardRequest, request: Request, app_state: TheAppState
) -> BoardLink:
    """A link to a TensorBoard over these jobs, which is started if none of yours shows
    them. It is a job of yours, which ends after ten minutes without a look.
    RefusedError if it does not listen within 45 seconds: ask again then.
    """
    refuse_without_door(app_state)
    visibility = visibility_of(request.scope, app_state.controller)
    ids = await asyncio.to_thread(_found, app_state, body.jobs, visibility)
    jobs = await asyncio.to_thread(_with_specs, app_state, ids)
    board_id, port = await boards.listening_board(app_state, jobs, request)
    link = await link_to(app_state, board_id, port, request, shown=ids)
    return BoardLink(url=link.url, lasts_s=link.lasts_s, job=board_id)


def _found(
    app_state: AppState, references: list[str], visibility: Visibility
) -> list[str]:
    """The jobs that these mean, each once and in their order; the errors of `find`."""
    find = app_state.controller.requests.find
    return list(dict.fromkeys(find(one, visibility) for one in references))


def _with_specs(app_state: AppState, ids: list[str]) -> list[Job]:
    """The jobs in this order, with where their code is."""
    rows = app_state.queries.jobs_by_id(ids)
    specs = app_state.queries.specs(ids)
    found = {job.id: job for job in present_jobs(app_state, list(rows.values()))}
    jobs = [found[one].model_copy(update={"spec": specs[one]}) for one in ids]
    return [
        job.model_copy(update={"code": present_code(app_state, job)}) for job in jobs
    ]
