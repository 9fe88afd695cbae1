"""The second pipeline: workloads of hidden prompts, drawn from series at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.storage.place import in_background, problem_of
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call
from gpuyard.verification.pipelines.step import (
    StepFailed,
    StepOutcome,
    StepRun,
    StepSkipped,
    run_step,
)
from gpuyard.verification.prompts import (
    LOST,
    keep_files,
    read_blob,
    read_prompt,
    split_file,
)
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind
from gpuyard.verification.records.series import Series
from gpuyard.verification.records.workloads import HiddenPrompt, NewWorkload

# How many workloads are stored in one transaction; a usual run makes fewer.
_AT_ONCE = 16


async def sample(context: Context, cls: Class) -> StepOutcome:
    """Make workloads until there are `target` unused samples.

    A workload that cannot be filled is not kept.
    """
    return await run_step(context, PipelineEventKind.SAMPLING, cls, _sample)


async def _sample(step: StepRun) -> dict[str, Any]:
    context = step.context
    cls = step.cls
    size = TRAITS[cls].prompts
    wanted = -(-await _need(step) // size)
    # If the storage is gone, every file would seem to be lost.
    if problem := await problem_of(context.blobs):
        raise StepFailed(
            f"the storage cannot be used: {problem}", EventSubtype.ERROR_DOWNLOADING
        )
    await step.tell(EventSubtype.STARTED, workloads=wanted)
    pool = _Pool(context, await call(context.records.series, cls), size)
    made = left = 0
    for first in range(0, wanted, _AT_ONCE):
        drawn = await pool.draw(min(_AT_ONCE, wanted - first))
        whole = [hidden for hidden in drawn if len(hidden) == size]
        left = sum(map(len, drawn)) - len(whole) * size
        made += await _store(step, whole) if whole else 0
        if len(whole) < _AT_ONCE:
            break
    await _tell_faults(step, pool)
    if not made:
        raise StepFailed("no workload could be filled and stored", left=left)
    await step.tell(
        EventSubtype.NEW_WORKLOADS_CREATED, workloads=made, samples=made * size
    )
    return {"workloads": made, "wanted": wanted}


async def _need(step: StepRun) -> int:
    """How many samples to make; StepSkipped when none.

    Also when there are too few series for the prompts to stay hidden.
    """
    records = step.context.records
    policy = step.context.policy
    cls = step.cls
    need = policy.target - await call(records.samples_unused, cls)
    if need <= 0:
        raise StepSkipped(f"there are {policy.target} unused samples")
    count = await call(records.series_count, cls)
    gate = max(min(2 * policy.target, policy.max_series), TRAITS[cls].prompts)
    if count < gate:
        told = f"there are {count} series, and {gate} are needed"
        raise StepSkipped(
            told, EventSubtype.INSUFFICIENT_PROMPTS, series=count, needed=gate
        )
    return need


async def _store(step: StepRun, workloads: Sequence[Sequence[HiddenPrompt]]) -> int:
    """Store workloads, each completely or not at all; returns how many."""
    context = step.context
    cls = step.cls
    files = [[prompt for _, prompt in hidden] for hidden in workloads]
    fresh: list[NewWorkload] = []
    for hidden, blob in zip(workloads, await keep_files(context, files), strict=True):
        if isinstance(blob, OSError):
            await step.tell(
                EventSubtype.ERROR_UPLOADING,
                reason=f"{type(blob).__name__}: {blob}"[:1000],
            )
        else:
            fresh.append(NewWorkload(context.draw_seed(), blob, hidden))
    if fresh:
        await call(context.records.add_workloads, cls, fresh)
    return len(fresh)


async def _tell_faults(step: StepRun, pool: "_Pool") -> None:
    """Report unreadable series, and retire those that are gone or damaged.

    None is retired when so many are lost that the cause must be elsewhere.
    """
    if not pool.faults:
        return
    lost = [fault.series_id for fault in pool.faults if fault.lost]
    lost = lost if len(lost) < pool.read else []
    for series_id in lost:
        await call(step.context.records.retire_series, series_id)
    first = pool.faults[0]
    await step.tell(
        EventSubtype.ERROR_DOWNLOADING,
        series=len(pool.faults),
        first=first.series_id,
        reason=first.reason,
        retired=len(lost),
    )


@dataclass(frozen=True, slots=True)
class _Fault:
    """A series that could not be read. `lost`: it never will be."""

    series_id: str
    reason: str
    lost: bool


class _Pool:
    """Series in random order, each of which gives one prompt. `read` counts them."""

    def __init__(self, context: Context, series: Sequence[Series], size: int) -> None:
        self.faults: list[_Fault] = []
        self.read = 0
        self._context = context
        self._size = size
        self._left = list(series)
        context.random.shuffle(self._left)

    async def draw(self, workloads: int) -> list[list[HiddenPrompt]]:
        """Draw the prompts of so many workloads.

        No series is used twice. When they run out, the last workload has fewer prompts.
        """
        return await in_background(
            lambda: [self._fill() for _ in range(workloads) if self._left]
        )

    def _fill(self) -> list[HiddenPrompt]:
        """The prompts of one workload, all different."""
        drawn: list[HiddenPrompt] = []
        seen: set[str] = set()
        while self._left and len(drawn) < self._size:
            series = self._left.pop()
            try:
                prompt = self._prompt_of(series, seen)
            except OSError as error:
                reason = f"{type(error).__name__}: {error}"[:300]
                self.faults.append(_Fault(series.id, reason, isinstance(error, LOST)))
                continue
            self.read += 1
            if prompt is not None:
                seen.add(prompt)
                drawn.append((series.id, prompt))
        return drawn

    def _prompt_of(self, series: Series, seen: set[str]) -> str | None:
        """A random prompt of a series that is not in `seen`."""
        blobs = self._context.blobs
        size = self._size
        prompt = read_prompt(
            blobs, series.blob, size, self._context.random.randrange(size)
        )
        if prompt not in seen:
            return prompt
        return next(
            (
                one
                for one in split_file(read_blob(blobs, series.blob, size))
                if one not in seen
            ),
            None,
        )
