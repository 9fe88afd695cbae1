"""The control groups that a killed agent leaves to one that never comes."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from gpuyard.config.paths import Home
from gpuyard.node.launcher.hierarchy import hierarchies, read, remove, tree

# A process that was killed is in its group until it has ended.
_PATIENCE_S = 2.0


def remove_groups(home: Home) -> None:
    """Remove the groups of a home's node and of its attempts, and kill what runs in
    them. One whose processes do not end stays.
    """
    left: list[Path] = []
    with suppress(OSError):
        left = _groups(home)
    deadline = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < deadline:
        # Again and again: one that was just being started comes late.
        for group in left:
            _kill_all_in(group)
        left = [group for group in left if not remove(group)]
        time.sleep(0.01 * bool(left))


def _kill_all_in(group: Path) -> None:
    for below in tree(group):
        pids: list[str] = []
        with suppress(OSError):  # it went meanwhile
            pids = read(below, "cgroup.procs")
        for pid in pids:
            assert pid != "0", f"{below} has a process of another namespace"
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _groups(home: Home) -> list[Path]:
    pool = (home.node / "id").read_text().strip() + "-"
    attempts = {log.stem for log in (home.node / "attempts").glob("*.log")}
    return [
        group
        for hierarchy in hierarchies()
        for group in hierarchy.root.iterdir()
        if group.name in attempts or group.name.startswith(pool)
    ]
