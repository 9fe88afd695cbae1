"""What the files of a flow hold."""

from pathlib import Path

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.flows.contents import digests, key_of, missing


def test_files_patterns_and_folders_are_read_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.csv").write_text("1")
    (tmp_path / "data" / "deep" / "b.csv").write_text("2")
    (tmp_path / "x.py").write_text("1")
    found = digests(tmp_path, ["data", "*.py"], "inputs")
    assert list(found) == ["data/a.csv", "data/deep/b.csv", "x.py"]
    assert found["data/a.csv"] == found["x.py"] != found["data/deep/b.csv"]
    assert digests(tmp_path, ["data/*.csv"], "inputs").keys() == {"data/a.csv"}
    assert missing(tmp_path, ["data", "gone"]) == ["gone"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"inputs: has raw\.csv"):
        digests(tmp_path, ["raw.csv"], "inputs")


def test_what_exists_is_no_pattern_and_a_wrong_pattern_is_an_error(
    tmp_path: Path,
) -> None:
    for name in ("a[1].txt", "a1.txt"):
        (tmp_path / name).write_text(name)
    assert list(digests(tmp_path, ["a[1].txt"], "inputs")) == ["a[1].txt"]
    assert list(digests(tmp_path, ["a[12].txt"], "inputs")) == ["a1.txt"]
    assert len(digests(tmp_path, ["."], "inputs")) == 2
    with pytest.raises(
        InvalidInputError, match=r"inputs: has a\*\*, which is no pattern"
    ):
        digests(tmp_path, ["a**"], "inputs")


def test_a_key_changes_with_job_files_and_place_alone() -> None:
    job = {"command": ["x"], "retry_count": 1}
    key = key_of(job, {"a": "1", "b": "2"}, "here")
    assert key == key_of(dict(reversed(job.items())), {"b": "2", "a": "1"}, "here")
    others = [
        key_of({**job, "retry_count": 2}, {"a": "1", "b": "2"}, "here"),
        key_of(job, {"a": "1", "b": "3"}, "here"),
        key_of(job, {"a": "1", "c": "2"}, "here"),
        key_of(job, {"a": "1", "b": "2"}, "there"),
    ]
    assert len({key, *others}) == 5
