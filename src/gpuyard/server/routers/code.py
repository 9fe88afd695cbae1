"""`/api/v1/code`: stores the code of a working folder, for jobs that are about to be
submitted. A server on standby does this, too: the folder is on its host.
"""

from pathlib import Path

from fastapi import Request
from pydantic import BaseModel

from gpuyard.config.dialling import loopback_id
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.domain.strict_model import StrictModel
from gpuyard.server.api_router import api_router
from gpuyard.server.callers import submitter_of
from gpuyard.server.dependencies import TheAppState
from gpuyard.storage.place import in_background

router = api_router("/code", tag="jobs")


class WorkingFolder(StrictModel):
    """`host` is the client's `loopback_id`; `project` is that of the jobs."""

    host: str
    workdir: str
    project: str = ""


class StoredCode(BaseModel):
    """The value for `submitted_code` in the specs of jobs; null if jobs run the code as
    it is when they start. `why` says so for people, where they may not expect it.
    """

    digest: str | None = None
    why: str = ""


@router.post("", status_code=201)
async def store(
    folder: WorkingFolder, request: Request, app_state: TheAppState
) -> StoredCode:
    """Store the code of a folder of this host: what git tracks, programs and their
    settings. A file that looks as before is not read again.

    Where jobs have accounts, it is read as the account of the jobs, and is for jobs of
    that account only.
    """
    if folder.host != loopback_id() or app_state.settings.jobs.live:
        return StoredCode()
    take = app_state.controller.submissions.take_code
    user = submitter_of(request.scope)
    try:
        digest = await in_background(take, Path(folder.workdir), folder.project, user)
    except InvalidInputError as error:
        (fault,) = error.faults
        return StoredCode(why=f"{fault.field} {fault.fault}; {fault.remedy}")
    except (OSError, GpuyardError, ValueError) as error:
        return StoredCode(why=str(error))
    return StoredCode(digest=digest)
