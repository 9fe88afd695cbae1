"""The Linux host of the GPUs: what this process may use of it, its identity, and how
busy it is.
"""

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

    `cpus`: whole processors that this process may use (affinity and control group
    quota, rounded down, at least 1). `memory_mb`: MiB of RAM, or of the control group's
    limit if that is less. `boot_id`: new at each boot (kernel). `machine_id`: the
    installation's (machine-id(5)); "" if there is none, and the same on machines cloned
    from one image.
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
    """How busy the host is: CPU use of all processors from 0 to 100, MiB of memory in
    use, MiB free on a disk.
    """

    cpu_percent: float
    memory_used_mb: int
    disk_free_mb: int


def read_host(root: Path = Path("/")) -> HostReading:
    """Read the host below the file system's `root`.

    Raises OSError where /proc is missing.
    """
    affinity = len(os.sched_getaffinity(0))
    quota = cgroup.cpu_limit(root)
    limit = cgroup.memory_limit(root)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpus = affinity
    if quota is not None:
        cpus = max(1, min(affinity, int(quota)))
    if limit is not None:
        memory = min(memory, limit.limit)
    return HostReading(
        hostname=platform.node(),
        cpus=cpus,
        memory_mb=memory // _MIB,
        boot_id=(root / "proc/sys/kernel/random/boot_id").read_text().strip(),
        machine_id=_machine_id(root),
        kernel=platform.release(),
        python=platform.python_version(),
    )


def read_usage(path: Path, root: Path = Path("/")) -> HostUsage:
    """Read the present use of the host, and the space that an ordinary user may still
    write at `path`.

    CPU use is the mean since the last call on the same thread (0.0 at its first one).
    Memory is that of the limited control group if its limit is below the host's memory.
    Raises OSError if `path` does not exist.
    """
    import psutil  # late: 10 ms to import

    memory = psutil.virtual_memory()
    limit = cgroup.memory_limit(root)
    used = memory.used
    if limit and limit.limit < memory.total:
        used = limit.used
    return HostUsage(
        cpu_percent=psutil.cpu_percent(),
        memory_used_mb=used // _MIB,
        disk_free_mb=shutil.disk_usage(path).free // _MIB,
    )


def _machine_id(root: Path) -> str:
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
        file = root / name
        text = file.read_text().strip() if file.is_file() else ""
        if text:
            return text
    return ""
