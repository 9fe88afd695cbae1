"""What a job may use of its machine."""

from collections.abc import Iterator

import pytest

from gpuyard.devices.host import read_host
from tests.support.instance import TestInstance, make_instance

ALLOCATE = "len(bytearray(600 << 20).replace(b'x', b'y'))"


@pytest.fixture
def tight() -> Iterator[TestInstance]:
    """A machine that keeps all of its memory but 256 MB in reserve."""
    reserve_gb = read_host().memory_mb / 1024 - 0.25
    with make_instance(GPUYARD_NODE__RESERVE_MEMORY_GB=str(reserve_gb)) as instance:
        yield instance


def test_a_job_that_names_no_memory_leaves_the_host_its_reserve(
    tight: TestInstance,
) -> None:
    """It ends with that reason, and the message says what to do; others go on."""
    beside = tight.submit(["sleep", "600"])
    tight.wait(beside, "running")
    greedy = tight.submit(["python3", "-c", ALLOCATE])
    ended = tight.wait(greedy)
    assert (ended.state, ended.reason) == ("failed", "out_of_memory")
    shown = tight.ok("show", greedy)
    assert "256 MB" in shown
    assert "reserve_memory_gb" in shown
    assert "--memory" in shown
    enough = tight.submit(["python3", "-c", ALLOCATE], resources={"memory_gb": "2GB"})
    assert tight.wait(enough).state == "completed"
    assert tight.job(beside).state == "running"
    (node,) = tight.json("nodes")["items"]
    assert node["booked"]["memory_gb"] == 0
    tight.ok("cancel", beside)
