"""Which step a program had printed at which time."""

from pathlib import Path

import pytest

from gpuyard.node.output import OutputFollower
from gpuyard.storage.logfile import LogFile


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def follower(log: Path) -> OutputFollower:
    return OutputFollower("attempt", LogFile(log))


def _print(log: Path, follower: OutputFollower, step: int, at: float) -> None:
    with log.open("a") as file:
        file.write(f"step {step}: loss 0.5\n")
    follower.note_size(log.stat().st_size, at)


def test_the_step_at_a_time_is_the_last_one_printed_until_the_next_look(
    log: Path, follower: OutputFollower
) -> None:
    for step, at in ((90, 1.0), (100, 2.0), (110, 3.0)):
        _print(log, follower, step, at)
    follower.read_progress()
    times = (0.5, 1.0, 1.9, 2.5, 9.0)
    assert [follower.step_at(at) for at in times] == [90, 90, 100, 110, 110]


def test_steps_are_known_over_several_readings(
    log: Path, follower: OutputFollower
) -> None:
    _print(log, follower, 90, 1.0)
    follower.read_progress()
    _print(log, follower, 100, 2.0)
    follower.read_progress()
    assert [follower.step_at(at) for at in (0.5, 1.5)] == [90, 100]


def test_without_sizes_the_last_step_counts(
    log: Path, follower: OutputFollower
) -> None:
    log.write_text("step 7: loss 0.5\n")
    follower.read_progress()
    assert follower.step_at(0.0) == 7


def test_that_no_gpu_was_found_is_reported_without_any_progress(
    log: Path, follower: OutputFollower
) -> None:
    log.write_text("Using cpu device\n")
    seen = follower.read_progress()
    assert seen is not None
    assert seen.no_gpu == "Using cpu device"
    assert follower.read_progress() is None
    _print(log, follower, 10, 1.0)
    seen = follower.read_progress()
    assert seen is not None
    assert seen.no_gpu == "Using cpu device"
