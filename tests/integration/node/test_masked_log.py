"""Secrets are overwritten in the log itself while a program writes to it."""

from pathlib import Path

import pytest

from gpuyard.domain.masking import Mask
from gpuyard.node.masked_log import MaskedLog

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


def test_without_a_log_there_is_nothing_to_complete(log: MaskedLog) -> None:
    log.complete()
    assert not log.path.exists()
