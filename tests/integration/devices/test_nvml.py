"""Reading GPUs through the real nvidia-ml-py, from a fake NVML library that changes
while the process lives.
"""

import pytest

from gpuyard.devices.discovery import Discovery
from gpuyard.devices.gpu import GpuProcess, GpuReading, LostGpu
from tests.support.nvml import FakeGpus
from tests.support.nvml.probe import Probe

FIRST = "GPU-11111111"
SECOND = "GPU-22222222"
THIRD = "GPU-33333333"
FUNCTION_NOT_FOUND = 13
UNKNOWN = 999


@pytest.fixture
def two_gpus(fake_gpus: FakeGpus) -> FakeGpus:
    fake_gpus.add(FIRST)
    fake_gpus.add(SECOND)
    return fake_gpus


def uuids(found: Discovery) -> list[str]:
    return [gpu.uuid for gpu in found.gpus]


def test_two_gpus_are_read_exactly(fake_gpus: FakeGpus, probe: Probe) -> None:
    fake_gpus.add(
        FIRST,
        "NVIDIA H100 80GB HBM3",
        81559,
        memory_used_mb=1559,
        cc="9.0",
        temperature=61,
    )
    # Its power limit, and besides that what the program has set.
    fake_gpus.set(FIRST, utilization=87, power_w=412.5, slowed_by=0x4 | 0x80)
    fake_gpus.run(FIRST, 4242, 1500)
    fake_gpus.run(FIRST, 4243)
    fake_gpus.add(
        SECOND,
        "Tesla K80",
        11441,
        cc=None,
        temperature=None,
        utilization=None,
        power_w=None,
    )

    assert probe.discover() == Discovery(
        gpus=(
            GpuReading(
                uuid=FIRST,
                index=0,
                name="NVIDIA H100 80GB HBM3",
                memory_total_mb=81559,
                memory_free_mb=80000,
                compute_capability="9.0",
                driver_version="550.54.14",
                temperature_c=61,
                utilization=0.87,
                power_w=412.5,
                processes=(GpuProcess(4242, 1500), GpuProcess(4243, None)),
                mig=False,
                ecc_uncorrected=0,
                minor=0,
                power_limited=True,
                hardware_slowed=True,
            ),
            GpuReading(
                uuid=SECOND,
                index=1,
                name="Tesla K80",
                memory_total_mb=11441,
                memory_free_mb=11441,
                compute_capability="",
                driver_version="550.54.14",
                temperature_c=None,
                utilization=None,
                power_w=None,
                processes=(),
                mig=False,
                ecc_uncorrected=0,
                minor=1,
            ),
        ),
        lost=(),
        source="nvml",
        problem=None,
    )


@pytest.mark.parametrize(("at", "uuid"), [("handle", None), ("reads", FIRST)])
def test_a_gpu_lost_while_running_leaves_the_other_readable(
    two_gpus: FakeGpus, probe: Probe, at: str, uuid: str | None
) -> None:
    assert uuids(probe.discover()) == [FIRST, SECOND]

    two_gpus.lose(FIRST, at)
    found = probe.discover()
    assert uuids(found) == [SECOND]
    assert found.lost == (LostGpu(uuid, 0, "GPU is lost"),)
    assert (found.source, found.problem) == ("nvml", None)

    two_gpus.set(FIRST, lost=None)
    assert uuids(probe.discover()) == [FIRST, SECOND]


def test_any_error_of_one_gpu_is_told_and_the_other_read(
    two_gpus: FakeGpus, probe: Probe
) -> None:
    two_gpus.fail("nvmlDeviceGetTemperature", UNKNOWN, SECOND)
    found = probe.discover()
    assert uuids(found) == [FIRST]
    assert found.lost == (LostGpu(SECOND, 1, "Unknown Error"),)


def test_gpus_added_and_removed_while_running_show_up(
    two_gpus: FakeGpus, probe: Probe
) -> None:
    assert uuids(probe.discover()) == [FIRST, SECOND]
    two_gpus.add(THIRD)
    assert uuids(probe.discover()) == [FIRST, SECOND, THIRD]
    two_gpus.remove(FIRST)
    found = probe.discover()
    assert [(gpu.uuid, gpu.index) for gpu in found.gpus] == [(SECOND, 0), (THIRD, 1)]
    assert found.lost == ()


def test_the_last_gpu_may_go_and_come_back(fake_gpus: FakeGpus, probe: Probe) -> None:
    assert probe.discover() == Discovery((), (), "nvml", None)
    fake_gpus.add(FIRST)
    assert uuids(probe.discover()) == [FIRST]
    fake_gpus.remove(FIRST)
    assert probe.discover() == Discovery((), (), "nvml", None)


def test_changed_values_are_read_afresh(two_gpus: FakeGpus, probe: Probe) -> None:
    probe.discover()
    two_gpus.set(SECOND, temperature=93, memory_used_mb=40000)
    _, second = probe.discover().gpus
    assert (second.temperature_c, second.memory_free_mb) == (93, 960)


def test_nothing_stays_open_between_calls(two_gpus: FakeGpus, probe: Probe) -> None:
    first = probe.look()
    two_gpus.lose(FIRST)
    looks = [probe.look() for _ in range(20)]
    assert {look.open_files for look in looks} == {first.open_files}
    assert not any(look.nvml_left_open for look in [first, *looks])


def test_mig_instances_stand_in_for_their_gpu(two_gpus: FakeGpus, probe: Probe) -> None:
    two_gpus.set(FIRST, temperature=50)
    two_gpus.add_mig(FIRST, "MIG-aaaa", memory_mb=4864)
    two_gpus.add_mig(FIRST, "MIG-bbbb", memory_mb=9856)
    two_gpus.run("MIG-bbbb", 77, 100)

    found = probe.discover()
    assert [
        (gpu.uuid, gpu.index, gpu.mig, gpu.memory_total_mb) for gpu in found.gpus
    ] == [
        ("MIG-aaaa", 0, True, 4864),
        ("MIG-bbbb", 0, True, 9856),
        (SECOND, 1, False, 40960),
    ]
    instance = found.gpus[1]
    assert (instance.temperature_c, instance.compute_capability) == (50, "8.0")
    assert (instance.utilization, instance.power_w) == (None, None)
    assert instance.processes == (GpuProcess(77, 100),)
    numbers = (instance.minor, instance.instance, instance.compute_instance)
    assert numbers == (0, 2, 0)


def test_mig_mode_without_instances_says_what_to_do(
    two_gpus: FakeGpus, probe: Probe
) -> None:
    two_gpus.set(FIRST, mig_mode=1)
    found = probe.discover()
    assert uuids(found) == [SECOND]
    (lost,) = found.lost
    assert lost.uuid == FIRST
    assert "nvidia-smi mig -cgi" in lost.reason


def test_a_driver_older_than_mig_is_read(two_gpus: FakeGpus, probe: Probe) -> None:
    two_gpus.fail("nvmlDeviceGetMigMode", FUNCTION_NOT_FOUND)
    assert uuids(probe.discover()) == [FIRST, SECOND]
