"""Which artifacts paths and folders mean."""

import pytest

from gpuyard.controller.artifacts import chosen
from gpuyard.domain.errors import NotFoundError

PATHS = ["a", "a.b", "a/b", "a/b/c", "a/b0", "a0", "b", "ä/c"]
ROWS = [{"id": f"art_{path}", "path": path} for path in reversed(PATHS)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([], PATHS),
        (["a"], ["a", "a/b", "a/b/c", "a/b0"]),
        (["a/"], ["a/b", "a/b/c", "a/b0"]),
        (["a/b", "a"], ["a", "a/b", "a/b/c", "a/b0"]),
        (["a/b", "a/b/", "a/b/c"], ["a/b", "a/b/c"]),
        (["b", "ä", "a0"], ["a0", "b", "ä/c"]),
    ],
)
def test_a_path_is_a_file_and_a_folder(wanted: list[str], found: list[str]) -> None:
    rows = chosen(ROWS, "job_1", wanted)
    assert sorted(row["path"] for row in rows) == sorted(found)
    assert len({row["id"] for row in rows}) == len(rows)


@pytest.mark.parametrize("wanted", ["c", "a/b/c/d", "", "a/", "a//b"])
def test_what_is_not_there_is_named(wanted: str) -> None:
    rows = [row for row in ROWS if row["path"] in ("a", "b")]
    with pytest.raises(NotFoundError, match="has no artifact"):
        chosen(rows, "job_1", ["b", wanted])
