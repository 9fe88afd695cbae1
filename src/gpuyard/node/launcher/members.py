"""Tells which processes of the host are an attempt's, by what they carry and where they
are.
"""

import os

from gpuyard.node.launcher import procfs

ATTEMPT_VARIABLE = "GPUYARD_ATTEMPT_ID"


def find_attempt(attempt_id: str, uid: int | None = None) -> list[int]:
    """The pids of all live processes that carry the attempt's id in their environment,
    its session's leader first.

    Only processes whose environment this user may read are found. With `uid`, only
    those of that user: others could claim the id.
    """
    found: list[procfs.Stat] = []
    for process in procfs.stats():
        if process.dead or process.pid == os.getpid():
            continue
        if uid is not None and procfs.owner(process.pid) != uid:
            continue
        if carries(attempt_id, process):
            found.append(process)

    def leader_first(process: procfs.Stat) -> tuple[bool, int, int]:
        is_leader = process.session == process.pid
        return (not is_leader, process.start_ticks, process.pid)

    found.sort(key=leader_first)
    return [process.pid for process in found]


def descendants(pid: int) -> set[int]:
    """A process and those that it and they have started; without those whose parent
    has ended.
    """
    found: set[int] = set()
    new = [pid]
    while new:
        found.update(new)
        children = [child for parent in new for child in procfs.children(parent)]
        new = [child for child in children if child not in found]
    return found


def no_orphans(reaper: int) -> bool:
    """True when this process is the only child of its parent `reaper`, the subreaper
    that gets orphans.
    """
    return os.getppid() == reaper and procfs.children(reaper) == [os.getpid()]


def carries(attempt_id: str, process: procfs.Stat) -> bool:
    """True when the process has the attempt's id in its environment."""
    variable = os.fsencode(f"{ATTEMPT_VARIABLE}={attempt_id}")
    return procfs.has_variable(process.pid, variable)


def strays(reaper: int, start_ticks: int) -> set[int]:
    """Orphans that can only be those of an attempt whose leader, with `start_ticks`,
    has just been started: no older than that, they carry no attempt's id, and are where
    no other attempt's processes are, in the groups of this process.
    """
    found: set[int] = set()
    here = procfs.groups(os.getpid())
    for pid in procfs.children(reaper):
        process = procfs.stat(pid)
        if process is None or process.dead or pid == os.getpid():
            continue
        is_older = process.start_ticks < start_ticks
        if is_older or procfs.groups(pid) != here:
            continue
        if f"\0{ATTEMPT_VARIABLE}=".encode() not in procfs.environment(pid):
            found.add(pid)
    return found
