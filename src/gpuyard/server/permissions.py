"""What each role may ask of the server.

The first table says it of requests, by method and path; whatever stands in none of its
rows is left to administrators. Those who may change only their own are told so where it
is known whose a job is.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import Scope

from gpuyard.controller.users import Identity
from gpuyard.domain.errors import ForbiddenError
from gpuyard.domain.users import Role
from gpuyard.ledger.queries import Queries

# Where the scope of a request (ASGI) has the identity of who has sent it.
IDENTITY_KEY = "gpuyard.identity"

_ONE = "[^/]+"
# The least role for each kind of request.
_REQUESTS: Mapping[Role, tuple[str, ...]] = {
    Role.VIEWER: (
        "(GET|HEAD|OPTIONS) /(metrics|v1/models(/.+)?)",
        "(GET|HEAD|OPTIONS) /api/v1/(?!ledger/).+",
        "POST /api/v1/(jobs:wait|estimate|estimate/batch)",
        f"(POST /api/v1/tokens|DELETE /api/v1/tokens/{_ONE})",
    ),
    Role.MEMBER: (
        "POST /v1/.+",
        "POST /api/v1/(jobs|arrays|batches|schedules|code|environments)",
        "POST /api/v1/jobs:(cancel|hold|release)",
        f"POST /api/v1/(jobs|arrays)/{_ONE}/(cancel|resume)",
        f"PATCH /api/v1/(jobs|arrays|schedules)/{_ONE}",
        f"WEBSOCKET /api/v1/jobs/{_ONE}/(exec|stdin|forward/{_ONE})",
        f"POST /api/v1/batches/{_ONE}/(cancel|retry)",
        f"(DELETE /api/v1/schedules/{_ONE}|POST /api/v1/schedules/{_ONE}/run)",
        f"PUT /api/v1/secrets/{_ONE}",
    ),
    Role.MAINTAINER: (
        "POST /api/v1/models/.+/(load|unload|pin|unpin)",
        f"POST /api/v1/gpus/{_ONE}/(drain|undrain|release)",
        f"POST /api/v1/nodes/{_ONE}/(cordon|uncordon|drain)",
        f"DELETE /api/v1/secrets/{_ONE}",
        "(PUT|DELETE) /api/v1/trust/.+",
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


async def check_own(scope: Scope, queries: Queries, ids: Sequence[str]) -> None:
    """ForbiddenError for who may change only its own, if one of these jobs, arrays or
    batches is not.
    """
    identity = identity_of(scope)
    if not changes_only_own(identity):
        return
    owners = await asyncio.to_thread(queries.submitters_of, ids)
    for thing_id in ids:
        check_owner(identity, thing_id, owners.get(thing_id))


def changes_only_own(identity: Identity) -> bool:
    """Whether it may change only what it has submitted itself."""
    return not identity.role.includes(Role.MAINTAINER)


def check_owner(identity: Identity, thing: str, owner: str | None) -> None:
    """ForbiddenError for who may change only its own, if this is not."""
    if changes_only_own(identity) and owner != identity.user:
        whose = owner or "the owner of the instance"
        raise ForbiddenError(
            f"{thing} was submitted by {whose}; a {identity.role} such as"
            f" {identity.user} changes only what is its own.",
            f"Ask {whose}, or a maintainer.",
        )
