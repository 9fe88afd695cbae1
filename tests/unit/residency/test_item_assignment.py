"""Which GPU runs which item of a batch."""

import math
from itertools import product
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.residency.item_assignment import longest_first, round_robin, serial_tails

seconds = st.floats(0, 1000, allow_nan=False)


@given(st.lists(seconds, max_size=60), st.lists(seconds, min_size=1, max_size=6))
def test_every_item_runs_once(durations, free_at):
    plan = longest_first(durations, free_at, [0.0] * len(free_at))
    assert sorted(item for mine in plan for item in mine) == list(range(len(durations)))
    for mine in plan:
        assert [durations[item] for item in mine] == sorted(
            (durations[item] for item in mine), reverse=True
        )


@given(st.lists(seconds, min_size=1, max_size=6), st.integers(1, 3))
def test_longest_first_is_within_a_third_of_the_optimum(durations, gpus):
    """Graham's bound for list scheduling, longest first: 4/3 - 1/(3 m) times the
    optimum, found by trying all.
    """
    best = min(
        max(
            math.fsum(d for d, g in zip(durations, places, strict=True) if g == gpu)
            for gpu in range(gpus)
        )
        for places in product(range(gpus), repeat=len(durations))
    )
    plan = longest_first(durations, [0.0] * gpus, [0.0] * gpus)
    makespan = max(math.fsum(durations[item] for item in mine) for mine in plan)
    assert makespan <= (4 / 3 - 1 / (3 * gpus)) * best + 1e-6


@given(st.lists(seconds, min_size=1, max_size=60), st.integers(1, 6))
def test_nobody_waits_for_more_than_the_longest_beyond_the_average(durations, gpus):
    plan = longest_first(durations, [0.0] * gpus, [0.0] * gpus)
    makespan = max(math.fsum(durations[item] for item in mine) for mine in plan)
    assert makespan <= math.fsum(durations) / gpus + max(durations) + 1e-6


def test_who_has_more_to_do_afterwards_gets_less():
    plan = longest_first([45.0] * 125, [0.0] * 3, serial_tails(3, 120.0))
    assert [len(mine) for mine in plan] == [39, 42, 44]


def test_the_seed_documents_split():
    assert round_robin(9, 3) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert round_robin(2, 3) == [[0], [1], []]


def test_unequal_items_end_together():
    dice = Random(1)
    durations = [dice.lognormvariate(3.5, 0.7) for _ in range(125)]
    ends = [
        math.fsum(durations[i] for i in mine)
        for mine in longest_first(durations, [0.0] * 3, [0.0] * 3)
    ]
    assert max(ends) - min(ends) < min(durations) + 1.0
