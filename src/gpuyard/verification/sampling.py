"""The second pipeline: workloads of hidden prompts, drawn from series in random order."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background, problem_of
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call
from gpuyard.verification.files import DamagedFileError, keep_files, read_blob
from gpuyard.verification.records.events import Kind, Subtype
from gpuyard.verification.records.series import Series
from gpuyard.verification.step import Fail, Outcome, Skip, Step, run_step

Hidden = tuple[str, str]
"""A series' id and one of its prompts."""


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
    made = 0
    hidden = await pool.draw()
    for number in range(wanted, 0, -1):
        if len(hidden) < size:
            break
        # While one workload is stored, the prompts of the next are read.
        stored, hidden = await asyncio.gather(_store(step, hidden), pool.draw() if number > 1 else _nothing())
        made += stored
    await _tell_faults(step, pool)
    if not made:
        raise Fail("no workload could be filled and stored", unfilled=len(hidden))
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


async def _store(step: Step, hidden: Sequence[Hidden]) -> bool:
    """Keep one workload, whole or not at all; whether it was."""
    context, cls = step.context, step.cls
    try:
        (blob,) = await keep_files(context, [[prompt for _, prompt in hidden]])
    except OSError as error:
        await step.tell(Subtype.ERROR_UPLOADING, reason=f"{type(error).__name__}: {error}"[:1000])
        return False
    await call(context.records.add_workload, cls, context.draw_seed(), blob, hidden)
    return True


async def _nothing() -> list[Hidden]:
    return []


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

    async def draw(self) -> list[Hidden]:
        """Prompts for a workload, no two the same; fewer when there are no more series."""
        drawn: list[Hidden] = []
        while self._left and len(drawn) < self._size:
            cut = max(len(self._left) - (self._size - len(drawn)), 0)
            some, self._left = self._left[cut:], self._left[:cut]
            places = [self._context.random.randrange(self._size) for _ in some]
            seen = {prompt for _, prompt in drawn}
            found, faults = await in_background(_draw_all, self._context.blobs, some, places, self._size, seen)
            drawn += found
            self.faults += faults
            self.read += len(found)
        return drawn


def _draw_all(
    blobs: Blobs, some: Sequence[Series], places: Sequence[int], size: int, seen: set[str]
) -> tuple[list[Hidden], list[_Fault]]:
    """A prompt of each series that is not among `seen`, to which it is added."""
    found: list[Hidden] = []
    faults: list[_Fault] = []
    for series, place in zip(some, places, strict=True):
        try:
            prompt = next((one for one in _prompts(blobs, series.blob, size, place) if one not in seen), None)
        except OSError as error:
            lost = isinstance(error, FileNotFoundError | DamagedFileError)
            faults.append(_Fault(series.id, f"{type(error).__name__}: {error}"[:300], lost))
            continue
        if prompt is not None:
            seen.add(prompt)
            found.append((series.id, prompt))
    return found, faults


def _prompts(blobs: Blobs, blob: str, size: int, place: int) -> Iterator[str]:
    """A series' prompts from a place on, and then those before it."""
    lines = read_blob(blobs, blob, size).split(b"\n")
    yield lines[place].decode()
    yield from (line.decode() for line in (*lines[place + 1 : size], *lines[:place]))
