"""Nodes that are drained and removed at moments that nobody would choose."""

import asyncio

import pytest

from gpuyard.domain import wire
from gpuyard.domain.errors import RefusedError
from tests.integration.controller.test_hostile_nodes import join
from tests.support.controlled import Controlled
from tests.support.fake_provider import FakeHost
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def away(instance: Controlled) -> FakeHost:
    """A machine that has joined, and gets all jobs."""
    made = await join(instance, "away")
    await instance.controller.joined_nodes.cordon("node_1", cordoned=True)
    return made


async def remove(instance: Controlled, host: FakeHost) -> None:
    await instance.controller.joined_nodes.remove(host.node_id)
    await instance.provider.leave(host.node_id)
    await instance.controller.joined_nodes.cordon("node_1", cordoned=False)


async def ends_at_home(instance: Controlled, job_id: str) -> None:
    there = instance.host.attempts
    await eventually(
        lambda: any(attempt.live for attempt in there.values()), "it to go on at home"
    )
    await instance.finish(job_id)
    assert (await instance.until(job_id))["state"] == "completed"
    assert instance.attempts(job_id)[-1]["placements"][0]["node_id"] == "node_1"


@pytest.mark.parametrize("moment", ["hold_start", "hold_reply"])
async def test_a_node_is_removed_while_a_job_is_on_its_way_there(
    instance: Controlled, away: FakeHost, moment: str
):
    hold = asyncio.Event()
    setattr(away, moment, hold)
    job_id = await instance.submit(retry_count=1)
    await eventually(lambda: instance.attempts(job_id), "its first attempt")
    await remove(instance, away)
    hold.set()
    await ends_at_home(instance, job_id)


async def test_a_node_is_removed_before_its_jobs_have_moved(
    instance: Controlled, away: FakeHost
):
    job_id = await instance.submit(preemptible=True, retry_count=1)
    await instance.until(job_id, "running")
    away.obedient = False
    drained = await instance.controller.joined_nodes.drain(away.node_id)
    assert drained.moved == [job_id]
    again = await instance.controller.joined_nodes.drain(away.node_id)
    assert again.moved == [job_id]
    await remove(instance, away)
    await ends_at_home(instance, job_id)


async def test_a_node_is_removed_while_a_job_there_is_cancelled(
    instance: Controlled, away: FakeHost
):
    job_id = await instance.submit(retry_count=1)
    await instance.until(job_id, "running")
    away.obedient = False
    await instance.cancel(job_id)
    await remove(instance, away)
    assert (await instance.until(job_id))["state"] == "cancelled"


async def test_both_nodes_of_a_gang_are_removed(instance: Controlled, away: FakeHost):
    second = await join(instance, "second")
    job_id = await instance.submit(resources={"nodes": 2, "cpus": 3}, retry_count=0)
    await instance.until(job_id, "running")
    for host in (away, second):
        host.obedient = False
        await instance.controller.joined_nodes.remove(host.node_id)
        await instance.provider.leave(host.node_id)
    assert (await instance.until(job_id))["state"] == "failed"
    assert not instance.core.view.attempts


async def test_a_machine_that_its_cloud_takes_back_keeps_no_job(
    instance: Controlled, away: FakeHost
):
    """Not even one that a drain would leave there; and the second notice is none."""
    left = await instance.submit()
    await instance.until(left, "running")
    (drained,) = (await instance.controller.joined_nodes.drain(away.node_id)).left
    assert drained == left
    for _ in range(2):
        away.say(wire.InterruptionSeen(instance.core.clock() + 120))
        await instance.provider.deliver(away.node_id)
    await instance.controller.joined_nodes.cordon("node_1", cordoned=False)
    await ends_at_home(instance, left)
    reasons = [attempt["reason"] for attempt in instance.attempts(left)]
    assert reasons == ["preempted", None]


async def test_a_removed_node_stays_removed_when_a_server_starts(
    instance: Controlled, away: FakeHost
):
    await remove(instance, away)
    await instance.restart()
    with pytest.raises(RefusedError, match="was removed"):
        await instance.controller.reports.node_joined("fake", away.hello())
    assert instance.core.view.node(away.node_id).state == "removed"
