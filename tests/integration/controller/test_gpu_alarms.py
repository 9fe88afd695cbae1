"""GPUs that are hot, nearly full or slowed down: who is told, and how often."""

from typing import Any

import pytest

from gpuyard.config.settings import Settings
from gpuyard.controller import gpu_alarms
from gpuyard.domain import wire
from tests.support.controlled import Controlled
from tests.support.fake_provider import FakeHost

pytestmark = pytest.mark.anyio
UUID = "GPU-node_1-0"


@pytest.fixture
async def instance(instance: Controlled) -> Controlled:
    """With a GPU on its node."""
    instance.hosts["node_1"] = FakeHost(gpu_count=1)
    await instance.restart()
    return instance


async def seen(instance: Controlled, **figures: Any) -> list[str]:
    """The node has read its GPU; what is wrong with it."""
    await read(instance, status(UUID, **figures))
    return instance.controller.gpu_alarms.of(UUID)


def status(uuid: str, **figures: Any) -> wire.GpuStatus:
    cool = {"free_mb": 15000, "temperature_c": 40}
    return wire.GpuStatus(uuid, 0, "Tesla T4", 15360, "7.5", **{**cool, **figures})


async def read(instance: Controlled, *gpus: wire.GpuStatus) -> None:
    instance.host.say(wire.GpusSeen(list(gpus)))
    await instance.provider.deliver("node_1")
    await instance.settled()


def told(instance: Controlled) -> list[dict[str, Any]]:
    journal = instance.ledger.queries.events_after(0, 1000)
    return [row for row in journal if row["kind"] == "gpu.warning"]


async def test_each_crossing_is_told_once_and_a_job_of_each_kind_once(
    instance: Controlled,
) -> None:
    job_id = await instance.submit(resources={"gpus": 1})
    await instance.until(job_id, "running")
    assert await seen(instance, temperature_c=74) == []
    for temperature_c in (75, 80, 70, 75):
        assert await seen(instance, temperature_c=temperature_c) == [
            f"{temperature_c} °C hot"
        ]
    (event,) = told(instance)
    assert (event["job_id"], event["info"]["jobs"]) == (job_id, [job_id])
    assert (event["info"]["about"], event["info"]["temperature_c"]) == (
        "temperature",
        75,
    )
    (warning,) = instance.job(job_id)["warnings"]
    assert warning.startswith("its GPU 0 has become 75 °C hot")

    assert await seen(instance, temperature_c=69) == []
    assert await seen(instance, temperature_c=76) == ["76 °C hot"]
    assert len(told(instance)) == 2
    assert instance.job(job_id)["warnings"] == [warning]


async def test_a_gpu_without_a_job_is_told_of_and_one_that_is_not_read_keeps_quiet(
    instance: Controlled,
) -> None:
    assert await seen(instance, free_mb=0) == []  # not reported
    assert await seen(instance, free_mb=768, temperature_c=90) == [
        "90 °C hot",
        "its memory is 95% full",
    ]
    assert {event["info"]["about"] for event in told(instance)} == {
        "temperature",
        "memory",
    }
    assert [event["job_id"] for event in told(instance)] == [None, None]
    await seen(instance, state="offline")
    await instance.provider.leave("node_1")
    assert instance.controller.gpu_alarms.of(UUID) == []
    await instance.provider.join("node_1")
    assert len(await seen(instance, free_mb=1000)) == 1, "93%: not clearly less"
    assert len(told(instance)) == 2


async def test_what_stands_is_not_told_again_after_a_restart(
    instance: Controlled,
) -> None:
    assert await seen(instance, temperature_c=80) == ["80 °C hot"]
    await instance.restart()
    assert await seen(instance, temperature_c=72) == ["72 °C hot"], "not clearly less"
    assert len(told(instance)) == 1

    assert await seen(instance, temperature_c=60) == []
    await instance.core.committed()
    await instance.restart()
    assert await seen(instance, temperature_c=80) == ["80 °C hot"]
    assert len(told(instance)) == 2


async def test_a_hot_gpu_in_parts_is_told_of_once(instance: Controlled) -> None:
    """Each MIG instance has the index and the heat of its GPU, and its own memory."""
    parts = ["MIG-a", "MIG-b", "MIG-c"]
    await read(instance, *(status(part, temperature_c=80) for part in parts[:2]))
    await read(instance, *(status(part, temperature_c=72) for part in parts))
    alarms = instance.controller.gpu_alarms
    assert [alarms.of(part) for part in parts] == [["72 °C hot"]] * 3
    (event,) = told(instance)
    assert event["info"]["gpu"] == "MIG-a"
    await read(instance, *(status(part, free_mb=100) for part in parts[1:]))
    full = [event["info"]["gpu"] for event in told(instance)[1:]]
    assert full == ["MIG-b", "MIG-c"]


async def test_one_that_has_nothing_free_stays_full(instance: Controlled) -> None:
    assert await seen(instance, free_mb=100) == ["its memory is 99% full"]
    assert await seen(instance, free_mb=0) == ["its memory is 100% full"]
    assert await seen(instance, free_mb=100) == ["its memory is 99% full"]
    assert len(told(instance)) == 1


async def test_nothing_is_said_of_one_that_cannot_be_read_or_has_gone(
    instance: Controlled,
) -> None:
    assert await seen(instance, temperature_c=80) == ["80 °C hot"]
    assert await seen(instance, temperature_c=80, state="offline") == []
    assert await seen(instance, temperature_c=80) == ["80 °C hot"]
    instance.host.say(wire.GpusSeen([]))
    await instance.provider.deliver("node_1")
    await instance.settled()
    assert instance.controller.gpu_alarms.of(UUID) == []
    assert len(told(instance)) == 1


@pytest.mark.parametrize(
    ("what", "by"),
    [("hardware_slowed", "hardware"), ("power_limited", "power limit")],
)
async def test_only_a_slow_gpu_that_stays_so_is_told(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch, what: str, by: str
) -> None:
    await instance.crash()
    instance.settings = Settings(gpus={"warn_power_limit": what == "power_limited"})
    await instance.start()
    slow = [f"slowed down by its {by}"]
    now = 1000.0
    monkeypatch.setattr(gpu_alarms.time, "monotonic", lambda: now)
    said: list[list[str]] = []
    for at, limited in [(0, True), (30, False), (40, True), (99, True), (100, True)]:
        now = 1000.0 + at
        said.append(await seen(instance, **{what: limited}))
    assert said == [[], [], [], [], slow]
    (event,) = told(instance)
    assert f"has been slowed down by its {by} for 1m" in event["info"]["problem"]
    now += 10
    assert len(await seen(instance, **{what: False})) == 1
    now += 60
    assert await seen(instance, **{what: False}) == []
    assert len(told(instance)) == 1


async def test_a_gpu_at_its_power_limit_is_as_it_should_be(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(gpu_alarms.time, "monotonic", lambda: now)
    assert await seen(instance, power_limited=True) == []
    now += 3600
    assert await seen(instance, power_limited=True) == []
    assert told(instance) == []


async def test_limits_of_0_are_none(instance: Controlled) -> None:
    await instance.crash()
    never = {"warn_temperature_c": 0, "warn_memory_percent": 0, "warn_power_s": 0}
    instance.settings = Settings(gpus=never)
    await instance.start()
    bad = {"temperature_c": 99, "free_mb": 1, "hardware_slowed": True}
    assert await seen(instance, **bad) == []
