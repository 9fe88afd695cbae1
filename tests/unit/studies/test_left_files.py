"""What jobs left is read as far as it is in their own folder, and not too long."""

from pathlib import Path

import pytest

from gpuyard.studies.left_files import (
    LeftLines,
    longest_line,
    read_left_object,
    shown,
)


def test_lines_are_read_up_to_one_that_is_too_long(tmp_path: Path) -> None:
    folder = tmp_path / "load"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"123456789\n0123456789\n1\n")
    (folder / "b.jsonl").write_bytes(b"2\n3")
    lines = LeftLines(tmp_path, "load", most=3, longest=10)
    assert list(lines) == [b"123456789\n", b"2\n", b"3"]
    assert lines.faults == ["load/a.jsonl: a line has more than 10 bytes"]
    lines = LeftLines(tmp_path, "load", most=2, longest=10)
    assert list(lines) == [b"123456789\n", b"2\n"]
    assert lines.faults[1:] == [
        "load has more than 2 lines: the others are not read",
    ]


def test_the_length_of_a_line_follows_from_its_tokens() -> None:
    assert longest_line(None) == 16 << 20 == longest_line(10**9)
    assert longest_line(100) < 100_000
    # Each with its time, id and log-probability, and those of the runner-up.
    digits = "-12.3456789012345678, -12.3456789012345678, 123456, 123456, 1234.56789"
    assert longest_line(4096) > 4096 * (len(digits) + 24)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\x1b[31mred\nb\u202ec\ud800d", "a [31mred b c d"),
        ("x" * 600, "x" * 499 + "…"),
        ("مرحبا بالعالم", "مرحبا بالعالم"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_a_text_of_a_job_is_one_short_line(text: object, line: str) -> None:
    assert shown(text) == line


def test_no_link_is_followed_below_the_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "a.jsonl").write_text("{}\n")
    folder = tmp_path / "strategy"
    folder.mkdir()
    (folder / "load").symlink_to(secret)
    assert list(LeftLines(folder, "load", 9)) == []
    with pytest.raises(OSError, match="below a link"):
        read_left_object(folder, "load/a.jsonl")
    # The way to the folder itself may lead through links.
    (tmp_path / "way").symlink_to(secret)
    assert read_left_object(tmp_path / "way", "a.jsonl") == {}
