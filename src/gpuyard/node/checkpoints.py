"""Noticing checkpoints: files (or folders) that match the job's pattern, once they are complete.

A match is taken when it has looked the same twice and no process of the job has it open for writing; it is copied
into the blob store and counts only if it still looked the same after the copy. A folder must also have been quiet for
a while: programs write its files one after another. So what is kept is never half-written.
"""

import glob
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpuyard.domain import wire
from gpuyard.storage.blobs import BlobStore

_STEP = re.compile(r"(?:step|iter|ckpt|checkpoint|epoch)[-_=]?(\d+)", re.IGNORECASE)
_STEP_DIGITS = 15  # a longer number in a name is a date or a hash, and no database would take it
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
_UNFINISHED = (".tmp", ".partial", ".incomplete")
# Longer than a program takes between two files of a checkpoint: collecting a sharded optimiser's state, say.
_FOLDER_QUIET_NS = 2_000_000_000
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a match looks like: newest change in ns, bytes, number of files."""

    changed_ns: int
    size: int
    files: int
    folder: bool


class CheckpointWatcher:
    """Watches one attempt. `scan` blocks on the disk: call it in a thread, one call at a time."""

    def __init__(
        self, start: wire.Start, workdir: Path, began_at: float, blobs: BlobStore, step: Callable[[], int | None]
    ) -> None:
        self._start = start
        self._workdir = workdir
        self._blobs = blobs
        self._step = step
        # What was there before the attempt is not its work. Files of the same second count: clocks are coarse.
        self._since_ns = int((began_at - 1) * 1e9)
        self._last: dict[str, _Look] = {}
        self._taken: dict[str, _Look] = {}
        self._warned: set[str] = set()

    @property
    def newest_ns(self) -> int:
        """When the newest checkpoint taken so far was written, in ns since the epoch; 0 without any."""
        return max((look.changed_ns for look in self._taken.values()), default=0)

    def ignore_existing(self) -> None:
        """What is there now, before the attempt, is not its work until it changes."""
        self._taken |= {name: look for name in self._matches() if (look := self._look(name))}

    def remember(self, saved: Iterable[wire.CheckpointSaved]) -> None:
        """These were taken by an earlier agent: they count as new again only when they change after `at`."""
        for item in saved:
            look = self._look(item.path)
            if look and look.changed_ns <= item.at * 1e9:
                self._taken[item.path] = look

    def scan(self, pids: Callable[[], Iterable[int]], *, last: bool = False) -> list[wire.CheckpointSaved]:
        """The checkpoints completed since the last scan. `pids`: the job's processes.

        `last`: the job has ended by itself, so that what it left is as complete as it will ever be.
        """
        looks = {name: look for name in self._matches() if (look := self._look(name))}
        ready = [
            name for name, look in looks.items() if self._is_new(name, look) and (last or self._settled(name, look))
        ]
        ready.sort(key=lambda name: looks[name].changed_ns)  # the newest is told last, whatever its name
        self._last = looks
        writing = _open_for_writing(pids()) if ready else set[Path]()
        saved = [self._take(name, looks[name]) for name in ready if not _touched(self._workdir / name, writing)]
        return [item for item in saved if item]

    def _matches(self) -> list[str]:
        """What matches, as the program named it: relative to its working directory, or absolute."""
        # Path.glob refuses patterns that people write, such as `**.pt`.
        found = glob.glob(self._start.checkpoint_path or "", root_dir=self._workdir, recursive=True)  # noqa: PTH207
        names = {name.rstrip("/") for name in found} - {""}
        return sorted(name for name in names if not name.endswith(_UNFINISHED))

    def _look(self, name: str) -> _Look | None:
        return _look(self._workdir / name)

    def _is_new(self, name: str, look: _Look) -> bool:
        return look.size > 0 and look.changed_ns >= self._since_ns and self._taken.get(name) != look

    def _settled(self, name: str, look: _Look) -> bool:
        quiet = not look.folder or time.time_ns() - look.changed_ns >= _FOLDER_QUIET_NS
        return quiet and self._last.get(name) == look

    def _take(self, name: str, look: _Look) -> wire.CheckpointSaved | None:
        path = self._workdir / name
        try:
            blob = self._blobs.put_path(path)
        except FileNotFoundError:
            return None  # the program rotates its checkpoints and has removed this one
        except OSError as error:
            # A full disk: the job goes on, the checkpoint is tried again with the next scan.
            if name not in self._warned:
                log.warning(
                    "a checkpoint could not be kept", attempt=self._start.attempt_id, path=name, error=str(error)
                )
            self._warned.add(name)
            return None
        if self._look(name) != look:
            return None
        self._taken[name] = look
        found = _STEP.findall(path.name)
        step = int(found[-1]) if found and len(found[-1]) <= _STEP_DIGITS else self._step()
        # A name may be any bytes; what is reported has to be text.
        shown = os.fsencode(name).decode(errors="replace")
        return wire.CheckpointSaved(
            self._start.attempt_id, shown, blob.sha256, blob.size, time.time(), step, look.folder
        )


def _look(path: Path) -> _Look | None:
    try:
        status = path.stat()
        if not path.is_dir():
            return _Look(status.st_mtime_ns, status.st_size, 1, folder=False)
        inside = [item.stat() for item in path.rglob("*") if item.is_file()]
    except OSError:  # it is gone, or not ours to look at
        return None
    newest = max((item.st_mtime_ns for item in inside), default=status.st_mtime_ns)
    size = sum(item.st_size for item in inside)
    return _Look(max(newest, status.st_mtime_ns), size, len(inside), folder=True)


def _open_for_writing(pids: Iterable[int]) -> set[Path]:
    """The files these processes have open for writing, as far as we may look."""
    found: set[Path] = set()
    for pid in pids:
        try:
            descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                target = descriptor.readlink()
                info = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
            except OSError:
                continue
            flags = re.search(r"^flags:\s*(\d+)", info, re.MULTILINE)
            if flags and int(flags[1], 8) & _WRITE_FLAGS:
                found.add(target)
    return found


def _touched(path: Path, writing: set[Path]) -> bool:
    real = path.resolve()
    return any(item == real or real in item.parents for item in writing)
