"""Thinning a series."""

import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.insight.series import SeriesSummary, downsample


class Point(NamedTuple):
    n: int
    value: float


def series(*values: float) -> list[Point]:
    return [Point(n, value) for n, value in enumerate(values)]


VALUES = st.lists(st.floats(-1e9, 1e9), max_size=300)


def test_a_short_series_stays_as_it_is() -> None:
    points = series(1.0, 2.0, 3.0, 0.0)
    assert downsample(points, 4) == points
    assert downsample(series(), 4) == []


def test_a_spike_and_a_dip_survive() -> None:
    points = series(*[1.0] * 1000)
    points[417] = Point(417, 9.0)
    points[800] = Point(800, -9.0)
    thinned = set(downsample(points, 10))
    assert {(0, 1.0), (417, 9.0), (800, -9.0), (999, 1.0)} <= thinned


def test_each_run_gives_its_lowest_and_highest_in_order() -> None:
    points = series(0.0, 5.0, 1.0, 3.0, 2.0, 8.0, 7.0, 4.0)
    assert downsample(points, 6) == [
        (0, 0.0),
        (1, 5.0),
        (2, 1.0),
        (4, 2.0),
        (5, 8.0),
        (7, 4.0),
    ]


@pytest.mark.parametrize("limit", [3, 0, -1])
def test_a_limit_too_low_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit is {limit}; it must be at least 4"):
        downsample(series(0.0), limit)


@given(VALUES, st.integers(4, 50))
def test_whatever_the_series(values: list[float], limit: int) -> None:
    points = series(*values)
    thinned = downsample(points, limit)
    assert len(thinned) <= limit
    assert thinned == sorted(set(thinned) & set(points))
    assert thinned[:1] == points[:1]
    assert thinned[-1:] == points[-1:]
    if points:
        assert min(y for _, y in thinned) == min(values)
        assert max(y for _, y in thinned) == max(values)


@given(
    st.lists(st.integers(0, 60), max_size=12),
    st.integers(0, 2**32),
    st.integers(4, 12),
)
def test_a_summary_of_what_comes_piece_by_piece_keeps_the_extremes(
    pieces: list[int], seed: int, limit: int
) -> None:
    drawn_at_random = random.Random(seed)
    values = [drawn_at_random.uniform(-1e9, 1e9) for _ in range(700)]
    points = series(*values)
    summary = SeriesSummary[Point]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SeriesSummary, "MOST_WHOLE", 100)
        begin = 0
        for size in [*pieces, len(points)]:
            summary.extend(points[begin : begin + size])
            begin += size
        assert summary.count == len(points)
        drawn = summary.drawn(limit)
        assert drawn is not None
        assert summary.drawn(100) is None
        assert summary.size < len(points) / 4
    assert len(drawn) <= limit
    assert drawn == sorted(drawn)
    assert (drawn[0], drawn[-1]) == (points[0], points[-1])
    assert {min(values), max(values)} <= {point.value for point in drawn}
