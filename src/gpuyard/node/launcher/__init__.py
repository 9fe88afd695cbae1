"""Launches attempts as processes of this host: starts them under their limits, follows
them to the end, and leaves nothing behind.

An attempt is a session of its own. Its first process leads the session, and the pid and
start time of that (`Process.pid`, `Process.start_ticks`) identify it until the next
boot. Needs Linux 5.3 or later. The order at an attempt's end matters:

1. `Process.exit()` looks at how the leader ended and leaves it a zombie, so that
   its pid is not reused;
2. the caller writes that down;
3. `Process.kill_all()` ends what the leader left behind;
4. `Process.reap()` reaps the zombie, and `Process.cleanup()` removes the control
   group.
"""

from gpuyard.node.launcher.cgroup import Cgroup, can_confine_devices
from gpuyard.node.launcher.group_pool import GroupPool, PooledGroup
from gpuyard.node.launcher.hierarchy import remove_empty
from gpuyard.node.launcher.identity import ProcessIdentity
from gpuyard.node.launcher.launch import LaunchError, LaunchRequest
from gpuyard.node.launcher.limits import ProcessLimits
from gpuyard.node.launcher.members import descendants, find_attempt
from gpuyard.node.launcher.posix_spawn import Streams
from gpuyard.node.launcher.process import (
    Exit,
    Process,
    ProcessUsage,
    adopt,
    end_groups,
)
from gpuyard.node.launcher.prologue import NEVER_STARTED
from gpuyard.node.launcher.spawn import spawn, spawn_beside

__all__ = [
    "NEVER_STARTED",
    "Cgroup",
    "Exit",
    "GroupPool",
    "LaunchError",
    "LaunchRequest",
    "PooledGroup",
    "Process",
    "ProcessIdentity",
    "ProcessLimits",
    "ProcessUsage",
    "Streams",
    "adopt",
    "can_confine_devices",
    "descendants",
    "end_groups",
    "find_attempt",
    "remove_empty",
    "spawn",
    "spawn_beside",
]
