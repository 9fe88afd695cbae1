"""The last lines of a file that is too large for memory."""

import io
from collections import deque

import pytest

from gpuyard.controller import logs


@pytest.mark.parametrize("part", [1, 2, 7, 1 << 16])
@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"one", b"one\n", b"one\ntwo", b"one\n\n\ntwo\nthree\n", b"\n\n"],
)
def test_the_last_lines_are_found_from_the_end(
    content: bytes, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PART_BYTES", part)
    for lines in range(7):
        file = io.BytesIO(content)
        logs.seek_last_lines(file, lines)
        assert file.read() == b"".join(deque(io.BytesIO(content), lines))
