"""Finds complete checkpoints: files or folders that match the job's pattern.

A match is taken when it is complete (`storage/matches.py`) and no process of the job
has it open for writing. It is copied into the blob store and counts only if it looks
the same after the copy. So no half-written checkpoint is kept.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from gpuyard.domain import wire
from gpuyard.node.separation import belongs_to
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.matches import Look, Matches, step_of

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
log = structlog.get_logger(__name__)


class CheckpointWatcher:
    """Watches one attempt. `owner`: the user who must own a checkpoint, because this
    process may read more than the job could.

    `scan` blocks on disk and blobs: call it in a thread, one call at a time.
    """

    def __init__(
        self,
        start: wire.StartAttempt,
        workdir: Path,
        began_at: float,
        blobs: Blobs,
        step: Callable[[], int | None],
        owner: int | None = None,
    ) -> None:
        self._start = start
        self._workdir = workdir
        self._blobs = blobs
        self._step = step
        self._owner = owner
        # Files from before the attempt are not its work.
        self._matches = Matches(workdir, start.checkpoint_path, began_at)
        self._warned: set[str] = set()

    @property
    def newest_ns(self) -> int:
        """When the newest checkpoint taken so far was written, in ns since the epoch; 0
        if there is none.
        """
        times = [look.changed_ns for look in self._matches.taken.values()]
        return max(times, default=0)

    def ignore_existing(self) -> None:
        """Ignore what exists before the attempt, until it changes."""
        for name in self._matches.names():
            look = self._matches.look(name)
            if look:
                self._matches.taken[name] = look

    def remember(self, saved: Iterable[wire.CheckpointSaved]) -> None:
        """Ignore what an earlier agent took, until it changes after its time `at`."""
        for item in saved:
            look = self._matches.look(item.path)
            if look and look.changed_ns <= item.at * 1e9:
                self._matches.taken[item.path] = look

    def scan(
        self, pids: Callable[[], Iterable[int]], *, last: bool = False
    ) -> list[wire.CheckpointSaved]:
        """The checkpoints completed since the last scan. `pids`: the job's processes.

        `last`: the job has ended by itself, so what it left is complete.
        """
        # In order of their age, whatever their names: the newest is reported last.
        ready = self._matches.complete(last=last)
        writing = _open_for_writing(pids()) if ready else set[Path]()
        saved: list[wire.CheckpointSaved] = []
        for name, look in ready.items():
            if not _is_written(self._workdir / name, writing):
                checkpoint = self._take(name, look)
                if checkpoint:
                    saved.append(checkpoint)
        return saved

    def _take(self, name: str, look: Look) -> wire.CheckpointSaved | None:
        path = self._workdir / name
        if not self._may_take(path):
            return None
        try:
            blob = self._blobs.put_path(path)
        except FileNotFoundError:
            return None  # the program rotates its checkpoints and has removed this one
        except OSError as error:
            # The disk is full or the bucket is not there: the job goes on, and the next
            # scan tries again.
            if name not in self._warned:
                log.warning(
                    "a checkpoint could not be kept",
                    attempt=self._start.attempt_id,
                    path=name,
                    error=str(error),
                )
            self._warned.add(name)
            return None
        if self._matches.look(name) != look or not self._may_take(path):
            return None
        self._matches.taken[name] = look
        step = step_of(name)
        if step is None:
            step = self._step()
        # A file name may be any bytes, but a report needs text.
        shown = os.fsencode(name).decode(errors="replace")
        return wire.CheckpointSaved(
            self._start.attempt_id,
            shown,
            blob.sha256,
            blob.size,
            time.time(),
            step,
            look.folder,
        )

    def _may_take(self, path: Path) -> bool:
        if self._owner is None or belongs_to(path, self._owner):
            return True
        if str(path) not in self._warned:
            log.warning(
                "a checkpoint is not the job's own and is not kept",
                attempt=self._start.attempt_id,
                path=str(path),
            )
        self._warned.add(str(path))
        return False


def _open_for_writing(pids: Iterable[int]) -> set[Path]:
    """The files that these processes have open for writing, as far as this is
    visible.
    """
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


def _is_written(path: Path, writing: set[Path]) -> bool:
    real = path.resolve()
    return any(item == real or real in item.parents for item in writing)
