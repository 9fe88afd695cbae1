"""A ledger that cannot be written: nothing is launched on its strength, and memory is read anew."""

import asyncio
from copy import deepcopy

import pytest

from gpuyard.domain.errors import DiskFullError
from tests.support.controlled import Controlled
from tests.support.ledger import failing_commits
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def memory(yard: Controlled) -> tuple[dict, dict]:
    return deepcopy((yard.core.view.jobs, yard.core.view.attempts))


async def test_a_submission_that_cannot_be_written_leaves_nothing_behind(yard: Controlled):
    with failing_commits(yard.ledger.engine), pytest.raises(DiskFullError, match="the disk is full"):
        await yard.submit()
    assert memory(yard) == ({}, {})
    assert not yard.host.runs
    assert yard.ledger.queries.jobs_page(limit=10, filters={}) == []
    job_id = await yard.submit()
    await yard.finish(job_id)
    assert (await yard.until(job_id))["state"] == "completed"


async def test_memory_is_what_the_ledger_holds_after_a_failure(yard: Controlled):
    running, queued = [await yard.submit(resources={"cpus": 4}) for _ in range(2)]
    await yard.until(running, "running")
    before = memory(yard)
    with failing_commits(yard.ledger.engine), pytest.raises(DiskFullError):
        await asyncio.gather(yard.cancel(running), yard.submit(), yard.cancel(queued))
    assert memory(yard) == before
    assert yard.core.view.nodes["node_1"].free.cpus == 0
    assert not yard.host.stops


async def test_an_end_that_cannot_be_written_is_told_again_and_then_counted_once(yard: Controlled):
    job_id, waiting = [await yard.submit(resources={"cpus": 4}) for _ in range(2)]
    await yard.until(job_id, "running")
    with failing_commits(yard.ledger.engine):
        await yard.finish(job_id)
        assert yard.host.outbox
        assert yard.job(job_id)["state"] == "running"
        assert len(yard.host.runs) == 1
    assert (await yard.until(job_id))["state"] == "completed"
    await yard.finish(waiting)
    assert (await yard.until(waiting))["attempts"] == 1


async def test_a_node_whose_joining_could_not_be_written_leaves_no_half_of_it_behind(yard: Controlled):
    await yard.controller.reports.node_left("node_2")
    job_id = await yard.submit()
    await yard.restart()
    assert set(yard.core.view.nodes) == {"node_1"}
    await yard.finish(job_id)
    assert (await yard.until(job_id))["state"] == "completed"


async def test_a_cancel_that_cannot_be_written_stops_nothing(yard: Controlled):
    job_id = await yard.submit()
    await yard.until(job_id, "running")
    with failing_commits(yard.ledger.engine), pytest.raises(DiskFullError):
        await yard.cancel(job_id)
    assert yard.host.stops == []
    assert yard.core.view.jobs[job_id].cancel_requested is False
    await yard.cancel(job_id)
    assert (await yard.until(job_id))["state"] == "cancelled"


async def test_an_intent_that_cannot_be_written_is_decided_again_when_there_is_room(
    yard: Controlled, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gpuyard.controller.core.RETRY_WRITE_S", 0.02)
    job_id = await yard.submit(retry_count=1)
    await yard.finish(job_id, exit_code=1)
    with failing_commits(yard.ledger.engine) as failed:
        await eventually(lambda: len(failed) >= 3, "the retry to be tried again and again")
        assert sum(yard.host.runs.values()) == 1
    await yard.finish(job_id)
    row = await yard.until(job_id)
    assert (row["state"], row["attempts"]) == ("completed", 2)


async def test_a_launch_under_way_survives_the_failure_of_another_commit(yard: Controlled):
    yard.host.hold_reply = asyncio.Event()
    job_id = await yard.submit()
    await yard.begun(job_id)
    with failing_commits(yard.ledger.engine), pytest.raises(DiskFullError):
        await yard.submit()
    # Memory is new now; the reply comes to a launch that knew the old.
    yard.host.hold_reply.set()
    await yard.finish(job_id)
    row = await yard.until(job_id)
    assert (row["state"], row["attempts"]) == ("completed", 1)


async def test_a_checkpoint_whose_pruning_cannot_be_written_keeps_its_blob(yard: Controlled):
    job_id = await yard.submit()
    blobs = [await yard.save(job_id, f"{n}.pt") for n in range(2)]
    await yard.settled()
    with failing_commits(yard.ledger.engine):
        await yard.save(job_id, "2.pt")
    assert all(yard.blobs.has(blob) for blob in blobs)
    await eventually(lambda: not yard.host.outbox, "the checkpoint to be told again")
    await yard.settled()
    assert [row["path"] for row in yard.ledger.queries.checkpoints_of(job_id) if row["kept"]] == ["1.pt", "2.pt"]
    await eventually(lambda: not yard.blobs.has(blobs[0]), "the pruned blob to be deleted")
