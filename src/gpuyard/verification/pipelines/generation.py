"""The first pipeline: new series of prompts for a class."""

from collections.abc import Sequence
from typing import Any

from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call, with_trusted
from gpuyard.verification.pipelines.step import (
    StepFailed,
    StepOutcome,
    StepRun,
    StepSkipped,
    run_step,
)
from gpuyard.verification.prompts import chosen_prompts, keep_files
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind


async def generate(context: Context, cls: Class) -> StepOutcome:
    """Make up to `series_per_run` new series.

    At `max_series` they replace the oldest used ones. It is skipped while a workload of
    the class waits for answers, since that is more urgent for the trusted executor.
    """
    return await run_step(context, PipelineEventKind.GENERATION, cls, _generate)


async def _generate(step: StepRun) -> dict[str, Any]:
    context = step.context
    cls = step.cls
    policy = step.context.policy
    wanted = await _wanted(step)
    await step.tell(EventSubtype.STARTED, series=wanted)
    made = await _made(step, wanted)
    files, fault = _files(made[:wanted], TRAITS[cls].prompts)
    if not files:
        raise StepFailed(f"no series can be used: {fault or 'none was made'}")
    stored = await keep_files(context, files)
    blobs = [one for one in stored if isinstance(one, str)]
    if len(blobs) < len(stored):
        first = next(one for one in stored if isinstance(one, OSError))
        told = StepFailed(
            f"{type(first).__name__}: {first}"[:1000],
            EventSubtype.ERROR_UPLOADING,
            series=len(stored) - len(blobs),
        )
        if not blobs:
            raise told
        await step.tell(told.subtype, reason=str(told), **told.data)
    version = context.generator.generator_version
    added = await call(
        context.records.add_series, cls, blobs, version, policy.max_series
    )
    if not added:
        raise StepFailed("every series that was made is there already")
    return {
        "series": added,
        **({"left_out": len(made) - len(files), "reason": fault} if fault else {}),
    }


async def _wanted(step: StepRun) -> int:
    """How many series to make; StepSkipped when none."""
    context = step.context
    cls = step.cls
    policy = step.context.policy
    if context.generator.needs_trusted and context.trusted(cls) is None:
        raise StepSkipped(
            f"no executor of the class {cls} is trusted",
            EventSubtype.TRUSTED_NOT_CONFIGURED,
        )
    if waiting := await call(context.records.unfinished, cls):
        raise StepSkipped(
            "workloads wait for answers",
            EventSubtype.UNPROCESSED_WORKLOADS,
            workloads=len(waiting),
        )
    room = await call(context.records.series_room, cls, policy.max_series)
    if not room:
        raise StepSkipped(
            f"there are {policy.max_series} series, and none was used",
            series=policy.max_series,
        )
    return min(room, policy.series_per_run)


async def _made(step: StepRun, wanted: int) -> Sequence[Sequence[object]]:
    context = step.context
    cls = step.cls
    trusted = context.trusted(cls) if context.generator.needs_trusted else None
    count = TRAITS[cls].prompts + context.policy.surplus

    async def make() -> Sequence[Sequence[object]]:
        return await context.generator.generate(cls, count, wanted, trusted)

    if trusted is None:
        return await make()
    made = await with_trusted(context, trusted, make)
    await call(context.records.note_answer, cls)
    return made


def _files(
    made: Sequence[Sequence[object]], count: int
) -> tuple[list[tuple[str, ...]], str]:
    """The usable series, and what is wrong with the first of the others."""
    files: list[tuple[str, ...]] = []
    fault = ""
    for number, prompts in enumerate(made, 1):
        try:
            files.append(chosen_prompts(prompts, count))
        except ValueError as error:
            fault = fault or f"series {number} {error}"
    return files, fault
