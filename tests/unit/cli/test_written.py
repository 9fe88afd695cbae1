"""Files that commands write are whole, or as they were before."""

from pathlib import Path

import pytest

from gpuyard.cli.written import write_file

NO_TEXT = "\ud800"  # cannot be encoded, as a full disk cannot be written to


def test_what_was_there_stays_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for before in ([], ["kept"]):
        for text in before:
            write_file(path, text)
        with pytest.raises(UnicodeEncodeError):
            write_file(path, NO_TEXT)
        assert [file.read_text() for file in tmp_path.iterdir()] == before


def test_mode_and_link_of_a_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    write_file(link, "after")
    assert link.is_symlink()
    assert path.read_text() == "after"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_and_a_failure_names_it() -> None:
    write_file(Path("/dev/null"), "nothing")
    with pytest.raises(OSError, match="/dev/full"):
        write_file(Path("/dev/full"), "x")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no" / "report.html"
    with pytest.raises(FileNotFoundError, match=r"report\.html"):
        write_file(path, "x")
