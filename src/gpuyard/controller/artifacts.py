"""The artifacts of jobs: recorded when an attempt has ended, and removed.

A file that a later attempt of the job writes under the same path takes the place of the
earlier one.
"""

import asyncio
import hashlib
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import structlog
from msgspec.structs import replace

from gpuyard.controller.core import Core
from gpuyard.controller.job_warnings import warn
from gpuyard.controller.node_access import NodeAccess
from gpuyard.controller.unused_blobs import delete_unused
from gpuyard.domain.artifacts import ArtifactsSaved, SavedArtifact, is_inside
from gpuyard.domain.errors import LedgerError, NotFoundError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.printable import printable
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.storage.blobs import Blobs

_ID_DIGITS = 32
# The most that the settings of a node may allow.
MOST_OF_JOB = 100_000
log = structlog.get_logger(__name__)
Row = Mapping[str, Any]


class Artifacts:
    """Records artifacts, and removes them."""

    def __init__(self, core: Core, blobs: Blobs, access: NodeAccess) -> None:
        self._core = core
        self._blobs = blobs
        self._access = access

    def reported(self, attempt: LiveAttempt, body: ArtifactsSaved) -> None:
        """The agent of a node reports artifacts. That of a machine that has joined may
        say anything.
        """
        is_joined = self._core.view.node(attempt.node_id).joined
        files = [
            file
            for file in body.files
            if not is_joined or self._access.may_claim(attempt.id, file.sha256)
        ]
        if len(files) < len(body.files):
            log.warning("a node claims a blob of others", attempt=attempt.id)
        self.saved(attempt, replace(body, files=files))

    def saved(self, attempt: LiveAttempt, body: ArtifactsSaved) -> None:
        """Record artifacts of the attempt that are in the blob store. To do it again
        changes nothing.
        """
        core = self._core
        files = [file for file in body.files if _has_path(file)]
        before = core.queries.artifacts_of(attempt.job_id)
        known = {row["path"] for row in before}
        room = MOST_OF_JOB - len(known)
        new = [file for file in files if file.path not in known][: max(room, 0)]
        files = [file for file in files if file.path in known] + new
        paths = {file.path for file in files}
        replaced = [row for row in before if row["path"] in paths]
        rows = {artifact_id(attempt.id, file.path): file for file in files}
        removals = [_removal(row["id"]) for row in replaced if row["id"] not in rows]
        additions = [
            Change(Table.ARTIFACTS, key, _row(attempt, file, body.at))
            for key, file in rows.items()
        ]
        changes = (*removals, *additions)
        if changes:
            info = {
                "attempt_id": attempt.id,
                "count": len(files),
                "size": sum(file.size for file in files),
            }
            kind = EventKind.ARTIFACTS_SAVED
            event = Event(kind, core.clock(), changes, attempt.job_id, info)
            core.emit([event], can_wait=True)
        if replaced:
            core.spawn(self._delete_blobs(replaced), "delete-artifacts")
        for problem in body.problems:
            text = printable(problem)
            info = {"topic": "artifacts", "detail": text}
            warn(core, attempt, f"artifacts: {text}", EventKind.JOB_WARNING, info)

    async def remove(self, job_id: str, paths: Collection[str]) -> list[Row]:
        """Remove those of a job with these paths, all without any; what they were.
        NotFoundError if there is none of such a path; LedgerError.
        """
        there = await asyncio.to_thread(self._core.queries.artifacts_of, job_id)
        rows = await asyncio.to_thread(chosen, there, job_id, paths)
        if not rows:
            return []
        changes = tuple(_removal(row["id"]) for row in rows)
        kind = EventKind.ARTIFACTS_REMOVED
        info = {"count": len(rows)}
        self._core.emit([Event(kind, self._core.clock(), changes, job_id, info)])
        await self._core.committed()
        self._core.spawn(self._delete_blobs(rows), "delete-artifacts")
        return rows

    async def _delete_blobs(self, rows: Sequence[Row]) -> None:
        try:
            await self._core.committed(can_wait=True)
        except LedgerError:
            return
        for row in rows:
            named_at = row["created_at"]
            await delete_unused(self._core, self._blobs, row["sha256"], named_at)


def artifact_id(attempt_id: str, path: str) -> str:
    """The id of an artifact: the same if an agent reports it twice."""
    name = f"{attempt_id}\n{path}".encode(errors="surrogatepass")
    return f"art_{hashlib.sha256(name).hexdigest()[:_ID_DIGITS]}"


def chosen(rows: Sequence[Row], job_id: str, paths: Collection[str]) -> list[Row]:
    """Those with these paths, or below such a folder; all of them without any path.
    NotFoundError if there is none of such a path.
    """
    if not paths:
        return list(rows)
    ordered = sorted(rows, key=lambda row: row["path"])
    known = [str(row["path"]) for row in ordered]
    found: dict[str, Row] = {}
    taken = 0  # up to here, so that many folders in one another cost no more than one
    for path in sorted(paths, key=_folder):
        place = bisect_left(known, path)
        if known[place : place + 1] == [path]:
            found[ordered[place]["id"]] = ordered[place]
        first = bisect_left(known, _folder(path))
        last = bisect_left(known, _behind(path))
        if first == last and known[place : place + 1] != [path]:
            raise NotFoundError(
                f"Job {job_id} has no artifact {path!r}.",
                f"`gpuyard artifacts list {job_id}` lists them.",
            )
        inside = ordered[max(first, taken) : last]
        found.update({row["id"]: row for row in inside})
        taken = max(taken, last)
    return list(found.values())


def _folder(path: str) -> str:
    """What the paths in a folder begin with."""
    return f"{path.rstrip('/')}/"


def _behind(path: str) -> str:
    """The first text that sorts behind all paths in a folder."""
    return f"{path.rstrip('/')}{chr(ord('/') + 1)}"


def _has_path(file: SavedArtifact) -> bool:
    """Whether its path can be shown, and names something below a folder."""
    return is_inside(file.path) and file.path.isprintable()


def _removal(key: str) -> Change:
    return Change(Table.ARTIFACTS, key, {"kept": False})


def _row(attempt: LiveAttempt, file: SavedArtifact, at: float) -> dict[str, Any]:
    return {
        "job_id": attempt.job_id,
        "attempt_id": attempt.id,
        "path": file.path,
        "size": file.size,
        "sha256": file.sha256,
        "kept": True,
        "created_at": at,
    }
