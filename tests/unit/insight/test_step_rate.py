"""Measuring steps per second."""

from math import exp

import pytest

from gpuyard.insight.step_rate import SPAN_S, StepRate


def test_no_pace_before_a_second_step() -> None:
    pace = StepRate()
    pace.see(5, 100.0)
    pace.see(5, 110.0)
    assert pace.rate is None


def test_steps_seen_at_one_moment_count_with_the_next() -> None:
    pace = StepRate()
    for step in (0, 1, 2):
        pace.see(step, 100.0)
    pace.see(4, 102.0)
    assert pace.rate == 2.0


def test_a_change_shows_in_time_and_a_single_slow_step_does_not_rule() -> None:
    pace = StepRate()
    for second in range(100):
        pace.see(second, float(second))
    pace.see(100, 102.0)
    assert pace.rate == pytest.approx(1.0, rel=0.05)
    for second in range(1, int(5 * SPAN_S)):
        pace.see(100 + 10 * second, 102.0 + second)
    assert pace.rate == pytest.approx(10.0, rel=0.05)


def test_going_back_is_no_pace() -> None:
    pace = StepRate()
    pace.see(0, 0.0)
    pace.see(10, 10.0)
    pace.see(2, 11.0)
    assert pace.rate == 1.0
    pace.see(12, 16.0)
    assert pace.rate == pytest.approx(1.0 + (1 - exp(-5 / SPAN_S)))


def test_a_clock_that_goes_back_is_no_pace() -> None:
    pace = StepRate()
    pace.see(10, 10.0)
    pace.see(20, 5.0)
    assert pace.rate is None
    pace.see(22, 6.0)
    assert pace.rate == 2.0
