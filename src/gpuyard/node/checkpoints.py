"""Finds complete checkpoints: files or folders that match the job's pattern.

A match is taken when it is complete (`storage/matches.py`) and no process of the job
has it open for writing. It is copied into the blob store and counts only if it looks
the same after the copy. So no half-written checkpoint is kept.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import structlog

from gpuyard.domain import wire
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.matches import Look, Matches, step_of
from gpuyard.storage.untrusted import descriptor_beneath, walk

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
Inode = tuple[int, int]  # device and number
log = structlog.get_logger(__name__)


class CheckpointWatcher:
    """Watches one attempt. `owner` is the user that its job runs as, if that is not the
    agent's own: then only files of that user are checkpoints.

    `scan` blocks on disk and blobs: call it in a thread, one call at a time.
    """

    def __init__(
        self,
        start: wire.StartAttempt,
        workdir: Path,
        began_at: float,
        blobs: Blobs,
        step_at: Callable[[float], int | None],
        *,
        owner: int | None = None,
    ) -> None:
        self._start = start
        self._workdir = workdir
        self._blobs = blobs
        self._step_at = step_at
        self._owner = owner
        # Files from before the attempt are not its work.
        self._matches = Matches(
            workdir, start.checkpoint_path, began_at, linked_folders=True, owner=owner
        )
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
        writing = open_for_writing(pids()) if ready else set[Inode]()
        saved: list[wire.CheckpointSaved] = []
        for name, look in ready.items():
            if not self._is_written(name, look, writing):
                checkpoint = self._take(name, look)
                if checkpoint:
                    saved.append(checkpoint)
        return saved

    def _is_written(self, name: str, look: Look, writing: set[Inode]) -> bool:
        if not writing:
            return False
        folder, inner_name = self._matches.place(name)
        with suppress(OSError):
            descriptor = descriptor_beneath(folder, inner_name)
            try:
                if not look.folder:
                    return inode_of(os.fstat(descriptor)) in writing
                return any(
                    inode_of(item.status) in writing for item in walk(descriptor)
                )
            finally:
                os.close(descriptor)
        return False

    def _take(self, name: str, look: Look) -> wire.CheckpointSaved | None:
        folder, inner_name = self._matches.place(name)
        try:
            blob = self._blobs.put_beneath(folder, inner_name, owner=self._owner)
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
        if self._matches.look(name) != look:
            return None
        self._matches.taken[name] = look
        step = step_of(name)
        if step is None:
            step = self._step_at(look.changed_ns / 1e9)
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


def open_for_writing(pids: Iterable[int]) -> set[Inode]:
    """The files that these processes have open for writing, as far as this is
    visible. Not by their paths, which a process may choose with mounts of its own.
    """
    found: set[Inode] = set()
    for pid in pids:
        try:
            descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                status = descriptor.stat()
                info = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
            except OSError:
                continue
            flags = re.search(r"^flags:\s*(\d+)", info, re.MULTILINE)
            if flags and int(flags[1], 8) & _WRITE_FLAGS:
                found.add(inode_of(status))
    return found


def inode_of(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino
