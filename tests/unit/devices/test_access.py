"""Which device files a job may open, from what the driver tells about its GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.devices.access import DeviceNumber, DeviceRule, numbers_of, rules_for
from gpuyard.devices.gpu import GpuReading

GPU = GpuReading(
    "GPU-1", 0, "A100", 40960, 40960, "8.0", "550", 35, 0.0, 55.0, (), mig=False
)
OTHER = DeviceNumber(195, 1)
CAPS = 238


@pytest.fixture
def mig_host(tmp_path: Path) -> Path:
    """A host whose driver divides GPUs, as its files below /proc tell it."""
    proc = tmp_path / "proc"
    caps = proc / "driver/nvidia-caps"
    caps.mkdir(parents=True)
    (proc / "devices").write_text(
        f"Character devices:\n  1 mem\n195 nvidia\n{CAPS} nvidia-caps\n"
    )
    (caps / "mig-minors").write_text(
        "config 1\nmonitor 2\n"
        "gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi1/ci1/access 14\n"
        "gpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\n"
    )
    return tmp_path


def test_a_gpu_is_its_own_device_and_shares_those_of_the_driver(tmp_path: Path) -> None:
    own = numbers_of(replace(GPU, minor=3), tmp_path)
    assert own == {DeviceNumber(195, 3)}
    (rule,) = rules_for(own, [OTHER, *own], tmp_path)
    assert rule == DeviceRule(195, frozenset({3, 254, 255}), frozenset({1, 3}))
    assert rule.denied == [1]


def test_a_job_without_a_gpu_opens_none(tmp_path: Path) -> None:
    (rule,) = rules_for((), [OTHER], tmp_path)
    assert (rule.allowed, rule.denied) == ({254, 255}, [1])


def test_an_instance_has_the_rights_to_itself_only(mig_host: Path) -> None:
    instance = replace(GPU, mig=True, minor=0, instance=1, compute_instance=0)
    own = numbers_of(instance, mig_host)
    assert own == {
        DeviceNumber(195, 0),
        DeviceNumber(CAPS, 12),
        DeviceNumber(CAPS, 13),
    }
    gpus, rights = rules_for(own, own, mig_host)
    assert (gpus.major, gpus.allowed) == (195, {0, 254, 255})
    assert (rights.major, rights.allowed) == (CAPS, {12, 13})


def test_a_gpu_in_whole_has_no_rights_to_instances(mig_host: Path) -> None:
    _, rights = rules_for([OTHER], [OTHER], mig_host)
    assert (rights.major, rights.allowed) == (CAPS, set())


@pytest.mark.parametrize(
    "gpu",
    [
        GPU,
        replace(GPU, mig=True, minor=0, instance=7, compute_instance=0),
        replace(GPU, mig=True, minor=0, instance=1, compute_instance=None),
    ],
)
def test_what_the_driver_does_not_tell_is_unknown(
    mig_host: Path, gpu: GpuReading
) -> None:
    assert numbers_of(gpu, mig_host) is None


def test_cards_of_amd_are_nodes_of_drm(tmp_path: Path) -> None:
    own = numbers_of(replace(GPU, drm=(129, 1)), tmp_path)
    assert own
    others = [DeviceNumber(226, 128), DeviceNumber(226, 0)]
    _, drm = rules_for(own, others, tmp_path)
    assert (drm.major, drm.allowed, drm.denied) == (226, {1, 129}, [0, 128])
