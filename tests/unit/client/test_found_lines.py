"""Reading lines page by page."""

import pytest

from gpuyard.client.found_lines import LinesReader
from gpuyard.domain.errors import GpuyardError


@pytest.mark.parametrize("tail", [None, 5])
def test_a_server_that_leads_nowhere_is_left(tail: int | None) -> None:
    reader = LinesReader("job", tail, False, {})
    reader.feed(([], "1:100:", "1:100:"))
    with pytest.raises(GpuyardError, match="same page"):
        reader.feed(([], "1:100:", "1:100:"))


def test_who_follows_waits_at_one_place() -> None:
    reader = LinesReader("job", None, True, {})
    for _ in range(3):
        assert reader.feed(([], "1:100:", None)) == []
    assert not reader.is_over
