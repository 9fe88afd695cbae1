"""What an attempt may use, and how that is enforced without control groups.

Control groups (`cgroup.py`) enforce all three limits for the attempt as a whole.
Without them there is less: a resource limit applies to each process by itself, and an
affinity mask selects whole processors.
"""

import math
import os
import resource
import zlib
from dataclasses import dataclass, fields

from gpuyard.node.launcher import procfs


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The most that an attempt may use of the host; None for no limit.

    `memory_bytes`: RAM, swap included. `cpus`: processors' worth of time, at least
    0.01. `processes`: processes and threads together. `default_memory_bytes`: as
    `memory_bytes`, which replaces it; it protects the host, so it may begin a moment
    after the start, and only a control group enforces it. Raises ValueError for a
    number that cannot be a limit.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None
    default_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for field, least in zip(fields(self), (1, 0.01, 1, 1), strict=True):
            value = getattr(self, field.name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise ValueError(
                    f"{field.name} must be a number of at least {least:g}, not"
                    f" {value!r}"
                )

    def wanted(self) -> dict[str, float]:
        """The limits that are set, by the names that `enforcement` uses too: `memory`,
        `cpus`, `processes`.
        """
        named = {
            "memory": self.memory_bytes or self.default_memory_bytes,
            "cpus": self.cpus,
            "processes": self.processes,
        }
        return {name: value for name, value in named.items() if value is not None}

    def may_begin_late(self) -> set[str]:
        """The limits that may begin a moment after the start, named as in `wanted`.

        One new process does no harm, and in its first moment it does not take the
        memory of a whole host.
        """
        if self.memory_bytes is None:
            return {"processes", "memory"}
        return {"processes"}


# A resource limit counts files that a program maps, too: a model larger than the host
# could not be loaded.
NO_GROUP = "none: the default limit needs control groups"


@dataclass(frozen=True, slots=True)
class Fallback:
    """How limits are enforced without control groups: the process sets these itself
    before it becomes the job.

    `rlimits`: resource numbers with their values. `cpus`: the processors to stay on;
    empty for any. `enforcement`: what enforces each limit, or `none: ` and the reason.
    """

    rlimits: tuple[tuple[int, int], ...]
    cpus: tuple[int, ...]
    enforcement: dict[str, str]


def fall_back(
    wanted: dict[str, float], attempt_id: str, uid: int | None = None
) -> Fallback:
    """Plan how to enforce the `wanted` limits (named as in `ProcessLimits.wanted`) with
    the means of an ordinary process of the user `uid` (by default this process's).
    """
    uid = os.getuid() if uid is None else uid
    rlimits: list[tuple[int, int]] = []
    cpus: tuple[int, ...] = ()
    enforcement: dict[str, str] = {}
    if "memory" in wanted:
        rlimits.append(_memory_rlimit(wanted["memory"]))
        enforcement["memory"] = "rlimit"
    if "cpus" in wanted:
        cpus = _pick_cpus(math.ceil(wanted["cpus"]), attempt_id)
        enforcement["cpus"] = "affinity"
    if "processes" in wanted:
        if uid == 0:
            enforcement["processes"] = "none: RLIMIT_NPROC does not bind root"
        else:
            # It counts all threads of the user, not only the attempt's.
            threads = procfs.threads_of_user(uid) + int(wanted["processes"])
            most = _within_hard(resource.RLIMIT_NPROC, threads)
            rlimits.append((resource.RLIMIT_NPROC, most))
            enforcement["processes"] = "rlimit"
    return Fallback(tuple(rlimits), cpus, enforcement)


def _memory_rlimit(memory_bytes: float) -> tuple[int, int]:
    # Not RLIMIT_AS: CUDA reserves far more address space than it uses, and would not
    # start under one.
    most = _within_hard(resource.RLIMIT_DATA, int(memory_bytes))
    return resource.RLIMIT_DATA, most


def _within_hard(limit: int, value: int) -> int:
    hard = resource.getrlimit(limit)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _pick_cpus(count: int, attempt_id: str) -> tuple[int, ...]:
    """`count` neighbouring processors of those that this process may use; the first one
    differs between attempts.
    """
    usable = sorted(os.sched_getaffinity(0))
    first = zlib.crc32(attempt_id.encode()) % len(usable)
    return tuple((usable + usable)[first : first + min(count, len(usable))])
