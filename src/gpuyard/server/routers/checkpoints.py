"""`/api/v1/checkpoints`: one checkpoint and its bytes; a job's list of them is under
the job.
"""

from typing import Any

from fastapi import Request, Response
from fastapi.responses import FileResponse

from gpuyard.domain.errors import NotFoundError
from gpuyard.domain.jobs import Checkpoint
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import text
from gpuyard.server.permissions import visibility_of
from gpuyard.server.present import present_checkpoint
from gpuyard.server.range_response import blob_response
from gpuyard.storage.blobs import BlobStore

router = api_router("/checkpoints", tag="checkpoints")


@router.get("/{checkpoint_id}")
async def checkpoint(
    checkpoint_id: str, request: Request, app_state: TheAppState
) -> Checkpoint:
    """One checkpoint."""
    return present_checkpoint(_checkpoint_row(request, app_state, checkpoint_id))


@router.get(
    "/{checkpoint_id}/content",
    response_class=FileResponse,
    responses=text("application/octet-stream"),
)
async def checkpoint_content(
    checkpoint_id: str, app_state: TheAppState, request: Request
) -> Response:
    """Its bytes; a directory comes as a tar. `ETag` is the SHA-256."""
    row = _checkpoint_row(request, app_state, checkpoint_id)
    blobs = app_state.blobs
    gone = NotFoundError(
        f"Checkpoint {checkpoint_id} is no longer kept.",
        "`gpuyard checkpoints JOB` lists what is.",
    )
    if not row["kept"]:
        raise gone
    sha256 = row["sha256"]
    name = row["path"].rsplit("/", 1)[-1] + (".tar" if row["directory"] else "")
    if not isinstance(blobs, BlobStore):
        try:
            # Through this server: who asks it need not reach the bucket.
            return await blob_response(blobs, sha256, row["size"], name, request)
        except FileNotFoundError:
            raise gone from None
    if not blobs.has(sha256):
        raise gone
    return FileResponse(
        blobs.path(sha256), filename=name, headers={"ETag": f'"{sha256}"'}
    )


def _checkpoint_row(
    request: Request, app_state: AppState, checkpoint_id: str
) -> dict[str, Any]:
    row = app_state.queries.checkpoint(checkpoint_id)
    visibility = visibility_of(request.scope, app_state.controller)
    if row and visibility.hidden:
        projects = app_state.queries.projects_of_jobs([row["job_id"]])
        if not visibility.sees(projects.get(row["job_id"])):
            row = None
    if row is None:
        raise NotFoundError(
            f"There is no checkpoint {checkpoint_id!r}.",
            "`gpuyard checkpoints JOB` lists them.",
        )
    return row
