"""`/api/v1/packages`: takes the files that name packages, for jobs that are about to be
submitted. No route returns them.
"""

import asyncio
from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, Field

from gpuyard.domain.packages import read_packages
from gpuyard.domain.strict_model import StrictModel
from gpuyard.server.api_router import api_router
from gpuyard.server.callers import submitter_of
from gpuyard.server.dependencies import TheAppState

router = api_router("/packages", tag="jobs")


class PackageFiles(StrictModel):
    """`main` is the file that names the packages, such as `requirements.txt`; `files`
    are the texts of it and of what belongs to it, by path.
    """

    main: Annotated[str, Field(max_length=1000)]
    files: Annotated[dict[str, str], Field(max_length=100)]


class StoredPackages(BaseModel):
    """`digest` is the value for `packages` in the specs of jobs. `python` says which
    versions of Python suit; empty for any.
    """

    digest: str
    python: str


@router.post("", status_code=201)
async def store(
    given: PackageFiles, request: Request, app_state: TheAppState
) -> StoredPackages:
    """Check what a file asks for, and store it for jobs of who asks."""
    user = submitter_of(request.scope)
    packages = await asyncio.to_thread(read_packages, given.main, given.files, user)
    store = app_state.controller.submissions.packages
    digest = await asyncio.to_thread(store.put, packages)
    return StoredPackages(digest=digest, python=packages.python)
