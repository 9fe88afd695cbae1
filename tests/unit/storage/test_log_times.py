"""When the lines of a log were seen."""

import os
from pathlib import Path

import pytest

from gpuyard.storage.log_times import LogClock, LogTimes, times_path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "attempt_1.log"


def test_lines_have_the_time_at_which_they_were_seen(log: Path) -> None:
    clock = LogClock(log)
    clock.note(0, 99.0)
    clock.note(10, 100.0)
    clock.note(20, 100.2)
    clock.note(20, 100.4)
    clock.note(90, 500.0)
    times = LogTimes(log, last=600.0)
    found = [times.at(offset) for offset in (0, 9, 10, 19, 20, 89, 90)]
    assert found == [100.0, 100.0, 100.2, 100.2, 500.0, 500.0, 600.0]


def test_the_file_is_sparse_and_goes_on_with_the_next_agent(log: Path) -> None:
    clock = LogClock(log)
    for look in range(1, 101):
        clock.note(look * 1000, 100 + look / 10)
    LogClock(log).note(200_000, 200.0)
    assert times_path(log).stat().st_size <= 12 * 16
    assert LogTimes(log, 300.0).at(150_000) == 200.0


def test_a_job_that_prints_nothing_costs_no_file(log: Path) -> None:
    LogClock(log).note(0, 100.0)
    assert not times_path(log).exists()


def test_a_range_of_time_is_a_range_of_bytes(log: Path) -> None:
    clock = LogClock(log)
    for minute in range(1, 4):
        clock.note(minute * 10, minute * 60.0)
    times = LogTimes(log, last=240.0)
    assert [times.first_since(at) for at in (0, 60, 61, 240, 241)] == [
        0,
        0,
        10,
        30,
        None,
    ]
    assert [times.end_until(at) for at in (59, 60, 179, 180, 240)] == [
        0,
        10,
        20,
        30,
        None,
    ]


def test_what_a_kill_has_torn_and_a_clock_has_set_back_is_left_out(log: Path) -> None:
    clock = LogClock(log)
    clock.note(10, 100.0)
    clock.note(20, 50.0)
    clock.note(20, 50.0)
    with times_path(log).open("ab") as file:
        file.write(b"torn")
    times = LogTimes(log, last=200.0)
    assert [times.at(offset) for offset in (5, 15)] == [100.0, 200.0]


def test_behind_a_part_of_an_entry_the_next_is_whole(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LogClock(log)
    clock.note(10, 100.0)
    clock.note(10, 101.0)
    with times_path(log).open("ab") as file:
        file.write(b"torn")
    clock.note(20, 200.0)
    assert LogTimes(log, last=900.0).at(15) == 200.0

    # A full disk takes only a part.
    write = os.write
    with monkeypatch.context() as patched, pytest.raises(OSError, match="space"):
        patched.setattr(os, "write", lambda file, data: write(file, data[:7]))
        clock.note(30, 300.0)
    assert times_path(log).stat().st_size % 16 == 0
    clock.note(40, 400.0)
    assert LogTimes(log, last=900.0).at(35) == 400.0


def test_a_log_that_began_anew_has_new_times(log: Path) -> None:
    clock = LogClock(log)
    clock.note(100, 100.0)
    clock.note(5, 200.0)
    clock.note(5, 201.0)
    assert LogTimes(log, last=300.0).at(3) == 200.0
