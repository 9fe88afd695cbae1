"""Batches as workers pull their items: how near that comes to the best there is."""

import heapq
import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.residency.item_assignment import BatchGpu, next_item, plan_batch

BOOT_S = 10.0
EXIT_S = 1.0


def play(
    durations: Sequence[float], gpus: int, load_s: float
) -> tuple[float, list[int]]:
    """Let idle GPUs ask for the next item, and load models one at a time as they run
    dry; the end, and who did what.
    """
    left = dict(enumerate(durations))
    done = list[int]()
    free = [(BOOT_S, f"gpu{n}") for n in range(gpus)]  # a heap: when each asks next
    at_work = dict(free_of(free))
    loaded_at = 0.0
    while free:
        now, gpu = heapq.heappop(free)
        places = [
            BatchGpu(name, max(at - now, 0.0), load_s) for name, at in at_work.items()
        ]
        numbers = list(left)
        chosen = next_item([left[n] for n in numbers], places, gpu)
        if chosen is None:
            del at_work[gpu]
            loaded_at = max(now + EXIT_S, loaded_at) + load_s
            continue
        done.append(numbers[chosen])
        at_work[gpu] = now + left.pop(numbers[chosen])
        heapq.heappush(free, (at_work[gpu], gpu))
    return loaded_at, done


def free_of(heap: Sequence[tuple[float, str]]) -> list[tuple[str, float]]:
    return [(gpu, at) for at, gpu in heap]


def test_the_documents_batch_ends_within_a_hundredth_of_the_optimum() -> None:
    """125 items of 45 s on 3 GPUs, then three loads of 120 s one after another: 2,141 s
    at best.
    """
    end, done = play([45.0] * 125, 3, 120.0)
    assert sorted(done) == list(range(125))
    assert end <= 1.01 * 2141


@pytest.mark.parametrize("seed", range(8))
def test_uneven_items_end_near_their_bound(seed: int) -> None:
    random = Random(seed)
    items = [random.lognormvariate(math.log(45), 0.8) for _ in range(125)]
    end, done = play(items, 3, 120.0)
    assert sorted(done) == list(range(125))
    assert end <= 1.03 * max(11 + (sum(items) + 720) / 3, max(items) + 131)


@given(
    st.lists(st.floats(0.1, 500), max_size=60),
    st.integers(1, 6),
    st.sampled_from([0.0, 6.0, 120.0]),
)
def test_every_item_is_done_once_whatever_they_last(
    durations: list[float], gpus: int, load_s: float
) -> None:
    assert sorted(play(durations, gpus, load_s)[1]) == list(range(len(durations)))


@given(st.lists(st.floats(0.1, 500), min_size=1, max_size=60), st.integers(1, 6))
def test_the_course_counts_every_item_and_ends_no_sooner_than_it_can(
    durations: list[float], gpus: int
) -> None:
    plans = plan_batch(
        durations, [BatchGpu(f"gpu{n}", BOOT_S, 120.0) for n in range(gpus)], EXIT_S
    )
    assert sum(plan.items for plan in plans) == len(durations)
    used = [plan for plan in plans if plan.items]
    assert (
        max(plan.model_back_at for plan in used)
        >= BOOT_S + max(max(durations), sum(durations) / gpus) + EXIT_S
    )
    assert all(
        plan.starts_at <= plan.items_done_at <= plan.model_back_at for plan in plans
    )


def test_no_gpu_no_course() -> None:
    assert plan_batch([1.0], [], EXIT_S) == []
