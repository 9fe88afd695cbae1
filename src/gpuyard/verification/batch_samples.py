"""Samples for a batch: each with its series, hidden prompt, trusted answer and seed."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background, problem_of
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call
from gpuyard.verification.prompts import LOST, read_blob, split_file
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind
from gpuyard.verification.records.samples import TakenSample

Files = Mapping[str, tuple[str, ...] | OSError]


@dataclass(frozen=True, slots=True)
class BatchSample:
    """What one check needs.

    `check_id` is the id of the check from now on; `seed` is secret until the barrier.
    """

    check_id: str
    sample_id: str
    workload_id: str
    seed: int
    series: tuple[str, ...]
    hidden: str
    answer: str


async def take_samples_by_class(
    context: Context, wanted: Mapping[Class, int], batch_id: str
) -> dict[Class, list[BatchSample]]:
    """Take samples for each class; `wanted` says how many.

    A class that is short of samples gets fewer, or none.
    """
    found = await asyncio.gather(
        *(take_samples(context, cls, count, batch_id) for cls, count in wanted.items())
    )
    return dict(zip(wanted, found, strict=True))


async def take_samples(
    context: Context, cls: Class, count: int, batch_id: str
) -> list[BatchSample]:
    """Take `count` samples of a class, or as many as there are.

    Each is used only once, ever. A sample whose series cannot be read is skipped and
    reported as an event.
    """
    if problem := await problem_of(context.blobs):
        # A sample that is taken but cannot be read is lost, so take none.
        await call(
            context.records.event,
            PipelineEventKind.BATCH,
            EventSubtype.ERROR_DOWNLOADING,
            cls,
            batch=batch_id,
            reason=problem,
        )
        return []
    rows = await call(context.records.take, cls, count, batch_id)
    if len(rows) < count:
        short = {"batch": batch_id, "wanted": count, "ready": len(rows)}
        await call(
            context.records.event,
            PipelineEventKind.BATCH,
            EventSubtype.INSUFFICIENT_PROMPTS,
            cls,
            **short,
        )
    files = await in_background(
        _read_all, context.blobs, {row.blob for row in rows}, TRAITS[cls].prompts
    )
    taken = [_taken(row, files) for row in rows]
    for row, one in zip(rows, taken, strict=True):
        if one is None:
            reason = f"{files[row.blob]}"[:300]
            faulty = {
                "batch": batch_id,
                "series": row.series_id,
                "sample": row.sample_id,
                "reason": reason,
            }
            await call(
                context.records.event,
                PipelineEventKind.BATCH,
                EventSubtype.ERROR_DOWNLOADING,
                cls,
                **faulty,
            )
            # Retire a series that is gone or damaged, unless so many are that the cause
            # must be elsewhere.
            if isinstance(files[row.blob], LOST) and taken.count(None) < len(taken) / 2:
                await call(context.records.retire_series, row.series_id)
    return [one for one in taken if one is not None]


def _taken(row: TakenSample, files: Files) -> BatchSample | None:
    series = files[row.blob]
    if isinstance(series, OSError):
        return None
    return BatchSample(
        row.check_id,
        row.sample_id,
        row.workload_id,
        row.seed,
        series,
        row.hidden,
        row.answer,
    )


def _read_all(blobs: Blobs, names: Sequence[str] | set[str], count: int) -> Files:
    files: dict[str, tuple[str, ...] | OSError] = {}
    for name in names:
        try:
            files[name] = split_file(read_blob(blobs, name, count))
        except OSError as error:
            files[name] = error
    return files
