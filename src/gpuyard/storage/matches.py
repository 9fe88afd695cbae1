"""Files and folders that match a job's checkpoint pattern, and which of them are
complete.

A match is complete when it has looked the same twice. A folder must also have been
quiet for a while, because programs write its files one after another.

A match is never a link, and lies below none: another program reads it, which may read
more than the job.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import translate
from glob import has_magic
from itertools import takewhile
from pathlib import Path, PurePath

from gpuyard.storage.untrusted import (
    MAX_DEPTH,
    Entry,
    entries,
    folder_beneath,
    inside,
    walk,
)

_STEP = re.compile(r"(?:step|iter|ckpt|checkpoint|epoch)[-_=]?(\d+)", re.IGNORECASE)
# A longer number in a name is a date or a hash, and no database could store it.
_STEP_DIGITS = 15
_UNFINISHED = (".tmp", ".partial", ".incomplete")
# Longer than a program takes between two files of a checkpoint, for example to collect
# the state of a sharded optimiser.
_FOLDER_QUIET_NS = 2_000_000_000
_ANY_FOLDERS = "**"


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

    A pattern is relative to the folder and never leads out of it; another one matches
    nothing. `linked_folders`: the folders at its beginning (`out` in `out/*.pt`) may be
    links. That is safe where the job could read whatever this process can. Where it
    could not, `owner` is its user, and only that user's files count.
    """

    def __init__(
        self,
        folder: Path,
        pattern: str | None,
        since: float,
        *,
        linked_folders: bool = False,
        owner: int | None = None,
    ) -> None:
        steps = PurePath(pattern or "").parts
        if PurePath(pattern or "").is_absolute() or ".." in steps:
            steps = ()
        named: tuple[str, ...] = ()
        if linked_folders:
            named = tuple(takewhile(lambda step: not has_magic(step), steps[:-1]))
        self._folder = folder
        self._top = folder.joinpath(*named)
        self._base = "".join(f"{step}/" for step in named)
        self._steps = steps[len(named) :]
        self._only_folders = (pattern or "").endswith("/")
        self._owner = owner
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
        """The paths that match, relative to the folder."""
        if not self._steps:
            return []
        try:
            with folder_beneath(self._top) as top:
                if self._leads_elsewhere(top):
                    return []
                found = set(_matching(top, self._steps, ""))
        except OSError:
            return []  # the job has not made that folder yet, or has removed it
        complete = (name for name in sorted(found) if not name.endswith(_UNFINISHED))
        return [f"{self._base}{name}" for name in complete]

    def _leads_elsewhere(self, top: int) -> bool:
        """Whether links of the job led to a folder of somebody else: what is there
        could be closed to it.
        """
        if self._owner is None or os.fstat(top).st_uid == self._owner:
            return False
        opened = os.readlink(f"/proc/self/fd/{top}")  # noqa: PTH115  (as text, as it is)
        return opened != os.fspath(self._folder.resolve() / self._base)

    def place(self, name: str) -> tuple[Path, str]:
        """The folder that a match lies below, through no link, and its path there."""
        return self._top, name.removeprefix(self._base)

    def look(self, name: str) -> Look | None:
        """What a match looks like now; None when it is gone or cannot be read."""
        *folders, last = PurePath(self.place(name)[1]).parts
        try:
            with folder_beneath(self._top, folders) as folder:
                (entry,) = entries(folder, "", [last])
                return self._look_at(entry)
        except (OSError, ValueError):
            return None

    def _look_at(self, entry: Entry) -> Look | None:
        status = entry.status
        if entry.is_file and not self._only_folders:
            size = status.st_size if self._is_own(entry) else 0
            return Look(status.st_mtime_ns, size, 1, folder=False)
        if not entry.is_folder:
            return None
        with inside(entry) as folder:
            found = [item for item in walk(folder, owner=self._owner) if item.is_file]
        files = [item.status for item in found if self._is_own(item)]
        newest = max((file.st_mtime_ns for file in files), default=0)
        size = sum(file.st_size for file in files)
        changed_ns = max(newest, status.st_mtime_ns)
        return Look(changed_ns, size, len(files), folder=True)

    def _is_own(self, entry: Entry) -> bool:
        return self._owner is None or entry.status.st_uid == self._owner

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


def _matching(folder: int, steps: Sequence[str], base: str) -> Iterator[str]:
    """The paths in an open folder that match the steps of a pattern, as `glob` has
    them: a hidden name matches only a step that begins with a dot.
    """
    step, *later = steps
    any_folders = step == _ANY_FOLDERS
    if any_folders and later:
        yield from _matching(folder, later, base)
    names = _names_like(folder, step)
    for entry in entries(folder, base, names) if names else ():
        if entry.is_link:
            continue
        if not later:
            yield entry.path
        if not entry.is_folder or entry.path.count("/") >= MAX_DEPTH:
            continue
        if later or any_folders:
            with suppress(OSError), inside(entry) as inner:
                below = steps if any_folders else later
                yield from _matching(inner, below, f"{entry.path}/")


def _names_like(folder: int, step: str) -> list[str]:
    """The names in an open folder that match one step of a pattern."""
    if not has_magic(step):
        return [step]
    matches = re.compile(translate(step)).match
    shows_hidden = step.startswith(".")
    return [
        name
        for name in sorted(os.listdir(folder))
        if matches(name) and (shows_hidden or not name.startswith("."))
    ]
