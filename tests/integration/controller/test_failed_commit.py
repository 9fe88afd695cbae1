"""A ledger that cannot be written: nothing is launched on its strength, and memory is
read anew.
"""

import asyncio
from copy import deepcopy

import pytest

from gpuyard.domain.errors import DiskFullError
from tests.support.controlled import Controlled
from tests.support.ledger import failing_commits
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def memory(instance: Controlled) -> tuple[dict, dict]:
    return deepcopy((instance.core.view.jobs, instance.core.view.attempts))


async def test_a_submission_that_cannot_be_written_leaves_nothing_behind(
    instance: Controlled,
):
    with (
        failing_commits(instance.ledger.engine),
        pytest.raises(DiskFullError, match="the disk is full"),
    ):
        await instance.submit()
    assert memory(instance) == ({}, {})
    assert not instance.host.runs
    assert instance.ledger.queries.jobs_page(limit=10) == []
    job_id = await instance.submit()
    await instance.finish(job_id)
    assert (await instance.until(job_id))["state"] == "completed"


async def test_memory_is_what_the_ledger_holds_after_a_failure(instance: Controlled):
    running, queued = [await instance.submit(resources={"cpus": 4}) for _ in range(2)]
    await instance.until(running, "running")
    before = memory(instance)
    with failing_commits(instance.ledger.engine), pytest.raises(DiskFullError):
        await asyncio.gather(
            instance.cancel(running), instance.submit(), instance.cancel(queued)
        )
    assert memory(instance) == before
    assert instance.core.view.nodes["node_1"].free.cpus == 0
    assert not instance.host.stops


async def test_an_end_that_cannot_be_written_is_told_again_and_then_counted_once(
    instance: Controlled,
):
    job_id, waiting = [await instance.submit(resources={"cpus": 4}) for _ in range(2)]
    await instance.until(job_id, "running")
    with failing_commits(instance.ledger.engine):
        await instance.finish(job_id)
        assert instance.host.outbox
        assert instance.job(job_id)["state"] == "running"
        assert len(instance.host.runs) == 1
    assert (await instance.until(job_id))["state"] == "completed"
    await instance.finish(waiting)
    assert (await instance.until(waiting))["attempts"] == 1


async def test_a_node_whose_joining_could_not_be_written_leaves_no_half_of_it_behind(
    instance: Controlled,
):
    await instance.controller.reports.node_left("node_2")
    job_id = await instance.submit()
    await instance.restart()
    assert set(instance.core.view.nodes) == {"node_1"}
    await instance.finish(job_id)
    assert (await instance.until(job_id))["state"] == "completed"


async def test_a_cancel_that_cannot_be_written_stops_nothing(instance: Controlled):
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    with failing_commits(instance.ledger.engine), pytest.raises(DiskFullError):
        await instance.cancel(job_id)
    assert instance.host.stops == []
    assert instance.core.view.jobs[job_id].cancel_requested is False
    await instance.cancel(job_id)
    assert (await instance.until(job_id))["state"] == "cancelled"


async def test_an_intent_that_cannot_be_written_is_decided_again_when_there_is_room(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gpuyard.controller.core.RETRY_WRITE_S", 0.02)
    job_id = await instance.submit(retry_count=1)
    # Its second attempt is not due before commits fail.
    clock = instance.core.clock
    before = clock()
    monkeypatch.setattr(instance.core, "clock", lambda: before)
    await instance.finish(job_id, exit_code=1)
    await instance.until(job_id, "queued")
    with failing_commits(instance.ledger.engine) as failed:
        monkeypatch.setattr(instance.core, "clock", clock)
        instance.core.schedule()
        await eventually(
            lambda: len(failed) >= 3, "the retry to be tried again and again"
        )
        assert sum(instance.host.runs.values()) == 1
    await instance.finish(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["attempts"]) == ("completed", 2)


async def test_a_launch_under_way_survives_the_failure_of_another_commit(
    instance: Controlled,
):
    instance.host.hold_reply = asyncio.Event()
    job_id = await instance.submit()
    await instance.begun(job_id)
    with failing_commits(instance.ledger.engine), pytest.raises(DiskFullError):
        await instance.submit()
    # Memory is new now; the reply comes to a launch that knew the old.
    instance.host.hold_reply.set()
    await instance.finish(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["attempts"]) == ("completed", 1)


async def test_a_checkpoint_whose_pruning_cannot_be_written_keeps_its_blob(
    instance: Controlled,
):
    job_id = await instance.submit()
    blobs = [await instance.save(job_id, f"{n}.pt") for n in range(2)]
    await instance.settled()
    with failing_commits(instance.ledger.engine):
        await instance.save(job_id, "2.pt")
    assert all(instance.blobs.has(blob) for blob in blobs)
    await eventually(
        lambda: not instance.host.outbox, "the checkpoint to be told again"
    )
    await instance.settled()
    assert [
        row["path"]
        for row in instance.ledger.queries.checkpoints_of(job_id)
        if row["kept"]
    ] == ["1.pt", "2.pt"]
    await eventually(
        lambda: not instance.blobs.has(blobs[0]), "the pruned blob to be deleted"
    )
