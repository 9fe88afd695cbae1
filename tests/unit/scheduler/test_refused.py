"""What a refusal says of other jobs."""

import math

import pytest

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.refused import Refusals

NONE = frozenset[str]()
A = frozenset({"a"})
BOTH = frozenset({"a", "b"})
SHAPE = Shape(gpus=2, cpus=4.0, memory_gb=8.0)


@pytest.fixture
def refused() -> Refusals:
    found = Refusals()
    found.add(SHAPE, 100.0, A)
    return found


@pytest.mark.parametrize(
    ("shape", "end", "kept_out_by", "is_covered"),
    [
        (SHAPE, 101.0, A, True),
        (Shape(gpus=4, cpus=4.0, memory_gb=9.0), math.inf, A, True),
        # Who is kept out by more has less room.
        (SHAPE, 101.0, BOTH, True),
        (SHAPE, 101.0, NONE, False),
        (SHAPE, 101.0, frozenset({"b"}), False),
        (SHAPE, 99.0, A, False),
        (Shape(gpus=1, cpus=4.0, memory_gb=8.0), 101.0, A, False),
        (Shape(gpus=2, cpus=3.0, memory_gb=8.0), 101.0, A, False),
        (Shape(gpus=2, cpus=4.0, memory_gb=8.0, gpu_class="t4"), 101.0, A, False),
    ],
)
def test_it_holds_for_whoever_asks_for_as_much_and_has_no_more_room(
    refused: Refusals, shape: Shape, end: float, kept_out_by: frozenset[str], is_covered
):
    assert refused.covers(shape, end, kept_out_by) is is_covered
