"""Models that load, sleep, wake and fail, and batches that make them leave."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.batches import BatchMode, BatchSpec, ItemSpec
from gpuyard.domain.errors import RefusedError
from gpuyard.gateway.request_queue import Claim
from gpuyard.resource_manager import resident
from tests.integration.resource_manager.conftest import Managed
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def batch(folder: Path, count: int, mode: BatchMode) -> BatchSpec:
    items = tuple(ItemSpec(path=f"/items/{number}") for number in range(1, count + 1))
    return BatchSpec(
        script="count", items=items, source="/items", results=str(folder), mode=mode
    )


async def submit(instance: Managed, spec: BatchSpec) -> str:
    return (await instance.manager.batches.submit(spec))["batch_id"]


async def work(instance: Managed, batch_id: str) -> None:
    """Let every worker do its items, and end."""
    batches = instance.manager.batches

    async def one(attempt_id: str, job_id: str) -> None:
        done = None
        while order := await batches.take(batch_id, attempt_id, done, None):
            done = {"number": order["number"], "attempts": order["attempts"]}
        await instance.finish(job_id)

    while batches.summary(batch_id)["state"] == "running":
        workers = instance.workers(batch_id)
        await asyncio.gather(*(one(*worker) for worker in workers.items()))
        await asyncio.sleep(0.01)


def over(instance: Managed, batch_id: str) -> Any:
    shown = instance.manager.batches.show(batch_id)
    return shown if shown["state"] in ("completed", "failed", "cancelled") else None


def soon() -> Claim:
    return Claim(deadline=time.monotonic() + 10.0)


async def test_a_request_loads_a_model_and_unload_ends_it(instance: Managed):
    queues = instance.manager.residents.request_queues
    replica = await queues.acquire("chat", soon())
    assert instance.loaded == [("chat", "ready")]
    queues.release(replica, 0.1)
    (listed,) = [m for m in instance.manager.models.listing() if m["name"] == "chat"]
    assert (listed["state"], listed["answered"]) == ("ready", 1)
    await instance.manager.models.unload("chat")
    await eventually(lambda: not instance.loaded, "the model to be unloaded")


async def test_a_server_that_starts_finds_its_models(instance: Managed):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    await instance.restart()
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model again")
    assert len(instance.servers) == 1


async def test_a_model_that_never_answers_is_refused_in_the_end(
    instance: Managed, monkeypatch
):
    monkeypatch.setattr(resident, "_FIRST_PAUSE_S", 0.01)

    async def fail() -> None:
        while True:
            for attempt_id, attempt in list(instance.host.attempts.items()):
                if attempt.live:
                    instance.host.ended(attempt_id, exit_code=7)
            instance.provider.deliver_soon("node_1")
            await asyncio.sleep(0.01)

    failing = asyncio.create_task(fail())
    with pytest.raises(Exception, match="chat cannot be loaded: its server ended"):
        await instance.manager.residents.request_queues.acquire("chat", soon())
    failing.cancel()


async def test_an_exclusive_batch_lets_models_sleep_and_wakes_them(
    instance: Managed, tmp_path
):
    await instance.manager.models.load("chat")
    await eventually(lambda: instance.loaded == [("chat", "ready")], "the model")
    batch_id = await submit(
        instance, batch(tmp_path / "results", 7, BatchMode.EXCLUSIVE)
    )
    await eventually(lambda: len(instance.workers(batch_id)) == 2, "two workers")
    assert instance.loaded == [("chat", "asleep")]
    with pytest.raises(RefusedError):
        await instance.manager.models.load("big")
    await work(instance, batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["completed"] == 7 and instance.loaded == [("chat", "ready")]
    index = json.loads((Path(shown["results"]) / "index.json").read_text())
    assert [item["state"] for item in index["items"]] == ["completed"] * 7


async def test_a_batch_goes_on_after_a_restart(instance: Managed, tmp_path):
    await instance.manager.models.load("big")
    await eventually(lambda: instance.loaded == [("big", "ready")], "the model")
    batch_id = await submit(
        instance, batch(tmp_path / "results", 5, BatchMode.EXCLUSIVE)
    )
    await eventually(lambda: len(instance.workers(batch_id)) == 2, "two workers")
    await instance.restart()
    await work(instance, batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["completed"] == 5 and instance.loaded == [("big", "ready")]


async def test_a_shared_batch_shares_its_items(instance: Managed, tmp_path):
    spec = batch(tmp_path / "results", 3, BatchMode.SHARED)
    assert instance.manager.batches.estimate(spec)["items"] == 3
    batch_id = await submit(instance, spec)
    assert instance.manager.batches.waiting() == 3
    await work(instance, batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert (shown["completed"], shown["state"]) == (3, "completed")


async def test_workers_that_fail_end_the_batch_and_its_items_can_be_retried(
    instance: Managed, tmp_path, monkeypatch
):
    monkeypatch.setattr("gpuyard.resource_manager.batch.time.monotonic", lambda: 0.0)
    monkeypatch.setattr("gpuyard.resource_manager.batches._MAX_FAILED_WORKERS", 1)
    batch_id = await submit(instance, batch(tmp_path / "r", 2, BatchMode.SHARED))
    workers = await eventually(lambda: instance.workers(batch_id), "a worker")
    for job_id in list(workers.values()):
        await instance.finish(job_id, exit_code=3)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["failed"] == 2 and "end before" in shown["items"][0]["reason"]
    await instance.manager.batches.retry(batch_id, None)
    await work(instance, batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["completed"] == 2


async def test_a_cancelled_batch_ends_its_workers(instance: Managed, tmp_path):
    batch_id = await submit(instance, batch(tmp_path / "r", 4, BatchMode.SHARED))
    await eventually(lambda: len(instance.workers(batch_id)) == 2, "two workers")
    await instance.manager.batches.cancel(batch_id)
    shown = await eventually(lambda: over(instance, batch_id), "the batch to end")
    assert shown["state"] == "cancelled" and not instance.workers(batch_id)
