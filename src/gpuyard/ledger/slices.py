"""Long work on the ledger beside running commits: in slices, with rests."""

import asyncio
import time
from collections.abc import Callable

import sqlalchemy as sa

from gpuyard.ledger.writer import Writer

# After a slice, commits have the ledger to themselves for this many times as long as it
# took.
_REST = 2.0

Slice = Callable[[sa.Connection], int | None]


async def in_slices(writer: Writer, run_slice: Slice) -> int:
    """Call `run_slice` in one transaction after another until it returns None; returns
    the sum of what it returned. LedgerError.
    """
    total = 0
    while True:
        began = time.monotonic()
        done = await writer.maintain(run_slice)
        if done is None:
            return total
        total += done
        await asyncio.sleep(_REST * (time.monotonic() - began))
