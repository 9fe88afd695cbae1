"""Launches attempts as processes of this host: starts them under their limits, follows them to the end, leaves nothing.

An attempt is a session of its own: its first process leads it, and its pid and start time (`Process.pid`,
`Process.start_ticks`) name it until the next boot. Linux 5.3 or later. The order at an attempt's end matters:

1. `Process.exit()` peeks at how the leader ended and leaves it a zombie, so that its pid cannot be given away;
2. the caller writes that down;
3. `Process.kill_all()` ends what the leader left behind;
4. `Process.reap()` lets the zombie go, and `Process.cleanup()` removes the control group.
"""

from gpuyard.node.launcher.cgroup import Cgroup
from gpuyard.node.launcher.launch import Launch, LaunchError
from gpuyard.node.launcher.limits import Limits
from gpuyard.node.launcher.logfile import LogFile
from gpuyard.node.launcher.process import Exit, Process, Usage, adopt, find_attempt
from gpuyard.node.launcher.prologue import NEVER_STARTED
from gpuyard.node.launcher.spawn import spawn

__all__ = [
    "NEVER_STARTED",
    "Cgroup",
    "Exit",
    "Launch",
    "LaunchError",
    "Limits",
    "LogFile",
    "Process",
    "Usage",
    "adopt",
    "find_attempt",
    "spawn",
]
