"""Noticing checkpoints: files (or folders) that match the job's pattern, once they are complete.

A match is taken when it is complete (`storage/matches.py`) and no process of the job has it open for writing; it is
copied into the blob store and counts only if it still looked the same after the copy. So what is kept is never
half-written.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from gpuyard.domain import wire
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.matches import Look, Matches, step_of

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
log = structlog.get_logger(__name__)


class CheckpointWatcher:
    """Watches one attempt. `scan` blocks on disk and blobs: call it in a thread, one call at a time."""

    def __init__(
        self, start: wire.Start, workdir: Path, began_at: float, blobs: Blobs, step: Callable[[], int | None]
    ) -> None:
        self._start = start
        self._workdir = workdir
        self._blobs = blobs
        self._step = step
        # What was there before the attempt is not its work.
        self._matches = Matches(workdir, start.checkpoint_path, began_at)
        self._warned: set[str] = set()

    @property
    def newest_ns(self) -> int:
        """When the newest checkpoint taken so far was written, in ns since the epoch; 0 without any."""
        return max((look.changed_ns for look in self._matches.taken.values()), default=0)

    def ignore_existing(self) -> None:
        """What is there now, before the attempt, is not its work until it changes."""
        matches = self._matches
        matches.taken |= {name: look for name in matches.names() if (look := matches.look(name))}

    def remember(self, saved: Iterable[wire.CheckpointSaved]) -> None:
        """These were taken by an earlier agent: they count as new again only when they change after `at`."""
        for item in saved:
            look = self._matches.look(item.path)
            if look and look.changed_ns <= item.at * 1e9:
                self._matches.taken[item.path] = look

    def scan(self, pids: Callable[[], Iterable[int]], *, last: bool = False) -> list[wire.CheckpointSaved]:
        """The checkpoints completed since the last scan. `pids`: the job's processes.

        `last`: the job has ended by itself, so that what it left is as complete as it will ever be.
        """
        ready = self._matches.complete(last=last)  # the newest is told last, whatever its name
        writing = _open_for_writing(pids()) if ready else set[Path]()
        saved = [self._take(name, look) for name, look in ready.items() if not _touched(self._workdir / name, writing)]
        return [item for item in saved if item]

    def _take(self, name: str, look: Look) -> wire.CheckpointSaved | None:
        path = self._workdir / name
        try:
            blob = self._blobs.put_path(path)
        except FileNotFoundError:
            return None  # the program rotates its checkpoints and has removed this one
        except OSError as error:
            # A full disk, a bucket that is away: the job goes on, the next scan tries again.
            if name not in self._warned:
                log.warning(
                    "a checkpoint could not be kept", attempt=self._start.attempt_id, path=name, error=str(error)
                )
            self._warned.add(name)
            return None
        if self._matches.look(name) != look:
            return None
        self._matches.taken[name] = look
        told = step_of(name)
        step = self._step() if told is None else told
        # A name may be any bytes; what is reported has to be text.
        shown = os.fsencode(name).decode(errors="replace")
        return wire.CheckpointSaved(
            self._start.attempt_id, shown, blob.sha256, blob.size, time.time(), step, look.folder
        )


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
