"""A pod's log is read on from where it was cut off: no line is left out or comes twice."""

import random

import pytest

from gpuyard.providers.kubernetes.log_lines import (
    TimedLines,
    TimedPosition,
    mark_of,
    positions_of,
)

SECOND = "2026-11-27T12:00:%02d"


def line(nanoseconds: int, text: str, zone: str = "+08:00") -> bytes:
    """As a node gives it: trailing zeros of the time may be missing."""
    second, fraction = divmod(nanoseconds, 1_000_000_000)
    digits = f".{fraction:09d}".rstrip("0").rstrip(".")
    return f"{SECOND % second}{digits}{zone} {text}".encode()


def since(log: bytes, position: TimedPosition) -> bytes:
    """What the server gives: from a whole second on."""
    if not position.since:
        return log
    begin = position.since.replace("T04:", "T12:").rstrip("Z").encode()
    lines = log.splitlines(keepends=True)
    return b"".join(one for one in lines if one[: len(begin)] >= begin)


@pytest.mark.parametrize("seed", range(30))
def test_a_log_that_is_cut_anywhere_is_read_once(seed: int) -> None:
    dice = random.Random(seed)
    at = 0
    log = b""
    wanted = b""
    for number in range(60):
        # Some lines have the same time, and some are a little out of order.
        at += dice.choice([0, 1, 3_000, 700_000_000])
        shown = max(at - dice.choice([0, 0, 2_000]), 0)
        text = dice.choice(["", f"{number} {'x' * dice.randrange(40)}"])
        end = "\n" if number < 59 else ""
        log += line(shown, text + end)
        wanted += (text + end).encode()
    position = TimedPosition()
    got = b""
    while len(got) < len(wanted):
        lines = TimedLines(position)
        rest = since(log, position)
        rest = rest[: dice.choice([len(rest), dice.randrange(len(rest) + 1)])]
        while rest:
            size = dice.randrange(1, 50)
            got += lines.feed(rest[:size])
            rest = rest[size:]
        position = positions_of(mark_of({"pod": position}))["pod"]
    assert got == wanted


def test_what_is_in_a_rotated_file_is_not_counted() -> None:
    position = TimedPosition()
    old = line(1_500_000_000, "one\n") + line(1_600_000_000, "two\n")
    assert TimedLines(position).feed(old) == b"one\ntwo\n"
    new = line(1_700_000_000, "three\n") + line(2_000_000_000, "four\n")
    assert TimedLines(position).feed(new) == b"three\nfour\n"


def test_whole_lines_wait_for_their_end() -> None:
    position = TimedPosition()
    lines = TimedLines(position, whole=True)
    assert lines.feed(line(0, "one\n") + line(1, "tw")) == b"one\n"
    assert (list(position.recent.values()), position.partial) == ([1], 0)
    assert lines.feed(b"o\n") == b"two\n"
    assert lines.feed(line(2, "the rest")) == b""
    assert lines.finish() == b"the rest"


def test_a_log_without_times_is_given_as_it_is() -> None:
    text = b"no time\n" + b"x" * 100
    assert TimedLines(TimedPosition()).feed(text) == text


def test_a_log_that_begins_inside_of_an_older_line_repeats_nothing_of_it() -> None:
    """A kubelet gives only the first part of a long line a time."""
    position = TimedPosition()
    many = [line(2_000_000_000 + number, f"{number}\n") for number in range(40)]
    log = line(0, "a bar |") + b"=====|\n" + b"".join(many)
    assert TimedLines(position).feed(log).startswith(b"a bar |=====|\n0\n")
    assert position.since == "2026-11-27T04:00:02Z"
    again = TimedLines(position).feed(
        b"=====|\n" + b"".join(many) + line(3_000_000_000, "new\n")
    )
    assert again == b"new\n"


def test_a_clock_that_is_set_back_hides_no_line() -> None:
    position = TimedPosition()
    many = [line(9_000_000_000 + number, f"{number}\n") for number in range(40)]
    TimedLines(position).feed(b"".join(many))
    later = [*many, line(9_500_000_000, "new\n"), line(1_000_000_000, "set back\n")]
    assert TimedLines(position).feed(b"".join(later)) == b"new\nset back\n"


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        f"unable to retrieve container logs for containerd://{'0' * 64}",
        "failed to create fsnotify watcher: too many open files",
    ],
)
def test_what_a_kubelet_says_instead_of_a_line_is_no_output(
    words: str, whole: bool
) -> None:
    for log in (b"", line(0, "one\n")):
        lines = TimedLines(TimedPosition(), whole=whole)
        assert lines.feed(log + words.encode()) == log[-4:]
        lines.end()
        assert lines.complaint == words
