"""Links that open what a job serves at a port, and who may go on after one."""

import asyncio
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass

from fastapi import Request
from pydantic import BaseModel

from gpuyard.controller.access import Action
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.users import Role
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import submitter_of
from gpuyard.server.edge import is_still_admitted
from gpuyard.server.permissions import (
    AGAIN_KEY,
    IDENTITY_KEY,
    SEES_KEY,
    present_identity,
)
from gpuyard.server.tools.places import ToolPlace
from gpuyard.server.tools.sessions import LINK_LASTS_S


class ToolLink(BaseModel):
    """Signs one browser in, once, within `lasts_s` seconds."""

    url: str
    lasts_s: float


def refuse_without_door(app_state: AppState) -> None:
    """RefusedError where the server has no port for what jobs serve."""
    if app_state.tools_door is None:
        raise RefusedError(
            "This server has no port for what jobs serve.",
            "Set `tools_listen` of `[server]`, or type `gpuyard forward JOB PORT`.",
        )


async def link_to(
    app_state: AppState,
    job_id: str,
    port: int,
    request: Request,
    shown: Collection[str] = (),
) -> ToolLink:
    """A link to a port of a job, for who asks and may have it. It shows something of
    the jobs `shown`, too. RefusedError where the server has no port for it, and for a
    job that does not run.
    """
    refuse_without_door(app_state)
    door = app_state.tools_door
    assert door
    app_state.controller.streams.node_of(job_id, port)
    place = ToolPlace(job_id, port)
    owned = await asyncio.to_thread(_ownership, app_state, job_id, shown)
    admits = _admits(app_state, owned, request)
    code = door.sessions.code(place, admits, submitter_of(request.scope))
    return ToolLink(url=door.link(place, code), lasts_s=LINK_LASTS_S)


@dataclass(frozen=True, slots=True)
class _Ownership:
    """Whose a job is, of which project, and of which projects what it shows is."""

    submitter: str | None
    project: str | None
    shown: Set[str | None]


def _ownership(app_state: AppState, job_id: str, shown: Collection[str]) -> _Ownership:
    queries = app_state.queries
    submitter = queries.submitters_of([job_id]).get(job_id)
    projects = queries.projects_of_jobs([job_id, *shown])
    seen = {projects.get(one) for one in shown}
    return _Ownership(submitter, projects.get(job_id), seen)


def _admits(
    app_state: AppState, owned: _Ownership, request: Request
) -> Callable[[], bool]:
    """Whether who asks would get the link now: a session lasts for hours."""
    wanted = ("type", "method", "path", AGAIN_KEY, IDENTITY_KEY, SEES_KEY)
    scope = {key: request.scope[key] for key in wanted if key in request.scope}
    is_own = owned.submitter == submitter_of(request.scope)
    may = app_state.controller.access.may

    def admits() -> bool:
        if not is_still_admitted(scope):
            return False
        identity = present_identity(scope)
        if identity.role is Role.ADMINISTRATOR:
            return True
        if not all(may(identity, Action.SEE, one) for one in owned.shown):
            return False
        changes = may(identity, Action.CHANGE, owned.project, owned.submitter)
        return is_own and changes

    return admits
