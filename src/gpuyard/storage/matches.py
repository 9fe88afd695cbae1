"""Files and folders that match a job's checkpoint pattern, and which of them are
complete.

A match is complete when it has looked the same twice. A folder must also have been
quiet for a while, because programs write its files one after another.
"""

import glob
import re
import time
from dataclasses import dataclass
from pathlib import Path

_STEP = re.compile(r"(?:step|iter|ckpt|checkpoint|epoch)[-_=]?(\d+)", re.IGNORECASE)
# A longer number in a name is a date or a hash, and no database could store it.
_STEP_DIGITS = 15
_UNFINISHED = (".tmp", ".partial", ".incomplete")
# Longer than a program takes between two files of a checkpoint, for example to collect
# the state of a sharded optimiser.
_FOLDER_QUIET_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Look:
    """What a match looks like: its newest change in ns, its bytes and its number of
    files.
    """

    changed_ns: int
    size: int
    files: int
    folder: bool


class Matches:
    """The matches of `pattern` in `folder` that were written at or after `since` (UTC
    seconds). `taken` are the looks of those that were taken, by name: one that looks
    different counts as new again.
    """

    def __init__(self, folder: Path, pattern: str | None, since: float) -> None:
        self._folder = folder
        self._pattern = pattern or ""
        # Files of the same second count, because clocks are coarse.
        self._since_ns = int((since - 1) * 1e9)
        self._last: dict[str, Look] = {}
        self.taken: dict[str, Look] = {}

    def complete(self, *, last: bool = False) -> dict[str, Look]:
        """The new and complete matches by name, the oldest first. Blocks on the disk.

        `last`: the program has ended by itself, so what it left is complete.
        """
        looks: dict[str, Look] = {}
        for name in self.names():
            look = self.look(name)
            if look:
                looks[name] = look
        ready: list[str] = []
        for name, look in looks.items():
            complete = last or self._is_settled(name, look)
            if complete and self._is_new(name, look):
                ready.append(name)
        self._last = looks
        ready.sort(key=lambda name: looks[name].changed_ns)
        return {name: looks[name] for name in ready}

    def names(self) -> list[str]:
        """The paths that match, as the program named them: relative to the folder, or
        absolute.
        """
        # Path.glob refuses patterns that people write, such as `**.pt`.
        found = glob.glob(self._pattern, root_dir=self._folder, recursive=True)  # noqa: PTH207
        names = {name.rstrip("/") for name in found} - {""}
        return sorted(name for name in names if not name.endswith(_UNFINISHED))

    def look(self, name: str) -> Look | None:
        """What a match looks like now; None when it is gone or cannot be read."""
        return _look(self._folder / name)

    def _is_new(self, name: str, look: Look) -> bool:
        return (
            look.size > 0
            and look.changed_ns >= self._since_ns
            and self.taken.get(name) != look
        )

    def _is_settled(self, name: str, look: Look) -> bool:
        quiet_ns = time.time_ns() - look.changed_ns
        quiet = not look.folder or quiet_ns >= _FOLDER_QUIET_NS
        return quiet and self._last.get(name) == look


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name (`step-100.pt`); None if there is none."""
    steps: list[str] = _STEP.findall(Path(name).name)
    if not steps or len(steps[-1]) > _STEP_DIGITS:
        return None
    return int(steps[-1])


def _look(path: Path) -> Look | None:
    try:
        status = path.stat()
        if not path.is_dir():
            return Look(status.st_mtime_ns, status.st_size, 1, folder=False)
        inside = [item.stat() for item in path.rglob("*") if item.is_file()]
    except OSError:
        return None
    newest = max((item.st_mtime_ns for item in inside), default=status.st_mtime_ns)
    size = sum(item.st_size for item in inside)
    return Look(max(newest, status.st_mtime_ns), size, len(inside), folder=True)
