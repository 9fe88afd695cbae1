"""Notes which processes a program has had: trackers put them into names of files."""

import socket
import time
from pathlib import Path
from typing import Set

from .files import write
from .processes import descendants

SEEN_PROCESSES = "processes.json"
# A look reads all processes of the host, so it becomes rarer while the program runs.
_FIRST_S = 1.0
_LAST_S = 10.0
# Programs that start more do not train.
_MOST = 4096


class SeenProcesses:
    """Those below the process `root`, and itself."""

    def __init__(self, folder: Path, root: int) -> None:
        self._path = folder / SEEN_PROCESSES
        self._root = root
        self._begun = time.monotonic()
        self._look_at = self._begun + _FIRST_S
        self._seen = {root}
        self._write()

    def look(self) -> None:
        """Note those that are new, if it is time to look."""
        now = time.monotonic()
        if now < self._look_at or len(self._seen) >= _MOST:
            return
        self._look_at = now + min((now - self._begun) / 2, _LAST_S)
        new: Set[int] = set(descendants(self._root)) - self._seen
        if new:
            self._seen |= new
            self._write()

    def _write(self) -> None:
        host = socket.gethostname()
        write(self._path, {"host": host, "pids": sorted(self._seen)[:_MOST]})
