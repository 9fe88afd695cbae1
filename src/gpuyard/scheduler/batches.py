"""Batches: which GPU runs which item, so that the last model is back soonest.

Durations are known (probed from the media). Idle GPUs pull the longest item first; where models are loaded one at a
time afterwards, the GPUs are to run dry one after the other, so that each load finds its turn.
"""

from collections.abc import Sequence


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
