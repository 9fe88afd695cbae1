"""The fourth pipeline: remove old series, workloads and their files."""

from collections.abc import Sequence
from typing import Any

from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background
from gpuyard.verification.classes import Class
from gpuyard.verification.context import Context, call
from gpuyard.verification.pipelines.step import StepOutcome, StepRun, run_step
from gpuyard.verification.receipts import LONGEST_S
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind


async def evict(context: Context, cls: Class) -> StepOutcome:
    """Remove what was used or retired more than `keep_s` ago.

    What was not answered in that time is retired.
    """
    return await run_step(context, PipelineEventKind.EVICTION, cls, _evict)


async def _evict(step: StepRun) -> dict[str, Any]:
    context = step.context
    cls = step.cls
    policy = step.context.policy
    records = context.records
    now = context.clock.now()
    before = now - policy.keep_s
    retired = await call(records.retire_stale, cls, before)
    old = await call(records.expired, cls, before)
    # Files first: after a crash the rows are still there, and a missing file is fine.
    _, fault = await in_background(_delete_all, context.blobs, old.blobs)
    if fault:
        raise fault
    await call(records.remove_expired, old)
    await _remove_uploads(step, before)
    await call(records.remove_events, cls, now - policy.keep_events_s)
    # Receipts have no class. Keep them twice as long as any is valid, since servers'
    # clocks may differ.
    await call(records.forget_receipts, now - 2 * LONGEST_S)
    return {
        "retired": retired,
        "workloads": len(old.workloads),
        "series": len(old.series),
        "files": len(old.blobs),
    }


async def _remove_uploads(step: StepRun, before: float) -> None:
    """Remove files of any class whose process died before it named them."""
    records = step.context.records
    stale = await call(records.stale_uploads, before)
    gone, fault = await in_background(_delete_all, step.context.blobs, stale)
    await call(records.forget_uploads, gone)
    if fault:
        await step.tell(
            EventSubtype.FAILURE, reason=f"{type(fault).__name__}: {fault}"[:1000]
        )


def _delete_all(blobs: Blobs, names: Sequence[str]) -> tuple[list[str], OSError | None]:
    """Delete files; returns those that are deleted, and the first error."""
    gone: list[str] = []
    fault: OSError | None = None
    for name in names:
        try:
            blobs.delete(name)
            gone.append(name)
        except OSError as error:
            fault = fault or error
    return gone, fault
