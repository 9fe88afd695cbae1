"""`/api/v1/environments`: takes the environment that the jobs of a client carry, also
on standby. No route returns one.
"""

import asyncio
import errno
from dataclasses import replace

import msgspec
from fastapi import Request
from pydantic import BaseModel

from gpuyard.config.dialling import loopback_id
from gpuyard.controller.intake import reading_json
from gpuyard.domain.carried_environment import CarriedEnvironment, carried_from
from gpuyard.domain.errors import InvalidInputError
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import submitter_of
from gpuyard.server.dependencies import TheAppState
from gpuyard.storage.environments import MAX_BYTES

router = api_router("/environments", tag="jobs")


class StoredEnvironment(BaseModel):
    """The value for `carried_environment` in the specs of jobs; null where jobs cannot
    carry one, because the client is on another host.
    """

    digest: str | None = None


class _HandedOver(msgspec.Struct):
    """`host` is the client's `loopback_id`; `keys` are the names of those that the
    client kept because they look like keys.
    """

    host: str
    variables: dict[str, str]
    keys: list[str] = []


_decoder = msgspec.json.Decoder(_HandedOver)


@router.post("", status_code=201)
async def store(request: Request, app_state: TheAppState) -> StoredEnvironment:
    """Store variables for the jobs that a client is about to submit, given as
    `{"host": …, "variables": {NAME: VALUE}, "keys": [NAME]}`. What never travels is
    dropped. Only jobs of who asks carry them.
    """
    content = await request.body()
    # Its messages tell the place of a fault, and no value.
    with reading_json():
        given = _decoder.decode(content)
    _check(given)
    if given.host != loopback_id():
        return StoredEnvironment()
    user = submitter_of(request.scope) or ""
    environment = replace(_without_what_stays(given, app_state), user=user)
    store = app_state.controller.submissions.environments
    try:
        digest = await asyncio.to_thread(store.put, environment)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise app_state.controller.disks.full_disk(
            f"The environment of the job cannot be stored in {app_state.home.root}:"
            " the disk is full."
        ) from None
    return StoredEnvironment(digest=digest)


def _check(given: _HandedOver) -> None:
    size = sum(len(name) + len(value) for name, value in given.variables.items())
    if size > MAX_BYTES:
        fault = f"hold {size} characters; an environment has at most {MAX_BYTES}"
        raise InvalidInputError.of(
            "variables", fault, "submit with --clean-env, and name what jobs need"
        )
    for name, value in given.variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidInputError.of(
                "variables",
                "hold what cannot be a variable",
                "send names without '=', and neither with NUL bytes",
            )


def _without_what_stays(given: _HandedOver, app_state: AppState) -> CarriedEnvironment:
    never = app_state.settings.jobs.never_carry
    found = carried_from(given.variables | dict.fromkeys(given.keys, ""), never)
    return CarriedEnvironment(found.variables, found.keys)
