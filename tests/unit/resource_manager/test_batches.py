"""Which ends of workers count against their batch."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.resource_manager.batch import Worker
from gpuyard.resource_manager.batches import Batches


class FakeBatch:
    """Takes note of what it is told about its workers."""

    id = "batch_1"

    def __init__(self) -> None:
        self.faults: list[bool] = []

    def worker_gone(self, worker: Worker, *, its_fault: bool) -> None:
        self.faults.append(its_fault)


def core_with(row: dict[str, Any]) -> Any:
    async def committed() -> None: ...

    return SimpleNamespace(
        committed=committed,
        queries=SimpleNamespace(job=lambda job_id: row),
        schedule=lambda: None,
    )


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        ("exit_code", True),
        ("spawn_failed", True),
        ("acme_quota_exceeded", True),
        ("preempted", False),
        ("node_rebooted", False),
        ("node_lost", False),
        ("exit_status_lost", False),
        ("node_silent", False),
        ("gpu_failed", False),
    ],
)
def test_a_worker_that_lost_its_place_is_not_at_fault(reason, counts):
    row = {"state": "failed", "reason": reason}
    none: Any = None
    batches = Batches(core_with(row), none, none)
    batch: Any = FakeBatch()
    asyncio.run(batches._note_worker_end(batch, Worker("job_1", None)))
    assert batch.faults == [counts]
