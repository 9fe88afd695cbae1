"""Nodes that leave, come back, reboot or stay silent, and what becomes of what ran there."""

import asyncio

import pytest

from gpuyard.controller import reports
from gpuyard.domain import wire
from tests.support.controlled import Controlled
from tests.support.fake_provider import FakeHost
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that loses sight of a silent node, and patience with a job on it, within moments."""
    monkeypatch.setattr(reports, "UNKNOWN_AFTER_S", 0.05)
    monkeypatch.setattr(reports, "SILENCE_MARGIN_S", 0.05)


def node(yard: Controlled, node_id: str = "node_1") -> dict:
    return next(row for row in yard.ledger.queries.nodes() if row["id"] == node_id)


async def test_a_node_is_in_the_ledger_with_what_it_has(yard: Controlled):
    yard.host.gpu_count = 2
    await yard.provider.join("node_1")
    row = node(yard)
    assert (row["state"], row["provider"], row["cpus"], row["memory_gb"], row["boot_id"]) == (
        "online",
        "fake",
        4,
        16,
        "boot-1",
    )
    assert [(gpu["uuid"], gpu["index"], gpu["memory_mb"]) for gpu in yard.ledger.queries.gpus()] == [
        ("GPU-node_1-0", 0, 15360), ("GPU-node_1-1", 1, 15360)]  # fmt: skip


async def test_what_runs_on_a_node_that_leaves_runs_on(yard: Controlled):
    job_id = await yard.submit()
    await yard.until(job_id, "running")
    await yard.provider.leave("node_1")
    await yard.settled()
    assert node(yard)["state"] == "silent"
    assert yard.job(job_id)["state"] == "running"
    yard.host.ended(yard.attempts(job_id)[0]["id"], exit_code=0)
    await yard.provider.join("node_1")
    assert (await yard.until(job_id))["state"] == "completed"


async def test_nothing_is_placed_on_a_node_that_is_away(yard: Controlled):
    await yard.provider.leave("node_1")
    job_id = await yard.submit()
    assert yard.job(job_id)["state"] == "queued"
    assert "node_1" in str(yard.controller.requests.why(job_id))
    await yard.provider.join("node_1")
    await yard.until(job_id, "running")


async def test_a_job_out_of_sight_is_unknown_until_it_is_seen_again(yard: Controlled, impatient: None):
    job_id = await yard.submit()
    await yard.until(job_id, "running")
    await yard.provider.leave("node_1")
    assert (await yard.until(job_id, "unknown"))["reason"] == "node_silent"
    await yard.provider.join("node_1")
    assert (await yard.until(job_id, "running"))["reason"] is None
    await yard.finish(job_id)
    assert (await yard.until(job_id))["attempts"] == 1


async def test_a_node_that_is_back_in_time_worries_nobody(yard: Controlled, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reports, "UNKNOWN_AFTER_S", 0.2)
    job_id = await yard.submit()
    await yard.until(job_id, "running")
    for _ in range(10):
        await yard.provider.leave("node_1")
        await yard.provider.join("node_1")
    # A watch that was left over would say that the job is out of sight before it ends.
    await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "silence-node_1"])
    assert yard.job(job_id)["state"] == "running"
    assert ("job.unknown", job_id) not in yard.notes


async def test_a_silent_job_is_given_up_after_its_time_and_tried_again_elsewhere(yard: Controlled, impatient: None):
    job_id = await yard.submit(max_silence_s=0.1, checkpoint={"grace_s": 0}, retry_count=1)
    await yard.until(job_id, "running")
    await yard.provider.leave("node_1")
    yard.hosts["node_2"] = FakeHost("node_2")
    await yard.provider.join("node_2")
    await eventually(lambda: len(yard.attempts(job_id)) == 2, "a second attempt")
    first, second = yard.attempts(job_id)
    assert (first["state"], first["reason"], second["placements"][0]["node_id"]) == ("lost", "node_silent", "node_2")
    # The node is back with the attempt that was given up: it is ended there, and changes nothing here.
    yard.host.stops.clear()
    await yard.provider.join("node_1")
    await eventually(lambda: yard.host.stops == [(first["id"], "superseded")], "the old attempt to be stopped")
    await yard.finish(job_id)
    assert (await yard.until(job_id))["state"] == "completed"


async def test_without_a_bound_a_silent_job_keeps_its_place(yard: Controlled, impatient: None):
    job_id = await yard.submit(resources={"cpus": 4}, retry_count=3)
    await yard.until(job_id, "running")
    await yard.provider.leave("node_1")
    await yard.until(job_id, "unknown")
    assert yard.core.view.nodes["node_1"].free.cpus == 0
    assert yard.attempts(job_id)[0]["state"] == "running"


@pytest.mark.parametrize(("retry_count", "state"), [(1, "completed"), (0, "failed")])
async def test_an_attempt_that_a_reboot_killed_is_lost_and_retried_as_allowed(yard: Controlled, retry_count, state):
    job_id = await yard.submit(retry_count=retry_count)
    await yard.until(job_id, "running")
    await yard.provider.leave("node_1")
    yard.host.reboot()
    await yard.provider.join("node_1")
    if retry_count:
        await yard.finish(job_id)
    row = await yard.until(job_id)
    attempt = yard.attempts(job_id)[0]
    assert (row["state"], attempt["state"], attempt["reason"]) == (state, "lost", "attempt_lost")
    assert "it was rebooted, or its agent's folder removed" in attempt["message"]


async def test_a_reboot_during_a_cancel_is_a_cancel(yard: Controlled):
    yard.host.obedient = False
    job_id = await yard.submit(retry_count=5)
    await yard.on_host(job_id, lambda host, i: host.started(i))
    await yard.cancel(job_id)
    await yard.provider.leave("node_1")
    yard.host.reboot()
    await yard.provider.join("node_1")
    row = await yard.until(job_id)
    assert (row["state"], row["attempts"]) == ("cancelled", 1)


async def test_what_was_sent_and_never_arrived_is_sent_again(yard: Controlled):
    yard.host.deaf = True
    job_id = await yard.submit()
    await eventually(lambda: [row["state"] for row in yard.attempts(job_id)] == ["sent"])
    yard.host.deaf = False
    await yard.provider.leave("node_1")
    await yard.provider.join("node_1")
    await yard.finish(job_id)
    assert (await yard.until(job_id))["attempts"] == 1


async def test_gpus_come_and_go_while_the_node_is_there(yard: Controlled):
    def seen(*gpus: wire.Gpu) -> None:
        yard.host.say(wire.GpusSeen(list(gpus)))

    one, two = (wire.Gpu(f"GPU-{n}", n, "Tesla T4", 15360, "7.5") for n in range(2))
    seen(one, two)
    await yard.provider.deliver("node_1")
    assert len(yard.ledger.queries.gpus()) == 2
    seen(wire.Gpu("GPU-0", 0, "Tesla T4", 15360, "7.5", problem="it has fallen off the bus", state="offline"))
    await yard.provider.deliver("node_1")
    (gpu,) = yard.ledger.queries.gpus()
    assert (gpu["uuid"], gpu["state"], gpu["problem"]) == ("GPU-0", "offline", "it has fallen off the bus")
    job_id = await yard.submit(resources={"gpus": {"count": 1}})
    assert yard.job(job_id)["state"] == "queued"
    seen(one)
    await yard.provider.deliver("node_1")
    await yard.until(job_id, "running")


async def test_a_node_says_nothing_of_another_nodes_attempts(yard: Controlled):
    yard.hosts["node_2"] = FakeHost("node_2")
    await yard.provider.join("node_2")
    job_id = await yard.submit()
    attempt_id = await yard.begun(job_id)
    await yard.until(job_id, "running")
    other = yard.hosts["node_2" if attempt_id in yard.host.attempts else "node_1"]
    other.ended(attempt_id, exit_code=0)
    await yard.provider.deliver(other.node_id)
    assert yard.job(job_id)["state"] == "running"
