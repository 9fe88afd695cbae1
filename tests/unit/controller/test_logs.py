"""The last lines of a file that is too large for memory, and pages of lines."""

import io
from collections import deque

import pytest

from gpuyard.controller import logs
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.log_query import LogPage, LogQuery


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


@pytest.mark.parametrize(
    ("query", "page", "leads_on"),
    [
        (LogQuery(begin=100), LogPage([], 101), True),
        (LogQuery(begin=100), LogPage([], 100, is_end=True), True),
        (LogQuery(begin=100), LogPage([], 100), False),
        (LogQuery(tail=5), LogPage([], 900, is_end=True, previous=100), True),
        (LogQuery(tail=5, end=100), LogPage([], 900, previous=99), True),
        (LogQuery(tail=5, end=100), LogPage([], 900, previous=100), False),
        (LogQuery(tail=5), LogPage([], 900, previous=900), False),
    ],
)
def test_pages_of_a_machine_must_lead_on(
    query: LogQuery, page: LogPage, leads_on: bool
) -> None:
    if leads_on:
        logs.check_progress(page, query, "local")
        return
    with pytest.raises(ProviderError, match="again and again"):
        logs.check_progress(page, query, "local")
