"""Which source is asked, and what is said when none of them answers."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.devices.discovery import Discovery
from gpuyard.devices.gpu import LostGpu
from tests.support.nvml import FakeGpus, write_script, write_smi
from tests.support.nvml.probe import Probe
from tests.support.wait import wait_until

FIRST = "GPU-11111111"
SECOND = "GPU-22222222"
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
VERSION_MISMATCH = 18


@pytest.fixture
def two_gpus(fake_gpus: FakeGpus) -> FakeGpus:
    fake_gpus.add(FIRST, memory_used_mb=960, utilization=25, power_w=61.25)
    fake_gpus.add(SECOND, "NVIDIA GeForce RTX 3090", 24576, cc="8.6", power_w=None)
    return fake_gpus


def test_a_host_without_gpus_is_no_problem(probe_without_nvml: Probe) -> None:
    assert probe_without_nvml.discover() == Discovery((), (), "none", None)


def test_without_the_library_nvidia_smi_tells_the_same_but_for_health(
    two_gpus: FakeGpus, probe_without_nvml: Probe, probe: Probe, bin_dir: Path
) -> None:
    write_smi(bin_dir)
    found = probe_without_nvml.discover()
    told = tuple(
        replace(gpu, ecc_uncorrected=None, minor=None) for gpu in probe.discover().gpus
    )
    assert found == Discovery(told, (), "nvidia-smi", None)
    assert [gpu.uuid for gpu in found.gpus] == [FIRST, SECOND]


def test_nvidia_smi_steps_in_when_nvml_fails_while_running(
    two_gpus: FakeGpus, probe: Probe, bin_dir: Path
) -> None:
    write_smi(bin_dir)
    assert probe.discover().source == "nvml"
    two_gpus.fail("nvmlInitWithFlags", VERSION_MISMATCH)
    found = probe.discover()
    assert (found.source, found.problem, len(found.gpus)) == ("nvidia-smi", None, 2)
    two_gpus.fail("nvmlInitWithFlags", 0)
    assert probe.discover().source == "nvml"


@pytest.mark.parametrize("at", ["handle", "reads"])
def test_nvidia_smi_shows_a_lost_gpu_and_the_others(
    two_gpus: FakeGpus, probe_without_nvml: Probe, bin_dir: Path, at: str
) -> None:
    write_smi(bin_dir)
    two_gpus.lose(FIRST, at)
    found = probe_without_nvml.discover()
    assert [gpu.uuid for gpu in found.gpus] == [SECOND]
    (lost,) = found.lost
    assert lost.uuid == (FIRST if at == "reads" else None)
    assert "GPU is lost" in lost.reason


def test_nvidia_smi_may_find_no_gpu(probe_without_nvml: Probe, bin_dir: Path) -> None:
    write_smi(bin_dir)
    assert probe_without_nvml.discover() == Discovery((), (), "nvidia-smi", None)


@pytest.mark.parametrize(
    ("function", "code", "remedy"),
    [
        ("nvmlInitWithFlags", VERSION_MISMATCH, "reboot"),
        ("nvmlInitWithFlags", DRIVER_NOT_LOADED, "modprobe nvidia"),
        ("nvmlInitWithFlags", NO_PERMISSION, "/dev/nvidia"),
        ("nvmlDeviceGetCount_v2", 999, "dmesg"),
    ],
)
def test_nvml_failing_alone_says_what_to_do(
    two_gpus: FakeGpus, probe: Probe, function: str, code: int, remedy: str
) -> None:
    two_gpus.fail(function, code)
    look = probe.look()
    found = look.discovery
    assert (found.gpus, found.lost, found.source) == ((), (), "none")
    assert found.problem is not None
    assert found.problem.startswith("NVML fails: ")
    assert remedy in found.problem
    assert not look.nvml_left_open


def test_both_sources_failing_says_both(
    two_gpus: FakeGpus, probe: Probe, bin_dir: Path
) -> None:
    two_gpus.fail("nvmlInitWithFlags", VERSION_MISMATCH)
    write_script(
        bin_dir,
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
    )
    found = probe.discover()
    assert found.source == "none"
    assert found.problem is not None
    assert "NVML fails: " in found.problem
    assert "nvidia-smi printed 'Failed to initialize NVML" in found.problem


def test_a_hanging_nvidia_smi_is_killed_with_its_children(
    probe_without_nvml: Probe, bin_dir: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    write_script(bin_dir, f"/bin/sleep 600 &\necho $$ $! >{pids}\nwait")
    look = probe_without_nvml.look(smi_timeout_s=3)
    found = look.discovery
    assert (found.gpus, found.source) == ((), "none")
    assert found.problem is not None
    assert "gave no answer in 3 s" in found.problem
    for pid in pids.read_text().split():
        wait_until(lambda pid=pid: ended(pid), what=f"process {pid} to end")
    assert probe_without_nvml.look(smi_timeout_s=0.1).open_files == look.open_files


def ended(pid: str) -> bool:
    """Whether the process is gone, or dead and not yet reaped by an init that may not
    care.
    """
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        )
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "echo '<html>502 Bad Gateway</html>'",
            "printed '<html>502 Bad Gateway</html>'",
        ),
        ("printf '\\377\\376\\000binary'", "printed"),
        ("exit 1", "printed nothing"),
        ("echo 'GPU-1, 0, only three'", "printed 'GPU-1, 0, only three'"),
    ],
)
def test_garbage_from_nvidia_smi_is_a_clear_problem(
    probe_without_nvml: Probe, bin_dir: Path, body: str, said: str
) -> None:
    write_script(bin_dir, body)
    found = probe_without_nvml.discover()
    assert (found.gpus, found.lost, found.source) == ((), (), "none")
    assert found.problem is not None
    assert said in found.problem
    assert "dmesg" in found.problem


def test_an_nvidia_smi_that_cannot_start_is_a_clear_problem(
    probe_without_nvml: Probe, bin_dir: Path
) -> None:
    write_script(bin_dir, "", interpreter="/nonexistent/interpreter")
    found = probe_without_nvml.discover()
    assert found.source == "none"
    assert found.problem is not None
    assert "cannot be started" in found.problem


def test_only_a_lost_gpu_on_the_host(
    fake_gpus: FakeGpus, probe_without_nvml: Probe, bin_dir: Path
) -> None:
    write_script(
        bin_dir,
        "echo 'Unable to determine the device handle for GPU0000:01:00.0: Unknown"
        " Error'; exit 255",
    )
    assert probe_without_nvml.discover() == Discovery(
        (),
        (
            LostGpu(
                None,
                None,
                "Unable to determine the device handle for GPU0000:01:00.0: Unknown"
                " Error",
            ),
        ),
        "nvidia-smi",
        None,
    )
