"""Which ends of workers count against their batch."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.domain.errors import LedgerError
from gpuyard.domain.scripts import Scripts, ScriptSpec
from gpuyard.residency.item_assignment import BatchGpu, plan_batch
from gpuyard.resource_manager.batch import Batch, Item, Worker
from gpuyard.resource_manager.batch_gpus import BatchGpus
from gpuyard.resource_manager.batches import Batches
from gpuyard.scheduler.nodes import Device, Node


class FakeBatch:
    """Takes note of what it is told about its workers."""

    id = "batch_1"

    def __init__(self) -> None:
        self.faults: list[bool] = []

    def worker_gone(self, worker: Worker, *, its_fault: bool) -> None:
        self.faults.append(its_fault)


def core_with(row: dict[str, Any], message: str | None = None) -> Any:
    """A core that knows this of each job, and what its attempt ended with."""

    async def committed() -> None: ...

    attempts = [{"message": message}]
    return SimpleNamespace(
        committed=committed,
        queries=SimpleNamespace(
            job=lambda job_id: row,
            attempts_of=lambda job_ids: dict.fromkeys(job_ids, attempts),
        ),
        schedule=lambda: None,
        clock=time.time,
        view=SimpleNamespace(jobs={}, attempts={}),
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


def test_a_batch_whose_workers_cannot_start_says_why() -> None:
    row = {"state": "failed", "reason": "not_executable"}
    none: Any = None
    batches = Batches(core_with(row, "python cannot be run by ann"), none, none)
    item = Item("", 1, "1.mp4", None, None, {})
    batch = Batch({"id": "b", "problem": None}, ScriptSpec(), [item])
    for number in range(3):
        worker = Worker(f"job_{number}", None)
        asyncio.run(batches._note_worker_end(batch, worker))
    (failed,) = batches._note_losses(batch)
    assert failed.info["reason"] == "python cannot be run by ann"


def test_the_end_of_a_worker_that_is_not_committed_causes_no_decision() -> None:
    """While the disk is full, each decision would end the worker again, and the server
    would never rest.
    """

    async def full() -> None:
        raise LedgerError("the disk is full")

    decisions: list[int] = []
    core = core_with({})
    core.committed = full
    core.schedule = lambda: decisions.append(1)
    none: Any = None
    batches = Batches(core, none, none)
    read_again: Any = FakeBatch()
    batches.live[FakeBatch.id] = read_again
    of_before: Any = FakeBatch()
    asyncio.run(batches._note_worker_end(of_before, Worker("job_1", None)))
    assert decisions == []


def test_a_later_time_to_decide_does_not_replace_an_earlier_one():
    async def alarms() -> list[float]:
        none: Any = None
        batches = Batches(core_with({}), none, none)
        now = time.monotonic()
        for delay_s in (300.0, 2.0, 300.0):
            batches._wake_at(now + delay_s)
        assert batches._alarm
        at = batches._alarm.when() - asyncio.get_running_loop().time()
        batches.close()
        return [at]

    # The two clocks are read one after the other.
    assert asyncio.run(alarms())[0] < 2.1


@pytest.mark.parametrize(
    ("of_batch", "of_node", "is_missing"),
    [
        ({}, {}, True),
        ({}, {"joined": True}, False),
        ({"joined": True}, {"joined": True}, True),
        ({"joined": True}, {"joined": True, "cordoned": True}, False),
        ({"joined": True}, {"joined": True, "state": "online"}, False),
    ],
)
def test_a_batch_waits_only_for_nodes_that_it_could_use(of_batch, of_node, is_missing):
    node = Node("node_1", "one", **{"state": "silent", **of_node})
    device = Device("GPU-1", "node_1", 0, "NVIDIA L4", 23034, "8.9")
    view = SimpleNamespace(devices={"GPU-1": device}, node=lambda _: node)
    core: Any = SimpleNamespace(view=view)
    live = {"job_1": SimpleNamespace(gpus=("GPU-1",))}
    residents: Any = SimpleNamespace(servers=SimpleNamespace(live=live))
    batch = Batch({"id": "b"}, ScriptSpec(**of_batch), [])
    assert (BatchGpus(core, residents).missing_node(batch) is node) == is_missing


def test_the_documents_batch_of_videos_whose_length_nobody_knows_takes_37_minutes():
    """125 videos on three GPUs; then three models load for two minutes, one after the
    other.
    """
    items = [Item("", n, f"{n}.mp4", None, None, {}) for n in range(125)]
    batch = Batch({}, Scripts({})["whisper_transcribe"], items)
    durations = [batch.expected_s(item) for item in items]
    gpus = [BatchGpu(f"gpu{n}", 15.0, 120.0) for n in range(3)]
    plans = plan_batch(durations, gpus, 1.0)
    end_s = max(plan.model_back_at for plan in plans)
    assert end_s / 60 == pytest.approx(37, abs=2)
