"""Counts the processes that the kernel has killed for lack of memory in this process's
own control group.

An attempt in its first moments has no limit of memory yet and counts there. So this
tells that it was killed because the host, or what gpuyard may use of it, was full.
"""

import os

from gpuyard.node.launcher.hierarchy import groups_of

# Version 2 without the groups below, where attempts have limits; version 1.
_FILES = ("memory.events.local", "memory.oom_control")


class MemoryKills:
    """The count of this process's group, which is 0 for ever where nothing counts."""

    def __init__(self) -> None:
        self._file = _open_count()

    def count(self) -> int:
        """How many processes were killed so far."""
        if self._file is None:
            return 0
        words = os.pread(self._file, 4096, 0).split()
        return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open_count() -> int | None:
    """It stays open, because each attempt needs it."""
    for group in groups_of(os.getpid()):
        for name in _FILES:
            try:
                return os.open(group / name, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
    return None
