"""What an attempt may use, and how that is held where control groups are not ours to make.

Control groups (`cgroup.py`) hold all three limits for the attempt as a whole. Without them there is less: a resource
limit binds each process by itself, and an affinity mask picks whole processors.
"""

import math
import os
import resource
import zlib
from dataclasses import dataclass, fields

from gpuyard.node.launcher import procfs


@dataclass(frozen=True, slots=True)
class Limits:
    """The most an attempt may use of the host; None leaves that one open.

    `memory_bytes`: RAM, swap included. `cpus`: processors' worth of time, 0.01 at least. `processes`: processes and
    threads together. Raises ValueError for a number that cannot be a limit.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        for field, least in zip(fields(self), (1, 0.01, 1), strict=True):
            value = getattr(self, field.name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise ValueError(f"{field.name} must be a number of at least {least:g}, not {value!r}")

    def wanted(self) -> dict[str, float]:
        """The limits that are set, under the names `memory`, `cpus` and `processes` that `enforcement` uses too."""
        named = {"memory": self.memory_bytes, "cpus": self.cpus, "processes": self.processes}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Fallback:
    """How limits are held without control groups: to be set by the process itself before it becomes the job.

    `rlimits`: resource numbers with their values. `cpus`: processors to stay on, or none to leave that open.
    `enforcement`: by limit's name, what holds it, or `none: ` and why nothing does.
    """

    rlimits: tuple[tuple[int, int], ...]
    cpus: tuple[int, ...]
    enforcement: dict[str, str]


def fall_back(wanted: dict[str, float], attempt_id: str) -> Fallback:
    """Plan how to hold the `wanted` limits (as `Limits.wanted` names them) by the means of an ordinary process."""
    rlimits: list[tuple[int, int]] = []
    cpus: tuple[int, ...] = ()
    enforcement: dict[str, str] = {}
    if "memory" in wanted:
        # Not RLIMIT_AS: CUDA reserves far more address space than it uses, and would not start under one.
        rlimits.append((resource.RLIMIT_DATA, _within_hard(resource.RLIMIT_DATA, int(wanted["memory"]))))
        enforcement["memory"] = "rlimit"
    if "cpus" in wanted:
        cpus = _pick_cpus(math.ceil(wanted["cpus"]), attempt_id)
        enforcement["cpus"] = "affinity"
    if "processes" in wanted:
        if os.getuid() == 0:
            enforcement["processes"] = "none: RLIMIT_NPROC does not bind root"
        else:
            # It counts all the user's threads, not the attempt's alone.
            most = procfs.threads_of_user(os.getuid()) + int(wanted["processes"])
            rlimits.append((resource.RLIMIT_NPROC, _within_hard(resource.RLIMIT_NPROC, most)))
            enforcement["processes"] = "rlimit"
    return Fallback(tuple(rlimits), cpus, enforcement)


def _within_hard(limit: int, value: int) -> int:
    hard = resource.getrlimit(limit)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _pick_cpus(count: int, attempt_id: str) -> tuple[int, ...]:
    """`count` neighbouring processors of those this process may use, from a place that differs between attempts."""
    usable = sorted(os.sched_getaffinity(0))
    first = zlib.crc32(attempt_id.encode()) % len(usable)
    return tuple((usable + usable)[first : first + min(count, len(usable))])
