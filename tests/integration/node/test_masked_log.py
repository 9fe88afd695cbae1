"""Secrets are overwritten in the log itself while a program writes to it."""

import os
from pathlib import Path

import pytest

from gpuyard.domain.log_query import LogQuery
from gpuyard.domain.masking import Mask
from gpuyard.insight.log_search import find_lines
from gpuyard.node.masked_log import MaskedLog
from gpuyard.storage.log_times import LogTimes

VALUE = "planted-secret-value"
STARS = b"*" * len(VALUE)


@pytest.fixture
def log(tmp_path: Path) -> MaskedLog:
    return MaskedLog(tmp_path / "log", Mask([VALUE]))


def _write(log: MaskedLog, text: str) -> None:
    with log.path.open("a") as file:
        file.write(text)


def test_a_value_that_is_written_in_two_parts_is_never_shown(log: MaskedLog) -> None:
    _write(log, "begin planted-sec")
    assert log.read(0, 100) == (0, b"begin ")
    _write(log, "ret-value end")
    assert log.read(0, 100) == (0, b"begin " + STARS + b" end")
    log.overwrite()
    assert log.path.read_bytes() == b"begin " + STARS + b" end"


def test_a_reader_that_begins_within_a_value_sees_none_of_it(log: MaskedLog) -> None:
    _write(log, f"{VALUE}\nlast {VALUE}\n")
    assert log.read(8, 5) == (8, b"*****")
    assert log.tail(1)[1] == b"last " + STARS + b"\n"


def test_the_end_of_a_complete_log_is_shown(log: MaskedLog) -> None:
    _write(log, f"{VALUE} planted-sec")
    log.complete()
    assert log.read(0, 100) == (0, STARS + b" planted-sec")


def test_a_value_across_the_parts_of_a_large_log_is_hidden(log: MaskedLog) -> None:
    _write(log, "x" * ((1 << 20) - 5) + VALUE + "y" * (1 << 20) + VALUE)
    log.complete()
    assert VALUE.encode() not in log.path.read_bytes()
    assert log.path.stat().st_size == (1 << 21) - 5 + 2 * len(VALUE)


def test_nobody_finds_a_value_whether_it_is_written_whole_or_not(
    log: MaskedLog,
) -> None:
    _write(log, "x\n" * ((1 << 19) - 3) + f"{VALUE}\nlast planted-sec")
    times = LogTimes(log.path, 0.0)

    def find(text: str) -> list[str]:
        page = find_lines(log, times, LogQuery(search=text), is_complete=False)
        return [line.text for line in page.lines]

    assert find("planted") == find("secret") == []
    assert find("***") == [STARS.decode()]
    _write(log, "ret-value\n")
    assert find("last") == [f"last {STARS.decode()}"]


def test_without_a_log_there_is_nothing_to_complete(log: MaskedLog) -> None:
    log.complete()
    assert not log.path.exists()


def test_a_program_that_cuts_its_log_and_begins_again_is_masked(log: MaskedLog) -> None:
    """As `echo $TOKEN > /dev/stdout` does."""
    _write(log, "x" * 100)
    log.overwrite()
    log.path.write_text(f"again {VALUE}\n")
    assert log.read(0, 100) == (0, b"again " + STARS + b"\n")
    log.overwrite()
    assert log.path.read_bytes() == b"again " + STARS + b"\n"


def test_a_program_that_writes_below_its_end_is_masked(log: MaskedLog) -> None:
    _write(log, "x" * 100)
    log.overwrite()
    with log.path.open("r+") as file:
        file.write(VALUE)
    assert log.read(0, 20) == (0, STARS)
    log.complete()
    assert log.path.read_bytes() == STARS + b"x" * (100 - len(STARS))


def test_a_log_of_terabytes_that_are_a_hole_costs_nothing(log: MaskedLog) -> None:
    size = 4 << 40
    _write(log, VALUE)
    os.truncate(log.path, size)
    _write(log, VALUE)
    log.overwrite()
    log.complete()
    assert log.read(size, 100) == (size, STARS)
    with log.path.open("rb") as file:
        assert file.read(len(STARS)) == STARS


def test_a_value_that_is_written_while_the_log_is_followed_is_overwritten_once(
    log: MaskedLog,
) -> None:
    for part in ("one ", VALUE[:9], VALUE[9:], " two", f"{VALUE}\n"):
        _write(log, part)
        log.overwrite()
    assert log.path.read_bytes() == b"one " + STARS + b" two" + STARS + b"\n"
