"""`/api/v1/jobs/JOB/exec`, `/stdin` and `/forward`: WebSockets to a command beside a
running job, to the standard input of its program, and to a port of its node. They carry
the frames of domain/stream_frames.py. And links to what a job serves at a port.
"""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, WebSocket
from pydantic import BaseModel

from gpuyard.controller.access import Action
from gpuyard.domain.errors import ForbiddenError, GpuyardError, RefusedError
from gpuyard.domain.users import Role
from gpuyard.server import problems
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import submitter_of
from gpuyard.server.carrying import carry
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.edge import is_still_admitted
from gpuyard.server.permissions import (
    AGAIN_KEY,
    IDENTITY_KEY,
    SEES_KEY,
    check_own,
    identity_of,
    present_identity,
    sees_for_as_long,
    visibility_of,
)
from gpuyard.server.tools.places import ToolPlace
from gpuyard.server.tools.sessions import LINK_LASTS_S

router = api_router("/jobs", tag="jobs")
sockets = APIRouter(prefix="/api/v1/jobs")
_Port = Annotated[int, Path(ge=1, le=65535)]


class ForwardPlace(BaseModel):
    """Where the ports of a running job are."""

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


class ToolLink(BaseModel):
    """Signs one browser in, once, within `lasts_s` seconds."""

    url: str
    lasts_s: float


@router.post("/{reference}/forward/{port}/links", status_code=201)
async def make_link(
    reference: str, port: _Port, request: Request, app_state: TheAppState
) -> ToolLink:
    """A link that opens in a browser what the job serves at a port, at an address that
    is not this server's own. RefusedError where the server has none.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    job_id = app_state.controller.requests.find(reference, visibility)
    _refuse_others(app_state, job_id, request)
    await check_own(request.scope, app_state.controller, [job_id])
    sees_for_as_long(request.scope, app_state.controller, job_id)
    door = app_state.tools_door
    if door is None:
        raise RefusedError(
            "This server has no port for what jobs serve.",
            "Set `tools_listen` of `[server]`, or type `gpuyard forward JOB PORT`.",
        )
    app_state.controller.streams.node_of(job_id, port)
    place = ToolPlace(job_id, port)
    code = door.sessions.code(place, _admits(app_state, job_id, request))
    return ToolLink(url=door.link(place, code), lasts_s=LINK_LASTS_S)


def _admits(app_state: AppState, job_id: str, request: Request) -> Callable[[], bool]:
    """Whether who asks would get the link now: a session lasts for hours."""
    wanted = ("type", "method", "path", AGAIN_KEY, IDENTITY_KEY, SEES_KEY)
    scope = {key: request.scope[key] for key in wanted if key in request.scope}
    submitter = app_state.queries.submitters_of([job_id]).get(job_id)
    project = app_state.queries.projects_of_jobs([job_id]).get(job_id)
    is_own = submitter == submitter_of(request.scope)
    may = app_state.controller.access.may

    def admits() -> bool:
        if not is_still_admitted(scope):
            return False
        identity = present_identity(scope)
        if identity.role is Role.ADMINISTRATOR:
            return True
        return is_own and may(identity, Action.CHANGE, project, submitter)

    return admits


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
        visibility = visibility_of(call.scope, app_state.controller)
        job_id = app_state.controller.requests.find(reference, visibility)
        _refuse_others(app_state, job_id, call)
        await check_own(call.scope, app_state.controller, [job_id])
        sees_for_as_long(call.scope, app_state.controller, job_id)
        streams = app_state.controller.streams
        async with streams.open(job_id, port, stdin=stdin) as stream:
            await call.accept()
            await carry(call, stream.reader, stream.writer)
    except GpuyardError as error:
        await call.send_denial_response(problems.of_error(error))


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
