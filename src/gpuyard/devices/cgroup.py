"""What control groups (versions 1 and 2) allow this process of the host's processors
and memory.

The tightest limit between the process's own group and the root counts. Inside a
container the path in /proc may be the host's, while only the container's own part is
mounted. So a group that does not exist is skipped, and the mount's root is always read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The limit and the use of a group in bytes; `used` leaves out file cache that can
    be dropped.
    """

    limit: int
    used: int


def cpu_limit(root: Path = Path("/")) -> float | None:
    """The processors' worth of time that this process may use; None without a quota.

    `root` is the file system's root.
    """
    quotas: list[float] = []
    for group in _groups(root, "cpu"):
        unified = _read(group / "cpu.max")  # "150000 100000" or "max 100000"
        quota, _, period = unified.partition(" ")
        if not unified:
            quota = _read(group / "cpu.cfs_quota_us")
            period = _read(group / "cpu.cfs_period_us")
        # No quota is "max" in version 2, "-1" in version 1.
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The tightest memory limit and its group's use; None without a limit.

    `root` is the file system's root.
    """
    limits: list[MemoryLimit] = []
    for group in _groups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        # No limit is "max" in version 2, a number past any memory in version 1.
        if limit.isdigit() and used.isdigit():
            in_use = max(0, int(used) - _droppable(group))
            limits.append(MemoryLimit(int(limit), in_use))
    return min(limits, key=lambda found: found.limit, default=None)


def _droppable(group: Path) -> int:
    """The bytes of file cache that were not used lately.

    Version 1 reports those of the whole subtree under a name of its own.
    """
    stat = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's groups for `controller`, from its own up to the mount's
    root.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / (controller if controllers else "")
            own = mount / path.lstrip("/")
            yield own
            for parent in own.parents:
                if parent.is_relative_to(mount):
                    yield parent


def _read(file: Path) -> str:
    """The file's text; "" if it does not exist or cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
