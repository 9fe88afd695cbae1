"""The control groups that hold an attempt: at first perhaps one from a pool, then its
own.
"""

import threading
from pathlib import Path

from gpuyard.node.launcher.cgroup import Cgroup
from gpuyard.node.launcher.group_pool import PooledGroup
from gpuyard.node.launcher.limits import ProcessLimits


class HeldGroups:
    """The groups of one attempt. Threads may share it: one at a time moves the attempt
    between groups, or kills what is in them.

    `own`: its own groups. The group of the pool in which it began, if it is still
    there, is `pooled` if it goes back to the pool, and else `first`.
    """

    def __init__(
        self,
        own: Cgroup | None = None,
        first: Cgroup | None = None,
        pooled: PooledGroup | None = None,
    ) -> None:
        self._own = own
        self._first = pooled.cgroup if pooled else first
        self._pooled = pooled
        self._early_oom_kills = 0
        self._lock = threading.Lock()

    @classmethod
    def find(
        cls,
        attempt_id: str,
        first_group: str = "",
        root: Path | None = None,
        pid: int | None = None,
    ) -> "HeldGroups":
        """Those of an attempt that an earlier agent started. `first_group`: the name of
        the group of that agent's pool; empty for none. `root`, `pid`: see
        `Cgroup.open`.
        """
        first = Cgroup.open(first_group, root, pid) if first_group else None
        return cls(Cgroup.open(attempt_id, root, pid), first)

    @property
    def own(self) -> Cgroup | None:
        """Its own groups. Only they count what the attempt uses: one of the pool has
        counted for other attempts before.
        """
        return self._own

    @property
    def all(self) -> Cgroup | None:
        """The groups that hold it; None without groups."""
        if self._own is None:
            return self._first
        return self._own.joined_with(self._first)

    @property
    def settled(self) -> bool:
        """False while it is in a group of the pool."""
        return self._first is None

    def settle(
        self, attempt_id: str, limits: ProcessLimits, root: Path | None
    ) -> Cgroup | None:
        """Make groups of its own, and move all of it there from the group of the pool,
        if it is in one; returns its own groups. `root`: see `Cgroup.create`.
        """
        with self._lock:
            if self._first is None:
                return self._own
            self._own = Cgroup.create(attempt_id, limits, root)
            if self._own and _has_moved(self._first, self._own):
                self._leave_first()
            return self._own

    def _leave_first(self) -> bool:
        """Give it up; False if processes are still in it: then it stays known, so that
        they can be killed.
        """
        left = True
        if self._pooled:
            self._early_oom_kills = self._pooled.oom_kills()
            left = self._pooled.give_back()
        elif self._first:
            left = self._first.remove()
        self._pooled = None
        if left:
            self._first = None
        return left

    def oom_kills(self) -> int:
        """How many of the attempt's processes the kernel has killed for lack of
        memory.
        """
        kills = self._early_oom_kills
        if self._pooled:
            kills = self._pooled.oom_kills()
        return kills + (self._own.oom_kills() if self._own else 0)

    def are_empty(self, zombies: int) -> bool:
        """True if no live process is in them. `zombies`: how many processes in them are
        certainly dead and not reaped yet.
        """
        pooled = self._pooled
        is_empty = pooled is not None and pooled.holds_at_most(zombies)
        # Asked last: once it has groups of its own, the other may be somebody else's.
        if is_empty and self._own is None:
            return True
        groups = self.all
        return groups is not None and groups.empty()

    def kill(self, timeout_s: float) -> None:
        """Kill all processes in them; see `Cgroup.kill`."""
        with self._lock:
            if self._pooled:
                self._pooled.spoil()
            groups = self.all
            if groups:
                groups.kill(timeout_s)

    def remove(self) -> bool:
        """Remove them, and give back the one of the pool; False if processes are still
        in one.
        """
        with self._lock:
            has_left = self._leave_first()
            return (self._own is None or self._own.remove()) and has_left


def _has_moved(first: Cgroup, own: Cgroup) -> bool:
    """Move all processes; if that fails, both hold the attempt."""
    try:
        return first.move_to(own)
    except OSError:
        return False
