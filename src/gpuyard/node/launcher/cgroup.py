"""An attempt's control groups, versions 1 and 2: they hold its processes and its limits, and count what it used.

An attempt without limits gets a group as well, the cheapest there is: in it no process gets lost, whatever it forks.
"""

import itertools
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.node.launcher import procfs
from gpuyard.node.launcher.hierarchy import groups_of, hierarchies, make, read, tree, try_write, write
from gpuyard.node.launcher.limits import Limits

_CONTROLLERS = {"memory": "memory", "cpus": "cpu", "processes": "pids"}
_PERIOD_US = 100_000  # the kernel's default length of a CPU quota's period


@dataclass(frozen=True, slots=True)
class Cgroup:
    """An attempt's groups: one in version 2, in version 1 one for each kind of limit.

    `enforced`: by limit's name (`memory`, `cpus`, `processes`), the version that holds it, such as `cgroup v1`.
    """

    paths: tuple[Path, ...]
    enforced: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def create(cls, attempt_id: str, limits: Limits, root: Path | None = None) -> "Cgroup | None":
        """Make the attempt's groups and set those limits that groups can hold here; None where none can be made.

        `root`: the group to make them in, as a path inside every mounted tree (`/gpuyard`); by default under the
        agent's own group. Raises ValueError for an id that is no file name.
        """
        _check_name(attempt_id)
        available = hierarchies(root)
        if limits.wanted() and not all(
            hierarchy.root.is_dir() for hierarchy in available
        ):  # removed since by someone tidying up
            hierarchies.cache_clear()
            available = hierarchies(root)
        paths: list[Path] = []
        enforced: dict[str, str] = {}
        for limit, value in limits.wanted().items():
            for hierarchy in available:
                group = hierarchy.root / attempt_id
                if _CONTROLLERS[limit] in hierarchy.controllers and _hold(group, hierarchy.version, limit, value):
                    paths.append(group)
                    enforced[limit] = f"cgroup v{hierarchy.version}"
                    break
        # The first one is the best to keep track in; one that bounds forking can keep track by itself.
        if "processes" not in enforced and not any((path / "cgroup.kill").exists() for path in paths):
            groups = (hierarchy.root / attempt_id for hierarchy in available)
            paths += itertools.islice(filter(make, groups), 1)
        return cls(tuple(dict.fromkeys(paths)), enforced) if paths else None

    @classmethod
    def open(cls, attempt_id: str, root: Path | None = None, pid: int | None = None) -> "Cgroup | None":
        """Find the groups that `create` made in an earlier life of the agent; None where there are none.

        `pid`: a live process of the attempt, by which they are found even if the agent's own group is another now.
        """
        _check_name(attempt_id)
        places = [hierarchy.root / attempt_id for hierarchy in hierarchies(root)]
        if pid is not None:
            places += [group for group in groups_of(pid) if group.name == attempt_id]
        found = tuple(place for place in dict.fromkeys(places) if place.is_dir())
        return cls(found) if found else None

    def join(self, pid: int) -> None:
        """Move a process, with all that it forks from now on, into the groups. Raises OSError."""
        for path in self.paths:
            write(path / "cgroup.procs", str(pid))

    def procs(self) -> list[int]:
        """The pids of all live processes in the groups and in groups made below them."""
        pids = {int(pid) for path in self.paths for group in tree(path) for pid in read(group, "cgroup.procs")}
        return sorted(pids - {0})  # 0 stands for a process that this PID namespace cannot see

    def empty(self) -> bool:
        """Whether no live process is left in the groups."""
        for path in self.paths:
            if events := read(path, "cgroup.events"):  # version 2: a quarter of the cost of asking for them all
                return events[events.index("populated") + 1] == "0"
        if any(read(path, "cgroup.procs") for path in self.paths):
            return False
        return all(_childless(path) for path in self.paths) or not self.procs()

    def kill(self, timeout_s: float = 5.0) -> bool:
        """Send SIGKILL to all processes until none is left; False if some outlive it by `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        if self.empty():
            return True
        for path in self.paths:
            try_write(path / "pids.max", "0")  # nothing may fork faster than it is killed
            try_write(path / "cgroup.kill", "1")  # version 2, Linux 5.14
        while not self.empty():
            for process in filter(None, map(procfs.stat, self.procs())):
                procfs.send(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def oom_kills(self) -> int:
        """How many of the attempt's processes the kernel has killed for want of memory."""
        counts = 0
        for path in self.paths:
            counts += _number(path, "memory.events", "oom_kill")  # version 2 counts the groups below along
            counts += sum(_number(group, "memory.oom_control", "oom_kill") for group in tree(path))
        return counts

    def peak_memory_bytes(self) -> int | None:
        """The most memory the attempt has held at once, file cache included; None where nobody counts it."""
        for path in self.paths:
            if peak := read(path, "memory.peak") or read(path, "memory.max_usage_in_bytes"):
                return int(peak[0])
        return None

    def cpu_s(self) -> float | None:
        """CPU seconds used since the start, ended processes included; None where nobody counts them (version 1)."""
        microseconds = max((_number(path, "cpu.stat", "usage_usec") for path in self.paths), default=0)
        return microseconds / 1e6 if microseconds else None

    def remove(self) -> bool:
        """Remove the groups and those below them; False, with the rest left, if processes are still in one."""
        removed = [_remove(path) for path in self.paths]
        return all(removed)


def _childless(group: Path) -> bool:
    """Whether no group lies below this one: a folder of the control groups has two links and one for each below."""
    try:
        return os.stat(group).st_nlink == 2  # noqa: PTH116
    except FileNotFoundError:
        return True


def _remove(path: Path) -> bool:
    try:
        os.rmdir(path)  # noqa: PTH106
    except OSError:  # gone, or not empty
        for group in reversed(list(tree(path))):
            with suppress(OSError):
                group.rmdir()
        return not path.exists()
    return True


def _hold(group: Path, version: int, limit: str, value: float) -> bool:
    """Make the group and set one limit in it; False, with no group made, where that does not work."""
    needed, extra = _settings(version, limit, value)
    made = not group.exists() and make(group)
    if not all(try_write(group / name, text) for name, text in needed.items()):
        if made:
            group.rmdir()
        return False
    for name, text in extra.items():
        try_write(group / name, text)
    return True


def _settings(version: int, limit: str, value: float) -> tuple[dict[str, str], dict[str, str]]:
    """The files that set a limit, and those that sharpen it where the kernel has them."""
    quota_us = str(round(value * _PERIOD_US))
    whole = str(int(value))
    match limit, version:
        case "memory", 2:
            # Without its workers a training job hangs: all of it goes.
            return {"memory.max": whole}, {"memory.swap.max": "0", "memory.oom.group": "1"}
        case "memory", _:
            return {"memory.limit_in_bytes": whole}, {"memory.memsw.limit_in_bytes": whole}
        case "cpus", 2:
            return {"cpu.max": f"{quota_us} {_PERIOD_US}"}, {}
        case "cpus", _:
            return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota_us}, {}
        case _:
            return {"pids.max": whole}, {}


def _check_name(attempt_id: str) -> None:
    if "/" in attempt_id or "\0" in attempt_id or attempt_id in ("", ".", ".."):
        raise ValueError(f"an attempt's id must be a file name, not {attempt_id!r}")


def _number(group: Path, name: str, key: str) -> int:
    """The number after `key` in a group's file of keys and numbers; 0 where there is none."""
    words = read(group, name)
    return int(words[words.index(key) + 1]) if key in words else 0
