"""Control groups that are ready for the first moments of attempts.

To make groups for an attempt and to remove them costs more than a short job takes. So
an attempt without limits of its own begins in a group from a pool, which limits its
processes. If it lives on, it moves to groups of its own (`Process.settle`).

A group of the pool holds one attempt at a time. So it knows, as a group of the
attempt's own would, what that has started. It goes back when nothing is left in it.
"""

import os
import secrets
from pathlib import Path

from gpuyard.node.launcher.cgroup import Cgroup
from gpuyard.node.launcher.hierarchy import (
    Hierarchy,
    hierarchies,
    make,
    remove,
    remove_empty,
    write,
)
from gpuyard.node.launcher.memory_kills import MemoryKills

# More than start at once on one host within the first moment.
_MOST_READY = 64


class GroupPool:
    """The pool of one agent.

    `owner` is what the names of its groups begin with, which no other agent has.
    `processes`: the most that an attempt may have. `root`: see `Cgroup.create`.
    """

    def __init__(self, owner: str, processes: int, root: Path | None = None) -> None:
        self._owner = owner
        self._processes = processes
        self._root = root
        self._ready: list[PooledGroup] = []
        self.memory_kills = MemoryKills()

    def take(self) -> "PooledGroup | None":
        """A group for one attempt; None where no group can limit processes."""
        group = self._ready.pop() if self._ready else self._make_one()
        if group:
            group.begin()
        return group

    def _make_one(self) -> "PooledGroup | None":
        for hierarchy in hierarchies(self._root):
            if "pids" in hierarchy.controllers:
                return self._make(hierarchy)
        return None

    def _make(self, hierarchy: Hierarchy) -> "PooledGroup | None":
        path = hierarchy.root / f"{self._owner}-{secrets.token_hex(6)}"
        if not make(path):
            return None
        try:
            write(path / "pids.max", str(self._processes))
            return PooledGroup(self, path, self._enforced(hierarchy))
        except OSError:
            remove(path)
            return None

    def _enforced(self, hierarchy: Hierarchy) -> dict[str, str]:
        """What enforces each limit of an attempt that begins there."""
        enforced = {"processes": f"cgroup v{hierarchy.version}"}
        for later in hierarchies(self._root):
            if "memory" in later.controllers:
                enforced.setdefault("memory", f"cgroup v{later.version}")
        return enforced

    def put(self, group: "PooledGroup") -> bool:
        """Keep a group for the next attempt; False if there are enough."""
        if len(self._ready) >= _MOST_READY:
            return False
        self._ready.append(group)
        return True

    def sweep(self) -> None:
        """Remove the groups of an earlier agent that hold no process."""
        remove_empty(lambda name: name.startswith(f"{self._owner}-"), self._root)

    def close(self) -> None:
        """Remove the groups that no attempt has."""
        while self._ready:
            self._ready.pop().discard()
        self.memory_kills.close()


class PooledGroup:
    """A group that one attempt has at a time. `enforced`: what enforces each limit of
    the attempt, that of memory from `Process.settle` on.

    Raises OSError without free descriptors.
    """

    def __init__(self, pool: GroupPool, path: Path, enforced: dict[str, str]) -> None:
        self.name = path.name
        self.cgroup = Cgroup((path,))
        self.enforced = enforced
        self._pool = pool
        self._is_spoiled = False
        self._is_discarded = False
        self._kills_before = 0
        # Both stay open, because each attempt needs them.
        self._entry = os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            self._count = os.open(path / "pids.current", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._entry)
            raise

    def begin(self) -> None:
        """An attempt takes it."""
        self._kills_before = self._pool.memory_kills.count()

    def oom_kills(self) -> int:
        """How many processes the kernel has killed for lack of memory since an attempt
        took it, among those without a limit of their own: this attempt's, and perhaps
        of one that is as new.
        """
        return self._pool.memory_kills.count() - self._kills_before

    def join(self, pid: int) -> None:
        """Move a process, and all that it forks from now on, into the group. Raises
        OSError.
        """
        os.write(self._entry, str(pid).encode())

    def holds_at_most(self, count: int) -> bool:
        """Whether there are so many processes and threads in the group and in groups
        below it, zombies included; False if somebody has removed it.
        """
        try:
            return int(os.pread(self._count, 32, 0)) <= count
        # If it was given back meanwhile, another file may have the descriptor.
        except (OSError, ValueError):
            return False

    def spoil(self) -> None:
        """It does not go back: its limits were changed, or something is left in it."""
        self._is_spoiled = True

    def give_back(self) -> bool:
        """The attempt has left it; False if processes are still in it, so that it
        stays.
        """
        is_usable = not self._is_discarded and not self._is_spoiled
        is_usable = is_usable and self.holds_at_most(0)
        if is_usable and self._pool.put(self):
            return True
        return self.discard()

    def discard(self) -> bool:
        """Remove it; False if processes are still in it, so that it stays."""
        if not self._is_discarded:
            self._is_discarded = True
            # Before anything can fail: the numbers may be others' a moment later.
            os.close(self._entry)
            os.close(self._count)
        return self.cgroup.remove()
