"""What a rank's GPUs did, by a library that answers as NVIDIA's does."""

from pathlib import Path

import pytest

from gpuyard.studies.runtime.gpu_meter import GpuFigures, GpuMeter, gpus_of_rank
from tests.support.nvml import LIBRARY, STATE_VARIABLE, FakeGpus
from tests.support.nvml.fixtures import fake_gpus, nvml_library

__all__ = ["fake_gpus", "nvml_library"]


@pytest.mark.parametrize(
    ("visible", "local_rank", "has_all", "gpus"),
    [
        ("", 1, False, ["1"]),
        ("4, 6", 1, False, ["6"]),
        # Slurm may bind each task to one GPU.
        ("GPU-7", 1, False, ["GPU-7"]),
        ("4,6", 0, True, ["4", "6"]),
        ("", 0, True, []),
    ],
)
def test_which_gpus_a_rank_uses(
    visible: str, local_rank: int, has_all: bool, gpus: list[str]
) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus_of_rank(environment, local_rank, has_all=has_all) == gpus


def test_use_memory_and_energy(
    fake_gpus: FakeGpus,
    nvml_library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "gpus.txt"))
    library = str(nvml_library / LIBRARY if nvml_library.is_dir() else nvml_library)
    fake_gpus.add("GPU-a", utilization=90, memory_used_mb=10, energy_j=1000)
    fake_gpus.add("GPU-b", utilization=50, memory_used_mb=100, energy_j=7)
    both = GpuMeter(["0", "GPU-b"], library)
    one = GpuMeter(["0"], library)
    both.start()
    one.start()
    fake_gpus.set("GPU-a", energy_j=1030)
    fake_gpus.set("GPU-b", energy_j=12, memory_used_mb=300)
    found = both.stop()
    assert found.memory_bytes == 300 << 20
    assert found.energy_j == 35
    alone = one.stop()
    assert (alone.utilization, alone.energy_j) == (pytest.approx(0.9), 30)
    fake_gpus.set("GPU-a", energy_j=None, power_w=200)
    without_counter = GpuMeter(["0"], library)
    without_counter.start()
    energy_j = without_counter.stop().energy_j
    assert energy_j and energy_j > 0, "power over time"
    fake_gpus.set("GPU-a", power_w=None, utilization=None)
    silent = GpuMeter(["0"], library)
    silent.start()
    assert silent.stop() == GpuFigures(memory_bytes=10 << 20)


def test_without_nvml_nothing_is_known() -> None:
    for meter in (GpuMeter(["0"], "libno-such.so"), GpuMeter.of_nothing()):
        meter.start()
        assert meter.stop() == GpuFigures()
