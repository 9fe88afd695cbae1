"""Saves the artifacts of an attempt whose program has ended: copies them into the blob
store, and reports them.

The end of the attempt is reported after them, so a job that has completed has its
artifacts.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from gpuyard.config.settings import NodeSettings
from gpuyard.domain.artifacts import (
    FILES_AT_ONCE,
    MAX_PATH,
    ArtifactOrder,
    ArtifactsSaved,
    SavedArtifact,
)
from gpuyard.storage.artifact_files import ArtifactFile, ArtifactFinder
from gpuyard.storage.blobs import Blobs, BucketError

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
# A server that is replaced, or a bucket that is repaired, is back by then.
_GIVE_UP_AFTER_S = 600.0
_MOST_PROBLEMS = 20
_STOPPED = "the job was ended before the rest was saved"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
log = structlog.get_logger(__name__)


class ArtifactSaver:
    """Saves those of one attempt. `owner` is the user that its job runs as, if that is
    not the agent's own. `linked_folders`: see `Matches`. No file below `private` is
    saved. `shown` hides secrets in a text. Once `stopped` is set, nothing more is
    saved.
    """

    def __init__(
        self,
        attempt_id: str,
        order: ArtifactOrder,
        settings: NodeSettings,
        blobs: Blobs,
        *,
        owner: int | None,
        linked_folders: bool,
        shown: Callable[[str], str],
        private: Path | None = None,
        stopped: threading.Event | None = None,
    ) -> None:
        self._attempt_id = attempt_id
        self._order = order
        self._settings = settings
        self._blobs = blobs
        self._owner = owner
        self._linked_folders = linked_folders
        self._shown = shown
        self._private = private.resolve() if private else None
        self._stopped = stopped or threading.Event()
        self._give_up_at = 0.0

    def save(self, workdir: Path, began_at: float) -> list[ArtifactsSaved]:
        """Save what the job has written below `workdir` since `began_at` (UTC seconds).
        Blocks on disk and blobs.
        """
        finder = ArtifactFinder(
            workdir,
            self._order.patterns,
            began_at,
            linked_folders=self._linked_folders,
            owner=self._owner,
        )
        most_bytes = int(self._settings.artifacts_gb * 1e9)
        found = finder.find(self._settings.artifact_files, most_bytes)
        self._give_up_at = time.monotonic() + _GIVE_UP_AFTER_S
        problems = found.problems
        saved: list[SavedArtifact] = []
        for file in found.files:
            if self._stopped.is_set():
                problems.append(_STOPPED)
                break
            try:
                saved.append(self._store(file))
            except OSError as error:
                shown = os.fsencode(file.path).decode(errors="replace")
                problems.append(f"{shown} could not be saved: {error}")
                if error.errno in _FULL or isinstance(error, BucketError):
                    problems.append("nothing behind it was saved")
                    break
        return list(self._messages(saved, problems))

    def _store(self, file: ArtifactFile) -> SavedArtifact:
        path = self._shown(os.fsencode(file.path).decode(errors="replace"))
        if len(path) > MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, "its path is too long")
        if not path.isprintable():
            raise OSError(errno.EINVAL, "its name cannot be printed")
        if self._is_private(file):
            raise PermissionError(errno.EACCES, "it is gpuyard's own")
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                blob = self._blobs.put_beneath(
                    file.folder, file.name, owner=self._owner
                )
                return SavedArtifact(path, blob.sha256, blob.size)
            except BucketError as error:
                is_late = time.monotonic() + pause_s > self._give_up_at
                if is_late or self._stopped.is_set():
                    raise
                log.warning(
                    "an artifact cannot be saved, will try again",
                    attempt=self._attempt_id,
                    path=path,
                    error=str(error),
                )
            self._stopped.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _is_private(self, file: ArtifactFile) -> bool:
        if self._private is None:
            return False
        place = (file.folder / file.name).resolve()
        return place.is_relative_to(self._private)

    def _messages(
        self, saved: list[SavedArtifact], problems: list[str]
    ) -> Iterator[ArtifactsSaved]:
        now = time.time()
        for start in range(0, len(saved), FILES_AT_ONCE):
            part = saved[start : start + FILES_AT_ONCE]
            yield ArtifactsSaved(self._attempt_id, now, part)
        if problems:
            shown = [self._shown(problem) for problem in problems[:_MOST_PROBLEMS]]
            yield ArtifactsSaved(self._attempt_id, now, problems=shown)
