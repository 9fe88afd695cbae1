"""What is left for a job that names no memory."""

import pytest

from gpuyard.node.memory_reserve import default_memory_gb


@pytest.mark.parametrize(
    ("host_gb", "reserve_gb", "left_gb"),
    [
        (100.0, None, 95.0),
        (8.0, None, 7.0),
        (1.0, None, 0.5),
        (100.0, 30.0, 70.0),
        (8.0, 9.0, 1 / 16),
    ],
    ids=["a share", "at least 1 GB", "at most half", "as set", "all of it"],
)
def test_a_reserve_is_kept_of_the_hosts_memory(host_gb, reserve_gb, left_gb):
    assert default_memory_gb(host_gb, reserve_gb) == pytest.approx(left_gb)
