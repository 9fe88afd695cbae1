"""Files and folders that match a job's checkpoint pattern, and which of them are complete.

A match is complete when it has looked the same twice; a folder must also have been quiet for a while, since programs
write its files one after another.
"""

import glob
import re
import time
from dataclasses import dataclass
from pathlib import Path

_STEP = re.compile(r"(?:step|iter|ckpt|checkpoint|epoch)[-_=]?(\d+)", re.IGNORECASE)
_STEP_DIGITS = 15  # a longer number in a name is a date or a hash, and no database would take it
_UNFINISHED = (".tmp", ".partial", ".incomplete")
# Longer than a program takes between two files of a checkpoint: collecting a sharded optimiser's state, say.
_FOLDER_QUIET_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Look:
    """What a match looks like: newest change in ns, bytes, number of files."""

    changed_ns: int
    size: int
    files: int
    folder: bool


class Matches:
    """The matches of `pattern` in `folder` that were written from `since` on (UTC seconds). `taken` are those done
    with, by name: one counts as new again when it looks otherwise."""

    def __init__(self, folder: Path, pattern: str | None, since: float) -> None:
        self._folder, self._pattern = folder, pattern or ""
        # Files of the same second count: clocks are coarse.
        self._since_ns = int((since - 1) * 1e9)
        self._last: dict[str, Look] = {}
        self.taken: dict[str, Look] = {}

    def complete(self, *, last: bool = False) -> dict[str, Look]:
        """Those that are new and complete, by name, the oldest first; it blocks on the disk.

        `last`: whoever wrote them has ended by itself, so that what it left is as complete as it will ever be.
        """
        looks = {name: look for name in self.names() if (look := self.look(name))}
        ready = [
            name for name, look in looks.items() if self._is_new(name, look) and (last or self._is_settled(name, look))
        ]
        self._last = looks
        return {name: looks[name] for name in sorted(ready, key=lambda name: looks[name].changed_ns)}

    def names(self) -> list[str]:
        """What matches, as the program named it: relative to the folder, or absolute."""
        # Path.glob refuses patterns that people write, such as `**.pt`.
        found = glob.glob(self._pattern, root_dir=self._folder, recursive=True)  # noqa: PTH207
        names = {name.rstrip("/") for name in found} - {""}
        return sorted(name for name in names if not name.endswith(_UNFINISHED))

    def look(self, name: str) -> Look | None:
        """What it looks like now; None when it is gone, or not ours to look at."""
        return _look(self._folder / name)

    def _is_new(self, name: str, look: Look) -> bool:
        return look.size > 0 and look.changed_ns >= self._since_ns and self.taken.get(name) != look

    def _is_settled(self, name: str, look: Look) -> bool:
        quiet = not look.folder or time.time_ns() - look.changed_ns >= _FOLDER_QUIET_NS
        return quiet and self._last.get(name) == look


def step_of(name: str) -> int | None:
    """The step that a checkpoint's name tells (`step-100.pt`); None when it tells none."""
    found = _STEP.findall(Path(name).name)
    return int(found[-1]) if found and len(found[-1]) <= _STEP_DIGITS else None


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
