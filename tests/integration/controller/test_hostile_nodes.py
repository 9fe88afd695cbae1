"""What a machine that has joined may say, and what is believed: it may be anybody's."""

import time

import pytest

from gpuyard.controller.node_claims import MOST_CPUS, MOST_MEMORY_GB
from gpuyard.domain import wire
from gpuyard.domain.joining import NewInvitation
from gpuyard.scheduler.nodes import REMOVED
from tests.support.controlled import Controlled
from tests.support.fake_provider import FakeHost

pytestmark = pytest.mark.anyio


async def join(instance: Controlled, name: str, gpus: int = 0) -> FakeHost:
    """A machine that has joined."""
    nodes = instance.controller.joined_nodes
    _, secret = await nodes.invite(NewInvitation(name=name))
    joined = await nodes.join(
        secret, name, "", "192.0.2.1", lambda node: ("PEM", f"print-{node}")
    )
    host = FakeHost(joined.node_id, gpu_count=gpus)
    instance.hosts[joined.node_id] = host
    await instance.provider.join(joined.node_id)
    return host


async def say(instance: Controlled, host: FakeHost, body: object) -> None:
    host.say(body)
    await instance.provider.deliver(host.node_id)
    await instance.settled()


@pytest.fixture
async def liar(instance: Controlled) -> FakeHost:
    return await join(instance, "liar")


@pytest.fixture
async def attempt(instance: Controlled, liar: FakeHost) -> str:
    """An attempt that runs on the server's own node."""
    await instance.controller.joined_nodes.cordon(liar.node_id, cordoned=True)
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    await instance.controller.joined_nodes.cordon(liar.node_id, cordoned=False)
    return instance.attempts(job_id)[0]["id"]


async def test_the_attempts_that_a_node_lists_are_only_its_own(
    instance: Controlled, liar: FakeHost, attempt: str
):
    job_id = instance.core.view.attempts[attempt].job_id
    before = instance.core.pids[job_id], instance.core.run_clock.ran_s(attempt)
    held = wire.HeldAttempt(attempt, 1, "running", pid=1, ran_s=1e6)
    lies = wire.Hello(liar.node_id, "liar", "boot", 4, 16.0, attempts=[held])
    await instance.controller.reports.node_joined("fake", lies)
    assert instance.core.pids[job_id] == before[0]
    ran_s = instance.core.run_clock.ran_s(attempt)
    assert ran_s is not None
    assert ran_s < 1e5


async def test_a_node_gives_its_places_only_to_attempts_that_it_has(
    instance: Controlled, liar: FakeHost, attempt: str
):
    """It names another's running attempt as the one that takes over."""
    await instance.controller.joined_nodes.cordon("node_1", cordoned=True)
    own = await instance.submit()
    bait = await instance.begun(own)
    assert instance.core.view.attempts[bait].node_id == liar.node_id
    await say(
        instance,
        liar,
        wire.Ended(bait, time.time(), None, exit_code=0, prefetched_next=attempt),
    )
    assert (await instance.until(own))["state"] == "completed"
    assert instance.core.view.attempts[attempt].node_id == "node_1"
    await instance.finish(instance.core.view.attempts[attempt].job_id)


async def test_a_removed_node_says_nothing_any_more(
    instance: Controlled, liar: FakeHost
):
    """It speaks up on connections that it had opened before."""
    rich = wire.GpuStatus("GPU-of-liar", 0, "Tesla T4", 15360)
    await instance.controller.joined_nodes.remove(liar.node_id)
    hello = wire.Hello(liar.node_id, "liar", "boot", 64, 512.0, gpus=[rich])
    with pytest.raises(Exception, match="was removed"):
        await instance.controller.reports.node_joined("fake", hello)
    report = wire.NumberedReport(1, wire.GpusSeen([rich]))
    await instance.controller.reports.reported(liar.node_id, [report])
    await instance.settled()
    assert instance.core.view.node(liar.node_id).state == REMOVED
    assert "GPU-of-liar" not in instance.core.view.devices
    # The same machine is invited anew, and has its GPU.
    again = await join(instance, "again")
    await say(instance, again, wire.GpusSeen([rich]))
    assert instance.core.view.devices["GPU-of-liar"].node_id == again.node_id


async def test_people_see_that_a_node_claims_the_gpus_of_another(
    instance: Controlled,
):
    """Such as a machine that was invited again, and not removed before."""
    first = await join(instance, "first", gpus=1)
    second = await join(instance, "second")
    await instance.provider.leave(first.node_id)
    claimed = wire.Hello(second.node_id, "second", "boot", 4, 16.0, gpus=first.gpus)
    await instance.controller.reports.node_joined("fake", claimed)
    reason = instance.core.view.node(second.node_id).reason
    assert reason is not None
    assert f"gpuyard nodes remove {first.node_id}" in reason
    await instance.controller.joined_nodes.remove(first.node_id)
    await instance.controller.reports.node_joined("fake", claimed)
    assert instance.core.view.node(second.node_id).reason is None


async def test_a_machine_that_has_joined_has_a_certificate(
    instance: Controlled, liar: FakeHost
):
    """So nobody who has only the token of the instance comes in as it."""
    reports = instance.controller.reports
    assert reports.has_certificate(liar.node_id)
    assert not reports.has_certificate("node_1")
    await instance.restart()
    assert instance.controller.reports.has_certificate(liar.node_id)


@pytest.mark.parametrize(
    ("cpus", "memory_gb", "shown"),
    [(2**50, 16.0, (MOST_CPUS, 16.0)), (4, 1e9, (4, MOST_MEMORY_GB))],
)
async def test_no_node_has_more_than_a_machine_can_have(
    instance: Controlled,
    liar: FakeHost,
    cpus: int,
    memory_gb: float,
    shown: tuple[int, float],
):
    huge = wire.Hello(liar.node_id, "liar", "boot", cpus, memory_gb)
    await instance.controller.reports.node_joined("fake", huge)
    node = instance.core.view.node(liar.node_id)
    assert (node.cpus, node.memory_gb) == shown
    assert "no machine has so much" in (node.reason or "")
    # The agent's whole text is kept where nothing is wrong.
    honest = wire.Hello(liar.node_id, "liar", "boot", 4, 16.0, problem="no nvidia-smi")
    await instance.controller.reports.node_joined("fake", honest)
    assert instance.core.view.node(liar.node_id).reason == "no nvidia-smi"


async def test_the_names_of_a_nodes_gpus_control_no_terminal(
    instance: Controlled, liar: FakeHost
):
    gpu = wire.GpuStatus("GPU-of-liar", 0, "T4\x1b[2J", 15360, problem="hot\n\x07")
    fields = {"gpus": [gpu], "problem": "no driver\x1b[31m"}
    hello = wire.Hello(liar.node_id, "liar", "boot", 4, 16.0, **fields)
    await instance.controller.reports.node_joined("fake", hello)
    device = instance.core.view.devices["GPU-of-liar"]
    assert (device.name, device.problem) == ("T4[2J", "hot")
    assert instance.core.view.node(liar.node_id).reason == "no driver[31m"


async def test_a_node_whose_clock_is_wrong_does_not_shift_its_jobs(
    instance: Controlled, liar: FakeHost
):
    await instance.controller.joined_nodes.cordon("node_1", cordoned=True)
    job_id = await instance.submit()
    bait = await instance.begun(job_id)
    before = time.time() - 1
    for body in (
        wire.Started(bait, 5e9, 1),
        wire.Ended(bait, 6e9, 5e9, exit_code=0, ran_s=1e9),
    ):
        await say(instance, liar, body)
    await instance.until(job_id)
    ended = instance.attempts(job_id)[0]
    assert before <= ended["started_at"] <= ended["ended_at"] <= time.time() + 1
    assert ended["ran_s"] <= 3700


async def test_a_report_that_the_server_stumbles_over_costs_no_other(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await instance.submit()
    await instance.begun(job_id)

    def stumble(*_: object) -> None:
        raise OverflowError("a fault of ours")

    monkeypatch.setattr(instance.controller.reports, "_used", stumble)
    await instance.on_host(
        job_id,
        lambda host, i: (
            host.say(wire.UsageSeen(i, [])),
            host.say(wire.ProgressSeen(i, {"step": 7})),
        ),
    )
    assert instance.core.progress[job_id] == {"step": 7}
    await instance.finish(job_id)
    await instance.until(job_id)
