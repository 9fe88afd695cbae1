"""The Linux host around the GPUs: what this process may use of it, who it is, and how busy it is."""

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from gpuyard.devices import cgroup

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class HostReading:
    """What does not change until a reboot.

    `cpus`: whole processors this process may use (affinity and control group quota, rounded down, at least 1).
    `memory_mb`: MiB of RAM, or of the control group's limit if that is less.
    `boot_id`: new at each boot (kernel). `machine_id`: of the installation (machine-id(5)); "" where there is none,
    and the same on machines cloned from one image.
    """

    hostname: str
    cpus: int
    memory_mb: int
    boot_id: str
    machine_id: str
    kernel: str
    python: str


@dataclass(frozen=True, slots=True)
class HostUsage:
    """How busy the host is: CPU use from 0 to 100 of all processors, MiB of memory in use, MiB free on a disk."""

    cpu_percent: float
    memory_used_mb: int
    disk_free_mb: int


def read_host(root: Path = Path("/")) -> HostReading:
    """Read the host below the file system's `root`. Raises OSError where /proc is missing."""
    affinity = len(os.sched_getaffinity(0))
    quota = cgroup.cpu_limit(root)
    limit = cgroup.memory_limit(root)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return HostReading(
        hostname=platform.node(),
        cpus=affinity if quota is None else max(1, min(affinity, int(quota))),
        memory_mb=(memory if limit is None else min(memory, limit.limit)) // _MIB,
        boot_id=(root / "proc/sys/kernel/random/boot_id").read_text().strip(),
        machine_id=_machine_id(root),
        kernel=platform.release(),
        python=platform.python_version(),
    )


def read_usage(path: Path, root: Path = Path("/")) -> HostUsage:
    """Read the use of the host now, and the space an ordinary user may still write at `path`.

    CPU use is the mean since the last call on the same thread (0.0 at its first one). Memory is that of the limited
    control group if one is tighter than the host. Raises OSError where `path` does not exist.
    """
    import psutil  # late: 10 ms to import

    memory = psutil.virtual_memory()
    limit = cgroup.memory_limit(root)
    return HostUsage(
        cpu_percent=psutil.cpu_percent(),
        memory_used_mb=(limit.used if limit and limit.limit < memory.total else memory.used) // _MIB,
        disk_free_mb=shutil.disk_usage(path).free // _MIB,
    )


def _machine_id(root: Path) -> str:
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
        file = root / name
        if file.is_file() and (text := file.read_text().strip()):
            return text
    return ""
