"""An attempt's control groups, versions 1 and 2: they hold its processes, enforce its
limits, and count what it uses.

An attempt without limits gets a group too, the cheapest there is: no process can leave
it, whatever it forks. In its first moments it may be one from a pool (`group_pool.py`).
"""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.devices.access import DeviceRule
from gpuyard.node.launcher import device_filter, procfs
from gpuyard.node.launcher.hierarchy import (
    Hierarchy,
    groups_of,
    hierarchies,
    make,
    read,
    remove,
    tree,
    try_write,
    write,
)
from gpuyard.node.launcher.limits import ProcessLimits

_CONTROLLERS = {"memory": "memory", "cpus": "cpu", "processes": "pids"}
# Each round moves what the one before left; the last ones are for fast forkers.
_MOST_ROUNDS = 20
_PERIOD_US = 100_000  # the kernel's default length of a CPU quota's period


@dataclass(frozen=True, slots=True)
class Cgroup:
    """An attempt's groups: one in version 2, in version 1 one for each kind of limit.

    `enforced`: the version that enforces each limit (`memory`, `cpus`, `processes`,
    `devices`), such as `cgroup v1`.
    """

    paths: tuple[Path, ...]
    enforced: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def create(
        cls,
        attempt_id: str,
        limits: ProcessLimits,
        root: Path | None = None,
        devices: Sequence[DeviceRule] | None = None,
    ) -> "Cgroup | None":
        """Make the attempt's groups and set the limits that groups can enforce here;
        None if no group can be made.

        `devices`: which devices it may open; None for no rules. `root`: the group to
        make them in, as a path inside every mounted tree (`/gpuyard`); by default under
        the agent's own group. Raises ValueError for an id that is no file name.
        """
        _check_name(attempt_id)
        available = _available(root, limits)
        paths: list[Path] = []
        enforced: dict[str, str] = {}
        for limit, value in limits.wanted().items():
            made = _first_that_enforces(available, attempt_id, limit, value)
            if made:
                paths.append(made[0])
                enforced[limit] = f"cgroup v{made[1]}"
        if devices is not None:
            confined = _confine(available, attempt_id, devices)
            if confined:
                paths.append(confined[0])
                enforced["devices"] = f"cgroup v{confined[1]}"
        # A group that limits forking, or can kill all at once, can also keep track of
        # the processes. Else one more is made; the first hierarchy is the best for it.
        can_kill = any((path / "cgroup.kill").exists() for path in paths)
        if "processes" not in enforced and not can_kill:
            groups = [hierarchy.root / attempt_id for hierarchy in available]
            tracking = next(filter(make, groups), None)
            if tracking:
                paths.append(tracking)
        return cls(tuple(dict.fromkeys(paths)), enforced) if paths else None

    @classmethod
    def open(
        cls, attempt_id: str, root: Path | None = None, pid: int | None = None
    ) -> "Cgroup | None":
        """Find the groups that an earlier agent made with `create`; None if there are
        none.

        `pid`: a live process of the attempt, by which they are found even if the
        agent's own group has changed.
        """
        _check_name(attempt_id)
        places = [hierarchy.root / attempt_id for hierarchy in hierarchies(root)]
        if pid is not None:
            places += [group for group in groups_of(pid) if group.name == attempt_id]
        found = tuple(place for place in dict.fromkeys(places) if place.is_dir())
        return cls(found) if found else None

    def join(self, pid: int) -> None:
        """Move a process, and all that it forks from now on, into the groups.

        Raises OSError.
        """
        for path in self.paths:
            write(path / "cgroup.procs", str(pid))

    def move_to(self, other: "Cgroup") -> bool:
        """Move all processes to other groups; False if some stay, because they fork
        faster than they are moved.
        """
        for _ in range(_MOST_ROUNDS):
            # What an unmoved process forks meanwhile is listed in the next round.
            pids = self.procs()
            if not pids:
                return True
            for pid in pids:
                with suppress(ProcessLookupError):
                    other.join(pid)
        return self.empty()

    def joined_with(self, other: "Cgroup | None") -> "Cgroup":
        """These groups and others, for processes that are in these or in those."""
        if other is None:
            return self
        paths = (*self.paths, *other.paths)
        return Cgroup(tuple(dict.fromkeys(paths)), {**other.enforced, **self.enforced})

    def procs(self) -> list[int]:
        """The pids of all live processes in the groups and in groups below them."""
        pids: set[int] = set()
        for path in self.paths:
            for group in tree(path):
                pids.update(int(pid) for pid in read(group, "cgroup.procs"))
        # 0 stands for a process that this PID namespace cannot see.
        return sorted(pids - {0})

    def empty(self) -> bool:
        """True when no live process is left in the groups."""
        return all(_is_empty(path) for path in self.paths)

    def kill(self, timeout_s: float = 5.0) -> bool:
        """Send SIGKILL to all processes until none is left; False if some are left
        after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        if self.empty():
            return True
        for path in self.paths:
            # So that nothing can fork faster than it is killed.
            try_write(path / "pids.max", "0")
            try_write(path / "cgroup.kill", "1")  # version 2, Linux 5.14
        while not self.empty():
            for process in filter(None, map(procfs.stat, self.procs())):
                procfs.send(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def oom_kills(self) -> int:
        """How many of the attempt's processes the kernel has killed at the memory
        limit.
        """
        counts = 0
        for path in self.paths:
            # Version 2 includes the groups below.
            counts += _number(path, "memory.events", "oom_kill")
            counts += sum(
                _number(group, "memory.oom_control", "oom_kill") for group in tree(path)
            )
        return counts

    def peak_memory_bytes(self) -> int | None:
        """The most memory that the attempt has held at once, file cache included; None
        if it is not counted.
        """
        for path in self.paths:
            peak = read(path, "memory.peak")
            if not peak:
                peak = read(path, "memory.max_usage_in_bytes")
            if peak:
                return int(peak[0])
        return None

    def cpu_s(self) -> float | None:
        """CPU seconds since the start, including ended processes; None if they are not
        counted (version 1).
        """
        counts = [_number(path, "cpu.stat", "usage_usec") for path in self.paths]
        microseconds = max(counts, default=0)
        return microseconds / 1e6 if microseconds else None

    def remove(self) -> bool:
        """Remove the groups and those below them; False if processes are still in one,
        which then stays.
        """
        removed = [remove(path) for path in self.paths]
        return all(removed)


def can_confine_devices(root: Path | None = None) -> bool:
    """True when groups can refuse devices here. `root` as in `Cgroup.create`."""
    name = f"probe-{os.getpid()}"
    confined = _confine(hierarchies(root), name, ())
    if confined is None:
        return False
    remove(confined[0])
    return True


def _available(root: Path | None, limits: ProcessLimits) -> Sequence[Hierarchy]:
    """The trees where groups can be made below `root`, found again if somebody has
    removed what was found before.
    """
    available = hierarchies(root)
    all_exist = all(hierarchy.root.is_dir() for hierarchy in available)
    if limits.wanted() and not all_exist:
        hierarchies.cache_clear()
        return hierarchies(root)
    return available


def _first_that_enforces(
    available: Sequence[Hierarchy], name: str, limit: str, value: float
) -> tuple[Path, int] | None:
    """Set a limit of the group `name` in the first tree that takes it; returns the
    group and the version. None, with no group made, if there is none.
    """
    for hierarchy in available:
        if _CONTROLLERS[limit] in hierarchy.controllers:
            group = hierarchy.root / name
            if _enforce(group, hierarchy.version, limit, value):
                return group, hierarchy.version
    return None


def _confine(
    available: Sequence[Hierarchy], name: str, rules: Sequence[DeviceRule]
) -> tuple[Path, int] | None:
    """Apply rules for devices to the group `name` in the first tree that takes them;
    returns the group and the version. None, with no group made, if there is none.
    """
    for hierarchy in available:
        if hierarchy.version == 2:
            apply = device_filter.attach
        elif "devices" in hierarchy.controllers:
            apply = device_filter.deny
        else:
            continue
        group = hierarchy.root / name
        made = not group.exists() and make(group)
        try:
            apply(group, rules)
        except OSError:
            if made:
                group.rmdir()
            continue
        return group, hierarchy.version
    return None


def _is_empty(group: Path) -> bool:
    # In version 2 this costs a quarter of a list of all processes.
    events = read(group, "cgroup.events")
    if events:
        return events[events.index("populated") + 1] == "0"
    if read(group, "cgroup.procs"):
        return False
    return _childless(group) or not Cgroup((group,)).procs()


def _childless(group: Path) -> bool:
    """True when there is no group below this one: a folder of control groups has two
    links, and one more for each group below.
    """
    try:
        return os.stat(group).st_nlink == 2  # noqa: PTH116
    except FileNotFoundError:
        return True


def _enforce(group: Path, version: int, limit: str, value: float) -> bool:
    """Make the group and set one limit in it; False, with no group made, if that
    fails.
    """
    needed, extra = _settings(version, limit, value)
    made = not group.exists() and make(group)
    if not all(try_write(group / name, text) for name, text in needed.items()):
        if made:
            group.rmdir()
        return False
    for name, text in extra.items():
        try_write(group / name, text)
    return True


def _settings(
    version: int, limit: str, value: float
) -> tuple[dict[str, str], dict[str, str]]:
    """The files that set a limit, and files that make it stricter if the kernel has
    them.
    """
    quota_us = str(round(value * _PERIOD_US))
    whole = str(int(value))
    match limit, version:
        case "memory", 2:
            # Without its workers a training job hangs, so the kernel kills all of it.
            return {"memory.max": whole}, {
                "memory.swap.max": "0",
                "memory.oom.group": "1",
            }
        case "memory", _:
            return {"memory.limit_in_bytes": whole}, {
                "memory.memsw.limit_in_bytes": whole
            }
        case "cpus", 2:
            return {"cpu.max": f"{quota_us} {_PERIOD_US}"}, {}
        case "cpus", _:
            return {
                "cpu.cfs_period_us": str(_PERIOD_US),
                "cpu.cfs_quota_us": quota_us,
            }, {}
        case _:
            return {"pids.max": whole}, {}


def _check_name(attempt_id: str) -> None:
    if "/" in attempt_id or "\0" in attempt_id or attempt_id in ("", ".", ".."):
        raise ValueError(f"an attempt's id must be a file name, not {attempt_id!r}")


def _number(group: Path, name: str, key: str) -> int:
    """The number after `key` in a group's file of keys and numbers; 0 if there is
    none.
    """
    words = read(group, name)
    return int(words[words.index(key) + 1]) if key in words else 0
