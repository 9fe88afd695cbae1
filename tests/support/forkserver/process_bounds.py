"""The limits, processors and control groups of a process, which a fork takes over from
the one that it stands for. Only root may enter any group.
"""

import os
import resource
from pathlib import Path

_LIMITS = {
    number for name, number in vars(resource).items() if name.startswith("RLIMIT_")
}


def bounds_of(pid: int | None = None) -> tuple[str, str]:
    """The limits and the groups of a process, or our own."""
    process = Path(f"/proc/{pid or os.getpid()}")
    return (process / "limits").read_text(), (process / "cgroup").read_text()


def take_bounds(pid: int) -> None:
    """Have the bounds of this process from now on."""
    mine = bounds_of()[1].splitlines()
    theirs = bounds_of(pid)[1].splitlines()
    for line in set(theirs) - set(mine):
        _, controllers, group = line.split(":", 2)
        members = _mount_of(controllers) / group.lstrip("/") / "cgroup.procs"
        members.write_text(str(os.getpid()))
    for limit in _LIMITS:
        resource.setrlimit(limit, resource.prlimit(pid, limit))
    os.sched_setaffinity(0, os.sched_getaffinity(pid))


def _mount_of(controllers: str) -> Path:
    """Where the groups of these controllers are mounted; without any, those of
    version 2.
    """
    wanted = set(controllers.split(",")) if controllers else set[str]()
    kind = "cgroup" if wanted else "cgroup2"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        mounted, _, options = after.split(" ", 2)
        if mounted == kind and wanted <= set(options.split(",")):
            return Path(before.split()[4])
    raise LookupError(f"no groups of {controllers} are mounted")
