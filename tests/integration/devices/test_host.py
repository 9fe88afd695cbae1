"""Reading the host: the real one, and the limits of control groups laid out as the
kernel lays them out.
"""

import os
import shutil
from pathlib import Path

import psutil
import pytest

from gpuyard.devices.host import read_host, read_usage

MIB = 1 << 20
CPUS = len(os.sched_getaffinity(0))
V1_UNLIMITED = "9223372036854771712"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system's root with what every host has."""
    write(
        tmp_path / "proc/sys/kernel/random/boot_id",
        "11111111-2222-3333-4444-555555555555\n",
    )
    write(tmp_path / "etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_this_host() -> None:
    host = read_host()
    assert host.hostname == os.uname().nodename
    assert host.kernel == os.uname().release
    assert 1 <= host.cpus <= CPUS
    assert 0 < host.memory_mb <= psutil.virtual_memory().total // MIB
    assert host.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert read_host() == host


def test_use_of_this_host(tmp_path: Path) -> None:
    read_usage(tmp_path)
    usage = read_usage(tmp_path)
    assert 0 <= usage.cpu_percent <= 100
    assert 0 < usage.memory_used_mb <= read_host().memory_mb
    assert 0 < usage.disk_free_mb <= shutil.disk_usage(tmp_path).total // MIB


def test_the_space_of_a_path_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        read_usage(Path("/nonexistent/path"))


def test_affinity_is_heeded(root: Path) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert read_host(root).cpus == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_without_control_groups_all_is_usable(root: Path) -> None:
    host = read_host(root)
    assert host.cpus == CPUS
    assert host.memory_mb == psutil.virtual_memory().total // MIB
    assert host.boot_id == "11111111-2222-3333-4444-555555555555"
    assert host.machine_id == "0123456789abcdef0123456789abcdef"


def test_version_2_limits(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/job\n")
    write(root / "sys/fs/cgroup/job/cpu.max", "150000 100000\n")
    write(root / "sys/fs/cgroup/job/memory.max", f"{64 * MIB}\n")
    write(root / "sys/fs/cgroup/job/memory.current", f"{48 * MIB}\n")
    write(
        root / "sys/fs/cgroup/job/memory.stat",
        f"anon {20 * MIB}\ninactive_file {16 * MIB}\n",
    )
    host = read_host(root)
    assert (host.cpus, host.memory_mb) == (1, 64)
    assert read_usage(root, root).memory_used_mb == 32


def test_version_1_limits(root: Path) -> None:
    write(root / "proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n")
    write(root / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n")
    write(root / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    write(root / "sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{64 * MIB}\n")
    write(root / "sys/fs/cgroup/memory/job/memory.usage_in_bytes", f"{48 * MIB}\n")
    write(
        root / "sys/fs/cgroup/memory/job/memory.stat",
        f"inactive_file {MIB}\ntotal_inactive_file {8 * MIB}\n",
    )
    host = read_host(root)
    assert (host.cpus, host.memory_mb) == (1, 64), "half a processor is still one"
    assert read_usage(root, root).memory_used_mb == 40


@pytest.mark.parametrize("quota", ["max 100000", "", "garbage", "100000000 100000"])
def test_no_version_2_limit(root: Path, quota: str) -> None:
    write(root / "proc/self/cgroup", "0::/\n")
    write(root / "sys/fs/cgroup/cpu.max", quota)
    write(root / "sys/fs/cgroup/memory.max", "max\n")
    write(root / "sys/fs/cgroup/memory.current", f"{MIB}\n")
    host = read_host(root)
    assert (host.cpus, host.memory_mb) == (CPUS, psutil.virtual_memory().total // MIB)
    assert read_usage(root, root).memory_used_mb > 1, (
        "an unlimited group says nothing of the host's use"
    )


def test_no_version_1_limit(root: Path) -> None:
    write(root / "proc/self/cgroup", "4:memory:/\n1:cpu:/\n")
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{V1_UNLIMITED}\n")
    write(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{MIB}\n")
    host = read_host(root)
    assert (host.cpus, host.memory_mb) == (CPUS, psutil.virtual_memory().total // MIB)
    assert read_usage(root, root).memory_used_mb > 1


def test_the_tightest_limit_on_the_way_up_counts(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/slice/service/job\n")
    for group, memory in {
        "slice": 512,
        "slice/service": 64,
        "slice/service/job": 256,
    }.items():
        write(root / f"sys/fs/cgroup/{group}/memory.max", f"{memory * MIB}\n")
        write(root / f"sys/fs/cgroup/{group}/memory.current", f"{memory // 2 * MIB}\n")
    assert read_host(root).memory_mb == 64
    assert read_usage(root, root).memory_used_mb == 32


def test_a_container_sees_only_its_own_part_of_the_tree(root: Path) -> None:
    write(root / "proc/self/cgroup", "4:memory:/docker/0123abcd\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{64 * MIB}\n")
    write(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{MIB}\n")
    assert read_host(root).memory_mb == 64


def test_machine_id_falls_back_and_may_be_missing(root: Path) -> None:
    (root / "etc/machine-id").write_text("\n")
    assert read_host(root).machine_id == ""
    write(root / "var/lib/dbus/machine-id", "fedcba98\n")
    assert read_host(root).machine_id == "fedcba98"
