"""Batches: which GPU runs which item, so that the last model is back soonest.

Durations are known (probed from the media). Idle GPUs pull the longest item first; where models are loaded one at a
time afterwards, the GPUs are to run dry one after the other, so that each load finds its turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FAR_FROM_OVER = 8
"""With so many items a GPU still to come, the longest of them is as good as any plan."""


def longest_first(durations: Sequence[float], free_at: Sequence[float], tails: Sequence[float]) -> list[list[int]]:
    """Each GPU's items, as indices, in the order in which it runs them.

    `free_at`: when each GPU can begin (seconds); `tails`: what must follow on it before all is over.
    """
    ends = [free + tail for free, tail in zip(free_at, tails, strict=True)]
    plan: list[list[int]] = [[] for _ in free_at]
    for item in sorted(range(len(durations)), key=lambda item: (-durations[item], item)):
        gpu = min(range(len(ends)), key=lambda gpu: (ends[gpu] + durations[item], gpu))
        plan[gpu].append(item)
        ends[gpu] += durations[item]
    return plan


def in_turn(count: int, gpus: int) -> list[list[int]]:
    """The seed document's way: GPU 1 runs items 1, 4, 7…, GPU 2 runs 2, 5, 8…"""
    return [list(range(first, count, gpus)) for first in range(gpus)]


def serial_tails(gpus: int, load_s: float) -> list[float]:
    """What follows on each GPU when models are loaded one at a time: the first to run dry waits for all the others."""
    return [load_s * (gpus - place) for place in range(gpus)]


@dataclass(frozen=True, slots=True)
class Place:
    """A GPU's part in a batch: when it is free for the next item, and how long the load that follows on it takes."""

    gpu: str
    free_at: float
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Leg:
    """What a GPU does for a batch: so many items from `begins_at` on, dry at `dry_at`, its model back at `over_at`."""

    gpu: str
    items: int
    begins_at: float
    dry_at: float
    over_at: float


def next_item(durations: Sequence[float], places: Sequence[Place], gpu: str) -> int | None:
    """Which of the items that are left `gpu` does next; None when it is best that it does no more."""
    if not durations:
        return None
    if len(durations) > FAR_FROM_OVER * len(places):
        return max(range(len(durations)), key=lambda item: (durations[item], -item))
    mine = next(number for number, place in enumerate(places) if place.gpu == gpu)
    items = longest_first(durations, [place.free_at for place in places], _tails(places))[mine]
    return items[0] if items else None


def course(durations: Sequence[float], places: Sequence[Place], exit_s: float) -> list[Leg]:
    """How a batch goes from here: each GPU's leg, in seconds from now; the last `over_at` is its end."""
    if not places:
        return []
    plans = longest_first(durations, [place.free_at for place in places], _tails(places))
    dry = [place.free_at + sum(durations[item] for item in plan) + exit_s
           for place, plan in zip(places, plans, strict=True)]  # fmt: skip
    over, loaded_at = dict[int, float](), 0.0
    for number in sorted(range(len(places)), key=lambda number: dry[number]):
        load_s = places[number].load_s if plans[number] else 0.0
        over[number] = loaded_at = max(dry[number], loaded_at) + load_s if load_s else dry[number]
    return [Leg(place.gpu, len(plans[number]), place.free_at, dry[number], over[number])
            for number, place in enumerate(places)]  # fmt: skip


def _tails(places: Sequence[Place]) -> list[float]:
    """What must follow on each: loads come one at a time, so the first to run dry waits for none and all for it."""
    tails = [0.0] * len(places)
    after = 0.0
    for number in sorted((n for n, p in enumerate(places) if p.load_s), key=lambda n: places[n].free_at, reverse=True):
        after += places[number].load_s
        tails[number] = after
    return tails
