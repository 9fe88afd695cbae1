"""The file of answers, where it cannot be written."""

import os
from pathlib import Path

import pytest

from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.studies.baseline_journal import BaselineJournal

KEY = ("p01", "2k", "m", "d")


@pytest.mark.parametrize(
    "spoil",
    [lambda path: path.mkdir(parents=True), lambda path: path.parent.write_text("")],
)
def test_a_place_that_is_no_file(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "results" / "baseline.jsonl"
    assert callable(spoil)
    spoil(path)
    with pytest.raises(InvalidInputError, match=r"baseline\.jsonl cannot be written: "):
        BaselineJournal(path)


def test_a_disk_that_is_full_is_told_and_what_was_kept_stays(tmp_path: Path) -> None:
    path = tmp_path / "baseline.jsonl"
    journal = BaselineJournal(path)
    journal.append(KEY, {"text": "first"})
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._file.fileno())  # pyright: ignore[reportPrivateUsage]
    os.close(full)
    with pytest.raises(RefusedError, match="No space left"):
        journal.append(("p02", "2k", "m", "d"), {"text": "second"})
    journal.close()
    again = BaselineJournal(path)
    assert (
        again.get(KEY) == {"key": list(KEY), "text": "first"}
        and again.get(("p02", "2k", "m", "d")) is None
    )
    again.close()
