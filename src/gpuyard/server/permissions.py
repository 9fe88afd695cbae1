"""What each role may ask of the server.

The first table says it of requests, by method and path; whatever stands in none of its
rows is left to administrators. Those who may change only their own are told so where it
is known whose a job is.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.types import Scope

from gpuyard.controller.access import Action, Rights
from gpuyard.controller.controller import Controller
from gpuyard.controller.users import Identity
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.errors import ForbiddenError
from gpuyard.domain.users import Role
from gpuyard.ledger.queries import Belonging

# Where the scope of a request (ASGI) has the identity of who has sent it.
IDENTITY_KEY = "gpuyard.identity"
# And how to identify again who has sent it, if that is not the owner of the instance.
AGAIN_KEY = "gpuyard.identify_again"
# And how to ask whether an identity may still have what is being sent.
SEES_KEY = "gpuyard.sees"

_NOBODYS = Belonging(None, None)
_ONE = "[^/]+"
# What begins like that after `/api/v1/` is not for all who may look.
_NOT_FOR_VIEWERS = (
    f"ledger/|audit/?$|bills/?$|artifacts/{_ONE}/links/?$|jobs/{_ONE}/(exec|stdin)/?$"
)
# The least role for each kind of request.
_REQUESTS: Mapping[Role, tuple[str, ...]] = {
    Role.VIEWER: (
        "(GET|HEAD|OPTIONS) /(metrics|v1/models(/.+)?)",
        f"(GET|HEAD|OPTIONS) /api/v1/(?!{_NOT_FOR_VIEWERS}).+",
        "POST /api/v1/(jobs:wait|estimate|estimate/batch|recommendations(/measured)?)",
        "POST /api/v1/sign-in/links",
        f"(POST /api/v1/tokens|DELETE /api/v1/tokens/{_ONE})",
        f"POST /api/v1/tokens/{_ONE}/rotate",
    ),
    Role.MEMBER: (
        "POST /v1/.+",
        "POST /api/v1/(jobs|arrays|batches|schedules|code|environments|packages)",
        "POST /api/v1/(git-commits|tensorboards)",
        "POST /api/v1/jobs:(cancel|hold|release)",
        f"POST /api/v1/(jobs|arrays)/{_ONE}/(cancel|resume)",
        f"POST /api/v1/jobs/{_ONE}/(rerun|forward/{_ONE}/links)",
        f"PATCH /api/v1/(jobs|arrays|schedules)/{_ONE}",
        f"WEBSOCKET /api/v1/jobs/{_ONE}/(exec|stdin|forward/{_ONE})",
        f"(GET|HEAD) /api/v1/jobs/{_ONE}/(exec|stdin)",
        f"POST /api/v1/batches/{_ONE}/(cancel|retry)",
        f"(DELETE /api/v1/schedules/{_ONE}|POST /api/v1/schedules/{_ONE}/run)",
        f"(PUT|DELETE) /api/v1/secrets/{_ONE}",
        f"(PUT|DELETE) /api/v1/projects/{_ONE}/members/{_ONE}",
        "(POST|PUT|DELETE) /api/v1/datasets/.+",
        f"DELETE /api/v1/jobs/{_ONE}/artifacts",
        f"(GET|HEAD|POST) /api/v1/artifacts/{_ONE}/links",
        f"DELETE /api/v1/artifacts/{_ONE}/links/{_ONE}",
        f"PUT /api/v1/studies/{_ONE}",
    ),
    Role.MAINTAINER: (
        "POST /api/v1/models/.+/(load|unload|pin|unpin)",
        f"POST /api/v1/gpus/{_ONE}/(drain|undrain|release)",
        f"POST /api/v1/nodes/{_ONE}/(cordon|uncordon|drain)",
        "(PUT|DELETE) /api/v1/trust/.+",
        f"POST /api/v1/providers/{_ONE}/(check|prices/refresh)",
        f"PUT /api/v1/verifications/{_ONE}",
        f"(POST /api/v1/reservations|DELETE /api/v1/reservations/{_ONE})",
        "GET /api/v1/ledger/(check|prune)",
    ),
}
_PATTERNS = tuple(
    (role, re.compile("|".join(f"(?:{one}/?)" for one in patterns)))
    for role, patterns in _REQUESTS.items()
)


def role_for(what: str) -> Role:
    """The least role that may ask for `what`: method and path."""
    for role, pattern in _PATTERNS:
        if pattern.fullmatch(what):
            return role
    return Role.ADMINISTRATOR


def check_role(identity: Identity, what: str) -> None:
    """ForbiddenError unless the role of who asks is enough for `what`."""
    if identity.role is Role.ADMINISTRATOR:
        return
    needed = role_for(what)
    if not identity.role.includes(needed):
        raise ForbiddenError(
            f"The role of {identity.user} here is {identity.role}, and this needs"
            f" {needed}.",
            "Ask an administrator: `gpuyard user list` names them.",
        )


def identity_of(scope: Mapping[str, Any]) -> Identity:
    """Who has sent a request that the edge has admitted, and that is no worker's."""
    return scope[IDENTITY_KEY]


async def check_own(
    scope: Scope, controller: Controller, ids: Sequence[str], *, starts: bool = False
) -> None:
    """ForbiddenError if who asks may not change one of these jobs, arrays or batches;
    `starts`: nor start something in its project.
    """
    identity = identity_of(scope)
    access = controller.access
    if access.changes_all(identity):
        return
    read = controller.core.queries.belongings_of
    belongings = await asyncio.to_thread(read, ids)
    for thing_id in ids:
        (project, owner) = belongings.get(thing_id, _NOBODYS)
        access.check_changes(identity, thing_id, project, owner)
        if starts:
            access.check_submits(identity, project)


def changes_only_own(identity: Identity) -> bool:
    """Whether it may change only what it has submitted itself, but for the things of
    projects of which it is a maintainer.
    """
    return not identity.role.includes(Role.MAINTAINER)


def present_identity(scope: Mapping[str, Any]) -> Identity:
    """The same now, after it may have got another role. UnauthorizedError and
    ForbiddenError if it is not admitted any more.
    """
    identify_again: Callable[[], Identity | None] | None = scope.get(AGAIN_KEY)
    found = identify_again() if identify_again else None
    return found or identity_of(scope)


def visibility_of(scope: Mapping[str, Any], controller: Controller) -> Visibility:
    """What exists for who asks."""
    return controller.access.visibility_of(identity_of(scope))


def sees_for_as_long(scope: Scope, controller: Controller, job_id: str) -> None:
    """What is sent of this job may go on for days: it ends when the job does not exist
    any more for who asks.
    """
    projects = controller.core.queries.projects_of_jobs([job_id])
    project = projects.get(job_id)
    may = controller.access.may
    scope[SEES_KEY] = partial(may, action=Action.SEE, project=project)


def opens_for_as_long(
    scope: Scope, controller: Controller, job_id: str, user: str | None
) -> None:
    """A stream that `user` has opened to this job may go on for days: it ends when that
    user may open none any more.
    """
    queries = controller.core.queries
    submitter = queries.submitters_of([job_id]).get(job_id)
    project = queries.projects_of_jobs([job_id]).get(job_id)
    is_own = submitter == user
    may = controller.access.may

    def opens(identity: Identity) -> bool:
        if identity.role is Role.ADMINISTRATOR:
            return True
        return is_own and may(identity, Action.CHANGE, project, submitter)

    scope[SEES_KEY] = opens


def rights_of(scope: Scope, controller: Controller) -> Rights:
    """What who asks may submit."""
    return controller.access.rights_of(identity_of(scope))
