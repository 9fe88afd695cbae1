"""`/api/v1/jobs/JOB/exec`, `/stdin` and `/forward`: WebSockets to a command beside a
running job, to the standard input of its program, and to a port of its node. They carry
the frames of domain/stream_frames.py. A GET of the same address says where it would
lead, or why it would lead nowhere. And links to what a job serves at a port.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, WebSocket
from pydantic import BaseModel

from gpuyard.domain.errors import ForbiddenError, GpuyardError
from gpuyard.domain.users import Role
from gpuyard.server import problems
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import submitter_of
from gpuyard.server.carrying import carry
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import (
    check_own,
    identity_of,
    opens_for_as_long,
    sees_for_as_long,
    visibility_of,
)
from gpuyard.server.tools.links import ToolLink, link_to

router = api_router("/jobs", tag="jobs")
sockets = APIRouter(prefix="/api/v1/jobs")
_Port = Annotated[int, Path(ge=1, le=65535)]


class ForwardPlace(BaseModel):
    """Where the ports of a running job are."""

    node: str


class StreamPlace(BaseModel):
    """The node to which a stream of a running job leads."""

    node: str


@router.get("/{reference}/forward")
async def forward_place(
    reference: str,
    request: Request,
    app_state: TheAppState,
    port: Annotated[int, Query(ge=1, le=65535)],
) -> ForwardPlace:
    """The node to whose ports connections can be forwarded now: a WebSocket to
    `/api/v1/jobs/JOB/forward/PORT` is one. It is not asked whether anything listens.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    job_id = app_state.controller.requests.find(reference, visibility)
    return ForwardPlace(node=app_state.controller.streams.node_of(job_id, port))


@router.post("/{reference}/forward/{port}/links", status_code=201)
async def make_link(
    reference: str, port: _Port, request: Request, app_state: TheAppState
) -> ToolLink:
    """A link that opens in a browser what the job serves at a port, at an address that
    is not this server's own. RefusedError where the server has none.
    """
    job_id = await _own(reference, request, app_state)
    sees_for_as_long(request.scope, app_state.controller, job_id)
    return await link_to(app_state, job_id, port, request)


@router.get("/{reference}/exec")
async def exec_place(
    reference: str, request: Request, app_state: TheAppState
) -> StreamPlace:
    """Where a command beside the job would run now: a WebSocket of the same address
    starts one. Browsers are not told why a WebSocket is refused, but here they are.
    """
    return await _place(reference, request, app_state)


@router.get("/{reference}/stdin")
async def stdin_place(
    reference: str, request: Request, app_state: TheAppState
) -> StreamPlace:
    """Where the program of an interactive job takes input now: a WebSocket of the same
    address leads to it.
    """
    return await _place(reference, request, app_state, stdin=True)


async def _place(
    reference: str, request: Request, app_state: AppState, *, stdin: bool = False
) -> StreamPlace:
    job_id = await _own(reference, request, app_state)
    streams = app_state.controller.streams
    return StreamPlace(node=streams.node_of(job_id, stdin=stdin))


@sockets.websocket("/{reference}/exec")
async def exec_(call: WebSocket, reference: str) -> None:
    """A command beside the job."""
    await _serve(call, reference)


@sockets.websocket("/{reference}/stdin")
async def stdin(call: WebSocket, reference: str) -> None:
    """Input for the program of an interactive job."""
    await _serve(call, reference, stdin=True)


@sockets.websocket("/{reference}/forward/{port}")
async def forward(call: WebSocket, reference: str, port: _Port) -> None:
    """A connection to a port of the job's node."""
    await _serve(call, reference, port)


async def _serve(
    call: WebSocket, reference: str, port: int = 0, *, stdin: bool = False
) -> None:
    """Carry a stream to its end; a problem document when there is none.

    The edge has looked at the token.
    """
    app_state: AppState = call.app.state.app_state
    try:
        if not app_state.leads:
            # Late: only a server that stands by calls others.
            from gpuyard.server.passing_on import pass_on

            await pass_on(call, app_state)
            return
        job_id = await _own(reference, call, app_state)
        user = submitter_of(call.scope)
        opens_for_as_long(call.scope, app_state.controller, job_id, user)
        streams = app_state.controller.streams
        async with streams.open(job_id, port, stdin=stdin) as stream:
            await call.accept()
            await carry(call, stream.reader, stream.writer)
    except GpuyardError as error:
        await call.send_denial_response(problems.of_error(error))


async def _own(reference: str, call: WebSocket | Request, app_state: AppState) -> str:
    """The job that this means, to which who asks may open a stream; ForbiddenError,
    NotFoundError.
    """
    visibility = visibility_of(call.scope, app_state.controller)
    job_id = app_state.controller.requests.find(reference, visibility)
    _refuse_others(app_state, job_id, call)
    await check_own(call.scope, app_state.controller, [job_id])
    return job_id


def _refuse_others(app_state: AppState, job_id: str, call: WebSocket | Request) -> None:
    """ForbiddenError for a user whose job it is not: the stream would have the account
    of somebody else.
    """
    if identity_of(call.scope).role is Role.ADMINISTRATOR:
        return
    submitter = app_state.queries.submitters_of([job_id]).get(job_id)
    if submitter != submitter_of(call.scope):
        raise ForbiddenError(
            f"{job_id} was submitted by {submitter or 'the administrator'}; nobody else"
            " may run commands beside it, type to it or connect to its ports.",
            f"Ask {submitter or 'the administrator'}, or submit a job of your own.",
        )
