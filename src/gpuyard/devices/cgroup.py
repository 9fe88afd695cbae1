"""What control groups (versions 1 and 2) leave this process of the host's processors and memory.

The limit that counts is the tightest one on the way from the process's own group up to the root. Inside a container
the path in /proc may be the host's while only the container's own part is mounted: so a group that is not there is
passed over, and the mount's root always looked at.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes that the limited group may use and uses; `used` leaves out file cache that can be dropped."""

    limit: int
    used: int


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Processors' worth of time granted per second of wall clock; None without a quota. `root` is the file system's."""
    quotas: list[float] = []
    for group in _groups(root, "cpu"):
        unified = _read(group / "cpu.max")  # "150000 100000" or "max 100000"
        quota, _, period = unified.partition(" ")
        if not unified:
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # no quota is "max" in version 2, "-1" in version 1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The tightest memory limit and its group's use; None without one. `root` is the file system's."""
    limits: list[MemoryLimit] = []
    for group in _groups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():  # no limit is "max" in version 2, a number past any memory in version 1
            limits.append(MemoryLimit(int(limit), max(0, int(used) - _droppable(group))))
    return min(limits, key=lambda found: found.limit, default=None)


def _droppable(group: Path) -> int:
    """Bytes of file cache not used lately. Version 1 has the whole subtree's under its own name."""
    stat = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's groups for `controller`, from its own up to the mount's root."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / (controller if controllers else "")
            own = mount / path.lstrip("/")
            yield from (own, *(parent for parent in own.parents if parent.is_relative_to(mount)))


def _read(file: Path) -> str:
    """The file's text, "" where there is none or it may not be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
