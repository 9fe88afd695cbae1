"""Deletes what no checkpoint and no artifact needs any more."""

import asyncio

import structlog

from gpuyard.controller.core import Core
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 600.0
log = structlog.get_logger(__name__)


async def delete_unused(core: Core, blobs: Blobs, sha256: str) -> None:
    """Delete a blob, unless the ledger needs it; repeat while a bucket does not answer.

    Call it once the ledger has forgotten the blob, so that it never names one that is
    gone.
    """
    pause_s = _FIRST_PAUSE_S
    while not core.queries.blob_is_used(sha256):
        try:
            await in_background(blobs.delete, sha256)
            return
        except OSError as error:
            log.warning(
                "a blob that nobody needs cannot be deleted, will try again",
                sha256=sha256,
                error=str(error),
            )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
