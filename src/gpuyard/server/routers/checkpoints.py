"""`/api/v1/checkpoints`: one checkpoint and its bytes; a job's list of them is under the job."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse

from gpuyard.domain.errors import NotFoundError
from gpuyard.domain.jobs import Checkpoint
from gpuyard.server.openapi import text
from gpuyard.server.present import present_checkpoint
from gpuyard.server.yard import TheYard, Yard

router = APIRouter(prefix="/checkpoints", tags=["checkpoints"])


@router.get("/{checkpoint_id}")
async def checkpoint(checkpoint_id: str, yard: TheYard) -> Checkpoint:
    """One checkpoint."""
    return present_checkpoint(_checkpoint_row(yard, checkpoint_id))


@router.get("/{checkpoint_id}/content", response_class=FileResponse, responses=text("application/octet-stream"))
async def checkpoint_content(checkpoint_id: str, yard: TheYard) -> Response:
    """Its bytes; a directory comes as a tar. `ETag` is the SHA-256."""
    row = _checkpoint_row(yard, checkpoint_id)
    if not row["kept"] or not yard.blobs.has(row["sha256"]):
        raise NotFoundError(
            f"Checkpoint {checkpoint_id} is no longer kept.", "`gpuyard checkpoints JOB` lists what is."
        )
    name = row["path"].rsplit("/", 1)[-1] + (".tar" if row["directory"] else "")
    return FileResponse(yard.blobs.path(row["sha256"]), filename=name, headers={"ETag": f'"{row["sha256"]}"'})


def _checkpoint_row(yard: Yard, checkpoint_id: str) -> dict[str, Any]:
    row = yard.queries.checkpoint(checkpoint_id)
    if row is None:
        raise NotFoundError(f"There is no checkpoint {checkpoint_id!r}.", "`gpuyard checkpoints JOB` lists them.")
    return row
