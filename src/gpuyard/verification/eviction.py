"""Removing what is old: series, workloads and their files that nobody needs any more."""

from collections.abc import Sequence
from typing import Any

from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background
from gpuyard.verification.classes import Class
from gpuyard.verification.context import Context, call
from gpuyard.verification.receipts import LONGEST_S
from gpuyard.verification.records.events import Kind, Subtype
from gpuyard.verification.step import Outcome, Step, run_step


async def evict(context: Context, cls: Class) -> Outcome:
    """Remove what of a class was used or retired more than `keep_s` ago; retire what was not answered in that time."""
    return await run_step(context, Kind.EVICTION, cls, _evict)


async def _evict(step: Step) -> dict[str, Any]:
    context, cls, policy = step.context, step.cls, step.context.policy
    records, now = context.records, context.clock.now()
    before = now - policy.keep_s
    retired = await call(records.retire_stale, cls, before)
    old = await call(records.old, cls, before)
    # Files first: what is killed here finds the rows again, and a file that is gone already is fine.
    _, fault = await in_background(_delete_all, context.blobs, old.blobs)
    if fault:
        raise fault
    await call(records.remove, old)
    await _remove_uploads(step, before)
    await call(records.remove_events, cls, now - policy.keep_events_s)
    # No class's in particular either. Twice as long as any is valid, since servers' clocks may differ.
    await call(records.forget_receipts, now - 2 * LONGEST_S)
    return {"retired": retired, "workloads": len(old.workloads), "series": len(old.series), "files": len(old.blobs)}


async def _remove_uploads(step: Step, before: float) -> None:
    """Remove files that a process was about to name when it died. They are no class's in particular."""
    records = step.context.records
    stale = await call(records.stale_uploads, before)
    gone, fault = await in_background(_delete_all, step.context.blobs, stale)
    await call(records.forget_uploads, gone)
    if fault:
        await step.tell(Subtype.FAILURE, reason=f"{type(fault).__name__}: {fault}"[:1000])


def _delete_all(blobs: Blobs, names: Sequence[str]) -> tuple[list[str], OSError | None]:
    """Those that are deleted, and the first fault."""
    gone: list[str] = []
    fault: OSError | None = None
    for name in names:
        try:
            blobs.delete(name)
            gone.append(name)
        except OSError as error:
            fault = fault or error
    return gone, fault
