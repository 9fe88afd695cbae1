"""Deletes what no checkpoint and no artifact needs any more."""

import asyncio

import structlog

from gpuyard.controller.core import Core
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 600.0
# Whoever has stored a blob names it in the ledger by then.
_NAMED_AFTER_S = 3600.0
# By so much the clocks of the store and of nodes may differ.
_CLOCK_MARGIN_S = 60.0
log = structlog.get_logger(__name__)


async def delete_unused(core: Core, blobs: Blobs, sha256: str, named_at: float) -> None:
    """Delete a blob, unless the ledger needs it; repeat while a bucket does not answer.

    Call it once the ledger has forgotten the blob, so that it never names one that is
    gone. `named_at`: when the ledger had it (UTC seconds). If it was stored again since
    then, somebody is about to name it: it is looked at again in an hour.
    """
    pause_s = _FIRST_PAUSE_S
    while not core.queries.blob_is_used(sha256):
        try:
            stored_at = await in_background(blobs.stored_at, sha256)
            if stored_at is None:
                return
            wait_s = named_within_s(stored_at, named_at, core.clock())
            if wait_s > 0:
                later = _delete_later(core, blobs, sha256, named_at, wait_s)
                core.spawn(later, "delete-blob")
            else:
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


def named_within_s(stored_at: float, named_at: float, now: float) -> float:
    """For how long (s) somebody may still be about to name a blob that was stored last
    at `stored_at`; zero or less if nobody is. `named_at`: when the ledger had it. All
    are UTC seconds.
    """
    was_stored_again = stored_at > named_at + _CLOCK_MARGIN_S
    return stored_at + _NAMED_AFTER_S - now if was_stored_again else 0.0


async def _delete_later(
    core: Core, blobs: Blobs, sha256: str, named_at: float, wait_s: float
) -> None:
    await asyncio.sleep(wait_s)
    await delete_unused(core, blobs, sha256, named_at)
