"""Nodes that leave, come back, reboot or stay silent, and what becomes of what ran
there.
"""

import asyncio

import pytest

from gpuyard.controller import logs, silent_nodes
from gpuyard.domain import wire
from tests.support.controlled import Controlled
from tests.support.fake_provider import FakeHost
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that loses sight of a silent node, and patience with a job on it, within
    moments.
    """
    monkeypatch.setattr(silent_nodes, "UNKNOWN_AFTER_S", 0.05)
    monkeypatch.setattr(silent_nodes, "SILENCE_MARGIN_S", 0.05)


def node(instance: Controlled, node_id: str = "node_1") -> dict:
    return next(row for row in instance.ledger.queries.nodes() if row["id"] == node_id)


async def test_a_node_is_in_the_ledger_with_what_it_has(instance: Controlled):
    instance.host.gpu_count = 2
    await instance.provider.join("node_1")
    row = node(instance)
    assert (
        row["state"],
        row["provider"],
        row["cpus"],
        row["memory_gb"],
        row["boot_id"],
    ) == (
        "online",
        "fake",
        4,
        16,
        "boot-1",
    )
    assert [
        (gpu["uuid"], gpu["index"], gpu["memory_mb"])
        for gpu in instance.ledger.queries.gpus()
    ] == [("GPU-node_1-0", 0, 15360), ("GPU-node_1-1", 1, 15360)]


async def test_what_runs_on_a_node_that_leaves_runs_on(instance: Controlled):
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    await instance.provider.leave("node_1")
    await instance.settled()
    assert node(instance)["state"] == "silent"
    assert instance.job(job_id)["state"] == "running"
    instance.host.ended(instance.attempts(job_id)[0]["id"], exit_code=0)
    await instance.provider.join("node_1")
    assert (await instance.until(job_id))["state"] == "completed"


async def test_nothing_is_placed_on_a_node_that_is_away(instance: Controlled):
    await instance.provider.leave("node_1")
    job_id = await instance.submit()
    assert instance.job(job_id)["state"] == "queued"
    assert "node_1" in str(instance.controller.requests.why(job_id))
    await instance.provider.join("node_1")
    await instance.until(job_id, "running")


async def test_a_job_out_of_sight_is_unknown_until_it_is_seen_again(
    instance: Controlled, impatient: None
):
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    await instance.provider.leave("node_1")
    assert (await instance.until(job_id, "unknown"))["reason"] == "node_silent"
    await instance.provider.join("node_1")
    assert (await instance.until(job_id, "running"))["reason"] is None
    await instance.finish(job_id)
    assert (await instance.until(job_id))["attempts"] == 1


async def test_a_node_that_is_back_in_time_worries_nobody(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(silent_nodes, "UNKNOWN_AFTER_S", 0.2)
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    for _ in range(10):
        await instance.provider.leave("node_1")
        await instance.provider.join("node_1")
    # A watch that was left over would say that the job is out of sight before it ends.
    await eventually(
        lambda: (
            not [
                task
                for task in asyncio.all_tasks()
                if task.get_name() == "silence-node_1"
            ]
        )
    )
    assert instance.job(job_id)["state"] == "running"
    assert ("job.unknown", job_id) not in instance.notes


async def given_up_by_its_node(instance: Controlled) -> str:
    """A job whose node fell silent, and that has a second attempt on node_2."""
    job_id = await instance.submit(
        max_silence_s=0.1, checkpoint={"grace_s": 0}, retry_count=1
    )
    await instance.until(job_id, "running")
    await instance.provider.leave("node_1")
    instance.hosts["node_2"] = FakeHost("node_2")
    await instance.provider.join("node_2")
    await eventually(lambda: len(instance.attempts(job_id)) == 2, "a second attempt")
    return job_id


async def test_a_silent_job_is_given_up_after_its_time_and_tried_again_elsewhere(
    instance: Controlled, impatient: None
):
    job_id = await given_up_by_its_node(instance)
    first, second = instance.attempts(job_id)
    assert (first["state"], first["reason"], second["placements"][0]["node_id"]) == (
        "lost",
        "node_silent",
        "node_2",
    )
    # The node is back with the attempt that was given up: it is ended there, and
    # changes nothing here.
    instance.host.stops.clear()
    await instance.provider.join("node_1")
    await eventually(
        lambda: instance.host.stops == [(first["id"], "superseded")],
        "the old attempt to be stopped",
    )
    await instance.finish(job_id)
    assert (await instance.until(job_id))["state"] == "completed"


async def test_the_log_of_an_attempt_whose_node_is_lost_is_given_up(
    instance: Controlled, impatient: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logs, "ENDED_S", 0.05)
    job_id = await given_up_by_its_node(instance)
    second = instance.attempts(job_id)[1]["id"]
    await instance.begun(job_id)
    instance.hosts["node_2"].attempts[second].log = b"two"
    await instance.finish(job_id)
    await instance.until(job_id)
    begin = logs.LogPosition(1, 0)
    async with asyncio.timeout(60):
        following = instance.controller.logs.read(job_id, follow=True, position=begin)
        found = [(part.attempt, part.data) async for part in following]
    assert all(number == 2 for number, _ in found)


async def test_without_a_bound_a_silent_job_keeps_its_place(
    instance: Controlled, impatient: None
):
    job_id = await instance.submit(resources={"cpus": 4}, retry_count=3)
    await instance.until(job_id, "running")
    await instance.provider.leave("node_1")
    await instance.until(job_id, "unknown")
    assert instance.core.view.nodes["node_1"].free.cpus == 0
    assert instance.attempts(job_id)[0]["state"] == "running"


@pytest.mark.parametrize("redials_at_once", [True, False])
async def test_a_hello_that_comes_late_ends_nothing(
    instance: Controlled, redials_at_once: bool
):
    """It was said before the job began, by an agent that was killed since."""
    late = instance.host.hello()
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    await instance.controller.reports.node_joined("fake", late)
    if not redials_at_once:
        await instance.provider.leave("node_1")
        await instance.settled()
    await instance.provider.join("node_1")
    await instance.settled()
    assert instance.job(job_id)["state"] == "running"
    await instance.finish(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["attempts"]) == ("completed", 1)


@pytest.mark.parametrize(("retry_count", "state"), [(1, "completed"), (0, "failed")])
async def test_an_attempt_that_a_reboot_killed_is_lost_and_retried_as_allowed(
    instance: Controlled, retry_count, state
):
    job_id = await instance.submit(retry_count=retry_count)
    await instance.until(job_id, "running")
    await instance.provider.leave("node_1")
    instance.host.reboot()
    await instance.provider.join("node_1")
    if retry_count:
        await instance.finish(job_id)
    row = await instance.until(job_id)
    attempt = instance.attempts(job_id)[0]
    assert (row["state"], attempt["state"], attempt["reason"]) == (
        state,
        "lost",
        "attempt_lost",
    )
    assert "it was rebooted, or its agent's folder removed" in attempt["message"]


async def test_a_reboot_during_a_cancel_is_a_cancel(instance: Controlled):
    instance.host.obedient = False
    job_id = await instance.submit(retry_count=5)
    await instance.on_host(job_id, lambda host, i: host.started(i))
    await instance.cancel(job_id)
    await instance.provider.leave("node_1")
    instance.host.reboot()
    await instance.provider.join("node_1")
    row = await instance.until(job_id)
    assert (row["state"], row["attempts"]) == ("cancelled", 1)


async def test_what_was_sent_and_never_arrived_is_sent_again(instance: Controlled):
    instance.host.deaf = True
    job_id = await instance.submit()
    await eventually(
        lambda: [row["state"] for row in instance.attempts(job_id)] == ["sent"]
    )
    instance.host.deaf = False
    await instance.provider.leave("node_1")
    await instance.provider.join("node_1")
    await instance.finish(job_id)
    assert (await instance.until(job_id))["attempts"] == 1


async def test_gpus_come_and_go_while_the_node_is_there(instance: Controlled):
    def seen(*gpus: wire.GpuStatus) -> None:
        instance.host.say(wire.GpusSeen(list(gpus)))

    one, two = (
        wire.GpuStatus(f"GPU-{n}", n, "Tesla T4", 15360, "7.5") for n in range(2)
    )
    seen(one, two)
    await instance.provider.deliver("node_1")
    assert len(instance.ledger.queries.gpus()) == 2
    seen(
        wire.GpuStatus(
            "GPU-0",
            0,
            "Tesla T4",
            15360,
            "7.5",
            problem="it has fallen off the bus",
            state="offline",
        )
    )
    await instance.provider.deliver("node_1")
    (gpu,) = instance.ledger.queries.gpus()
    assert (gpu["uuid"], gpu["state"], gpu["problem"]) == (
        "GPU-0",
        "offline",
        "it has fallen off the bus",
    )
    job_id = await instance.submit(resources={"gpus": {"count": 1}})
    assert instance.job(job_id)["state"] == "queued"
    seen(one)
    await instance.provider.deliver("node_1")
    await instance.until(job_id, "running")


async def test_a_node_says_nothing_of_another_nodes_attempts(instance: Controlled):
    instance.hosts["node_2"] = FakeHost("node_2")
    await instance.provider.join("node_2")
    job_id = await instance.submit()
    attempt_id = await instance.begun(job_id)
    await instance.until(job_id, "running")
    other = instance.hosts[
        "node_2" if attempt_id in instance.host.attempts else "node_1"
    ]
    other.ended(attempt_id, exit_code=0)
    await instance.provider.deliver(other.node_id)
    assert instance.job(job_id)["state"] == "running"
