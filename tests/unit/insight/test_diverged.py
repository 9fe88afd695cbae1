"""A training whose loss is no number any more: how far it is still counts."""

import pytest

from gpuyard.insight.progress import ProgressReader


@pytest.mark.parametrize(
    "lines",
    [
        [b"step 1/10 loss=0.5", b"step 2/10 loss=nan", b"step 3/10 loss=inf"],
        [
            b"iter 1: loss 2.0, time 54.74ms, mfu 0.02%",
            b"iter 3: loss nan, time 54.74ms, mfu 0.02%",
        ],
    ],
)
def test_the_step_goes_on_and_no_point_is_made_of_what_is_no_number(
    lines: list[bytes],
) -> None:
    reader = ProgressReader()
    points = reader.feed(b"\n".join(lines) + b"\n", 1.0)
    assert reader.progress.step == 3
    assert [point.value for point in points if point.name == "loss"] == [
        reader.progress.metrics["loss"]
    ]
