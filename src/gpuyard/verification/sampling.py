"""The second pipeline: workloads of hidden prompts, drawn from series in random order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.storage.place import in_background, problem_of
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call
from gpuyard.verification.files import LOST, keep_files, read_blob, read_prompt, split_file
from gpuyard.verification.records.events import Kind, Subtype
from gpuyard.verification.records.series import Series
from gpuyard.verification.records.workloads import Hidden, NewWorkload
from gpuyard.verification.step import Fail, Outcome, Skip, Step, run_step

# So many workloads share a transaction, and their files the disk's turns: more than a usual run makes.
_AT_ONCE = 16


async def sample(context: Context, cls: Class) -> Outcome:
    """Make as many workloads as it takes to have `target` unused samples. What does not fill a workload is not kept."""
    return await run_step(context, Kind.SAMPLING, cls, _sample)


async def _sample(step: Step) -> dict[str, Any]:
    context, cls = step.context, step.cls
    size = TRAITS[cls].prompts
    wanted = -(-await _need(step) // size)
    # A store that is gone would look as if every file in it were.
    if problem := await problem_of(context.blobs):
        raise Fail(f"the storage cannot be used: {problem}", Subtype.ERROR_DOWNLOADING)
    await step.tell(Subtype.STARTED, workloads=wanted)
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
        raise Fail("no workload could be filled and stored", left=left)
    await step.tell(Subtype.NEW_WORKLOADS_CREATED, workloads=made, samples=made * size)
    return {"workloads": made, "wanted": wanted}


async def _need(step: Step) -> int:
    """How many samples to make; Skip when none, or when there are too few series for prompts to stay hidden."""
    records, policy, cls = step.context.records, step.context.policy, step.cls
    need = policy.target - await call(records.samples_unused, cls)
    if need <= 0:
        raise Skip(f"there are {policy.target} unused samples")
    count = await call(records.series_count, cls)
    gate = max(min(2 * policy.target, policy.max_series), TRAITS[cls].prompts)
    if count < gate:
        told = f"there are {count} series, and {gate} are needed"
        raise Skip(told, Subtype.INSUFFICIENT_PROMPTS, series=count, needed=gate)
    return need


async def _store(step: Step, workloads: Sequence[Sequence[Hidden]]) -> int:
    """Keep workloads, each whole or not at all; how many were kept."""
    context, cls = step.context, step.cls
    files = [[prompt for _, prompt in hidden] for hidden in workloads]
    fresh: list[NewWorkload] = []
    for hidden, blob in zip(workloads, await keep_files(context, files), strict=True):
        if isinstance(blob, OSError):
            await step.tell(Subtype.ERROR_UPLOADING, reason=f"{type(blob).__name__}: {blob}"[:1000])
        else:
            fresh.append(NewWorkload(context.draw_seed(), blob, hidden))
    if fresh:
        await call(context.records.add_workloads, cls, fresh)
    return len(fresh)


async def _tell_faults(step: Step, pool: "_Pool") -> None:
    """Files that are gone or damaged are read no more, unless so many are that the fault must be elsewhere."""
    if not pool.faults:
        return
    lost = [fault.series_id for fault in pool.faults if fault.lost]
    lost = lost if len(lost) < pool.read else []
    for series_id in lost:
        await call(step.context.records.retire_series, series_id)
    first = pool.faults[0]
    await step.tell(Subtype.ERROR_DOWNLOADING, series=len(pool.faults), first=first.series_id, reason=first.reason,
                    retired=len(lost))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Fault:
    """A series that could not be read; `lost`: it never can be."""

    series_id: str
    reason: str
    lost: bool


class _Pool:
    """Series in random order, of which each gives one prompt. `read` counts those that did."""

    def __init__(self, context: Context, series: Sequence[Series], size: int) -> None:
        self.faults: list[_Fault] = []
        self.read = 0
        self._context, self._size = context, size
        self._left = list(series)
        context.random.shuffle(self._left)

    async def draw(self, workloads: int) -> list[list[Hidden]]:
        """Prompts for so many workloads; when there are no more series, of which none is drawn twice, the last has
        fewer."""
        return await in_background(lambda: [self._fill() for _ in range(workloads) if self._left])

    def _fill(self) -> list[Hidden]:
        """Prompts for one, no two the same."""
        drawn: list[Hidden] = []
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
        """Any of a series' prompts that is not among `seen`."""
        blobs, size = self._context.blobs, self._size
        prompt = read_prompt(blobs, series.blob, size, self._context.random.randrange(size))
        if prompt not in seen:
            return prompt
        return next((one for one in split_file(read_blob(blobs, series.blob, size)) if one not in seen), None)
