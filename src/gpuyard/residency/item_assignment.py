"""Item assignment: which GPU runs which item of a batch, so that the last model is
loaded again as early as possible.

Durations are known (probed from the media). Idle GPUs pull the longest item first.
Models are loaded again one at a time, so the GPUs should finish their items one after
the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FAR_FROM_OVER = 8
"""If more items per GPU are left, the longest item is as good a choice as any plan."""


def longest_first(
    durations: Sequence[float], free_at: Sequence[float], tails: Sequence[float]
) -> list[list[int]]:
    """The items of each GPU, as indices, in the order in which it runs them.

    `free_at`: when each GPU can start (seconds). `tails`: how many seconds each is
    still needed after its last item.
    """
    ends = [free + tail for free, tail in zip(free_at, tails, strict=True)]
    gpus = range(len(ends))
    plan: list[list[int]] = [[] for _ in gpus]
    # The sort is stable: of equally long items the first comes first.
    for item in sorted(
        range(len(durations)), key=lambda item: durations[item], reverse=True
    ):
        gpu = min(gpus, key=lambda gpu: ends[gpu])
        plan[gpu].append(item)
        ends[gpu] += durations[item]
    return plan


def round_robin(count: int, gpus: int) -> list[list[int]]:
    """The assignment of the seed document: with three GPUs, the first runs items 1, 4,
    7…, the second 2, 5, 8…
    """
    return [list(range(first, count, gpus)) for first in range(gpus)]


def serial_tails(gpus: int, load_s: float) -> list[float]:
    """The tails if models are loaded one at a time: the first GPU to finish must leave
    time for the loads on all others.
    """
    return [load_s * (gpus - position) for position in range(gpus)]


@dataclass(frozen=True, slots=True)
class BatchGpu:
    """A GPU of a batch: when it is free for the next item, and how long it takes to
    load its model afterwards. Times are in seconds.
    """

    gpu: str
    free_at: float
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What a GPU does for a batch: how many items it runs from `starts_at` on, when
    these are done, and when its model is loaded again.
    """

    gpu: str
    items: int
    starts_at: float
    items_done_at: float
    model_back_at: float


def next_item(
    durations: Sequence[float], places: Sequence[BatchGpu], gpu: str
) -> int | None:
    """Which of the remaining items `gpu` runs next; None if it should run no more."""
    if not durations:
        return None
    if len(durations) > FAR_FROM_OVER * len(places):
        return max(range(len(durations)), key=lambda item: durations[item])
    free_at = [place.free_at for place in places]
    plans = longest_first(durations, free_at, _tails(places))
    number = [place.gpu for place in places].index(gpu)
    return plans[number][0] if plans[number] else None


def plan_batch(
    durations: Sequence[float], places: Sequence[BatchGpu], exit_s: float
) -> list[GpuPlan]:
    """What each GPU does from now on, in seconds from now. The batch ends at the last
    `model_back_at`.
    """
    if not places:
        return []
    free_at = [place.free_at for place in places]
    items = longest_first(durations, free_at, _tails(places))
    done_at: list[float] = []
    for place, own_items in zip(places, items, strict=True):
        run_s = sum(durations[item] for item in own_items)
        done_at.append(place.free_at + run_s + exit_s)
    back_at = list(done_at)
    # Models are loaded one at a time, in the order in which the GPUs finish.
    previous_at = 0.0
    for number in sorted(range(len(places)), key=lambda number: done_at[number]):
        load_s = places[number].load_s if items[number] else 0.0
        if load_s:
            back_at[number] = max(done_at[number], previous_at) + load_s
        previous_at = back_at[number]
    return [
        GpuPlan(place.gpu, len(own_items), place.free_at, done, back)
        for place, own_items, done, back in zip(
            places, items, done_at, back_at, strict=True
        )
    ]


def _tails(places: Sequence[BatchGpu]) -> list[float]:
    """The tails of `longest_first`. Models are loaded one at a time, so the GPU that is
    free first must leave time for the loads on all others.
    """
    tails = [0.0] * len(places)
    loads_s = 0.0
    with_load = [number for number, place in enumerate(places) if place.load_s]
    for number in sorted(
        with_load, key=lambda number: places[number].free_at, reverse=True
    ):
        loads_s += places[number].load_s
        tails[number] = loads_s
    return tails
