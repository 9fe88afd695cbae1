"""What jobs left is read as far as it is in their own folder, and not too long."""

from pathlib import Path

import pytest

from gpuyard.studies import left_files
from gpuyard.studies.left_files import left_lines, read_left_object


def test_lines_are_read_up_to_one_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_files, "LONGEST_LINE", 10)
    folder = tmp_path / "load"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"123456789\n0123456789\n1\n")
    (folder / "b.jsonl").write_bytes(b"2\n3")
    assert list(left_lines(tmp_path, "load")) == [b"123456789\n", b"2\n", b"3"]


def test_no_link_is_followed_below_the_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "a.jsonl").write_text("{}\n")
    folder = tmp_path / "strategy"
    folder.mkdir()
    (folder / "load").symlink_to(secret)
    assert list(left_lines(folder, "load")) == []
    with pytest.raises(OSError, match="below a link"):
        read_left_object(folder, "load/a.jsonl")
    # The way to the folder itself may lead through links.
    (tmp_path / "way").symlink_to(secret)
    assert read_left_object(tmp_path / "way", "a.jsonl") == {}
