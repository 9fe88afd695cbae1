"""Noticing checkpoints: files (or folders) that match the job's pattern, once they are complete.

A match is taken when it has looked the same twice and no process of the job has it open for writing; it is copied
into the blob store and counts only if it still looked the same after the copy. So what is kept is never half-written.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuyard.domain import wire
from gpuyard.storage.blobs import BlobStore

_STEP = re.compile(r"(?:step|iter|ckpt|checkpoint|epoch)[-_=]?(\d+)", re.IGNORECASE)
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class _Look:
    """What a match looks like: newest change in ns, bytes, number of files."""

    changed_ns: int
    size: int
    files: int


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
        self._taken: dict[str, _Look | None] = {}

    def remember(self, saved: Iterable[wire.CheckpointSaved]) -> None:
        """These were taken by an earlier agent: they count as new again only when they change after `at`."""
        for item in saved:
            look = _look(self._workdir / item.path)
            if look and look.changed_ns <= item.at * 1e9:
                self._taken[item.path] = look

    def scan(self, pids: Iterable[int], *, last: bool = False) -> list[wire.CheckpointSaved]:
        """The checkpoints completed since the last scan; with `last`, no process writes any more."""
        pattern = self._start.checkpoint_path
        if not pattern:
            return []
        ready = [path for path in self._matches(pattern) if self._settled(path, last)]
        if not ready:
            return []
        writing: set[Path] = set() if last else _open_for_writing(pids)
        saved = [self._take(path) for path in ready if not _touched(path, writing)]
        return [item for item in saved if item]

    def _matches(self, pattern: str) -> list[Path]:
        absolute = Path(pattern).is_absolute()
        found = Path("/").glob(pattern.lstrip("/")) if absolute else self._workdir.glob(pattern)
        return sorted(path for path in found if not path.name.endswith((".tmp", ".partial", ".incomplete")))

    def _settled(self, path: Path, last: bool) -> bool:
        name, look = self._name(path), _look(path)
        if look is None or look.changed_ns < self._since_ns or not look.size or self._taken.get(name) == look:
            return False
        before, self._last[name] = self._last.get(name), look
        return last or before == look

    def _take(self, path: Path) -> wire.CheckpointSaved | None:
        before = _look(path)
        try:
            if path.is_dir():
                blob = self._blobs.put_directory(path)
            else:
                with path.open("rb") as file:
                    blob = self._blobs.put(file)
        except FileNotFoundError:
            return None  # the program rotates its checkpoints and has removed this one
        name = self._name(path)
        if before is None or _look(path) != before:
            return None
        self._taken[name] = before
        found = _STEP.findall(path.name)
        step = int(found[-1]) if found else self._step()
        return wire.CheckpointSaved(
            self._start.attempt_id, name, blob.sha256, blob.size, time.time(), step, path.is_dir()
        )

    def _name(self, path: Path) -> str:
        """The path as the program wrote it: relative to its working directory where it lies in it."""
        return str(path.relative_to(self._workdir)) if path.is_relative_to(self._workdir) else str(path)


def _look(path: Path) -> _Look | None:
    try:
        status = path.stat()
        if not path.is_dir():
            return _Look(status.st_mtime_ns, status.st_size, 1)
        inside = [item.stat() for item in path.rglob("*") if item.is_file()]
    except FileNotFoundError:
        return None
    newest = max((item.st_mtime_ns for item in inside), default=status.st_mtime_ns)
    return _Look(max(newest, status.st_mtime_ns), sum(item.st_size for item in inside), len(inside))


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
