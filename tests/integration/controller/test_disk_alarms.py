"""A disk that fills up: who is told, and when; and what is refused when it is full."""

from typing import Any

import pytest

from gpuyard.config.paths import Home
from gpuyard.domain import wire
from gpuyard.domain.errors import DiskFullError
from gpuyard.domain.wire_types import DiskUser
from gpuyard.ledger.reserve import Reserve
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio
GIB = 1 << 30


async def running(instance: Controlled, name: str) -> tuple[str, str]:
    """A job that runs, and its attempt."""
    job_id = await instance.submit(name=name)
    await instance.until(job_id, "running")
    return job_id, await instance.begun(job_id)


async def told(instance: Controlled, free: int, *users: DiskUser) -> None:
    """The node has looked at its disk of 100 GB."""
    folder = str(instance.folder)
    disk = wire.DiskStatus(folder, 100 * GIB, free * GIB, list(users))
    instance.host.say(wire.GpusSeen([], None, disk))
    await instance.provider.deliver("node_1")
    await instance.settled()


def alarms(instance: Controlled) -> list[dict[str, Any]]:
    journal = instance.ledger.queries.events_after(0, 1000)
    return [row for row in journal if row["kind"] == "disk.filling"]


async def test_the_job_that_takes_most_is_named_once_before_the_disk_is_full(
    instance: Controlled,
) -> None:
    job_id, attempt_id = await running(instance, "train")
    user = DiskUser(attempt_id, 60 * GIB, 2 * GIB, GIB / 60)
    await told(instance, 11, user)
    assert (alarms(instance), instance.job(job_id)["warnings"]) == ([], [])
    assert instance.controller.disks.of("node_1")["problem"] is None

    for free in (9, 8):
        await told(instance, free, user)
    (alarm,) = alarms(instance)
    (warning,) = instance.job(job_id)["warnings"]
    assert alarm["job_id"] == job_id
    assert warning == alarm["info"]["problem"]
    assert f"the disk of {instance.folder} is 91% full, 9 GB free" in warning
    assert "it takes 60 GB, of which its log has 2 GB, and 60 GB more" in warning
    assert "full in 9m" in warning
    problem = instance.controller.disks.of("node_1")["problem"]
    assert f"job train ({job_id}) takes most: 60 GB" in problem


async def test_another_job_is_named_too_and_a_disk_that_fills_again_again(
    instance: Controlled,
) -> None:
    first, first_attempt = await running(instance, "first")
    second, second_attempt = await running(instance, "second")
    await told(instance, 5, DiskUser(first_attempt, GIB))
    await told(instance, 5, DiskUser(second_attempt, 2 * GIB))
    await told(instance, 12, DiskUser(first_attempt, GIB))
    await told(instance, 6, DiskUser(first_attempt, GIB))
    assert [alarm["job_id"] for alarm in alarms(instance)] == [first, second]
    await told(instance, 50)
    await told(instance, 6, DiskUser(first_attempt, GIB))
    assert [alarm["job_id"] for alarm in alarms(instance)] == [first, second, first]


async def test_a_disk_that_no_job_fills_is_told_without_one(
    instance: Controlled,
) -> None:
    await told(instance, 3)
    (alarm,) = alarms(instance)
    assert alarm["job_id"] is None
    assert alarm["info"]["problem"].endswith("is 97% full, 3 GB free")
    await instance.provider.leave("node_1")
    assert instance.controller.disks.of("node_1") is None
    await instance.provider.join("node_1")


async def test_while_the_reserve_is_spent_no_job_is_taken_and_the_largest_is_named(
    instance: Controlled,
) -> None:
    job_id, attempt_id = await running(instance, "train")
    early = await instance.submit(idempotency_key="early", held=True)
    await told(instance, 0, DiskUser(attempt_id, 90 * GIB))
    own_node = Home(instance.folder).node / "id"
    own_node.parent.mkdir(exist_ok=True)
    own_node.write_text("node_1")
    path = instance.folder / "reserve"
    path.write_bytes(b"whole")
    instance.ledger.reserve = Reserve(path, 64_000_000)
    instance.ledger.reserve.give_back(DiskFullError("The disk is full."))
    with pytest.raises(DiskFullError) as refused:
        await instance.submit()
    assert f"Most is taken by job train ({job_id}): 90 GB" in str(refused.value)
    assert f"gpuyard cancel {job_id}" in str(refused.value)
    # Whoever asks again for a job whose answer was lost gets that job.
    assert await instance.submit(idempotency_key="early", held=True) == early
    await instance.cancel(early)
    await instance.cancel(job_id)
    assert (await instance.until(job_id))["state"] == "cancelled"
    instance.ledger.reserve = None
    await instance.finish(await instance.submit())
