"""A wall clock that is set while jobs run, or before they are seen to run."""

import pytest

from gpuyard.providers.running_times import RunningTimes

JUMPS_S = [-3600.0, 0.0, 3600.0]


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_jump_while_it_runs_changes_nothing(jump_s: float) -> None:
    now = 100.0
    times = RunningTimes(lambda: now)
    assert times.ran_s("job", by_wall_clock_s=30.0) == 30.0
    now += 5
    assert times.ran_s("job", by_wall_clock_s=35.0 + jump_s) == 35.0


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_jump_before_it_is_seen_to_run_makes_it_no_older_than_it_can_be(
    jump_s: float,
) -> None:
    now = 100.0
    times = RunningTimes(lambda: now)
    times.note_waiting("job")
    now += 5
    assert 0.0 <= times.ran_s("job", by_wall_clock_s=3.0 + jump_s) <= 5.0


def test_one_that_waits_again_starts_again() -> None:
    now = 100.0
    times = RunningTimes(lambda: now)
    times.ran_s("job", 50.0)
    times.note_waiting("job")
    now += 1
    assert times.ran_s("job", 1.0) == 1.0
    times.forget("job")
    assert times.ran_s("job", 7.0) == 7.0
