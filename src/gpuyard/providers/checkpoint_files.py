"""Finds the checkpoints of jobs whose folders this host can read."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.providers.base import SavedFile
from gpuyard.storage.matches import Matches, step_of

_KILLED = frozenset({130, 137, 143})
"""A shell's exit codes for a program killed by INT, KILL or TERM."""


@dataclass(slots=True)
class _Job:
    matches: Matches
    found: list[SavedFile] = field(default_factory=list[SavedFile])


def ended_by_itself(exit_code: int | None, reason: str) -> bool:
    """Whether an ended job exited by itself and was not killed."""
    return exit_code is not None and exit_code not in _KILLED and not reason


class CheckpointFinder:
    """Keeps what each job has saved so far, by the provider's reference."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def find(
        self,
        job_id: str,
        folder: Path,
        pattern: str | None,
        since: float,
        *,
        over: bool,
    ) -> list[SavedFile]:
        """All checkpoints it has saved so far, oldest first; reads the disk.

        `since`: when it began (UTC seconds). `over`: it has ended by itself, so that
        its last file is complete. A killed job may leave a file half-written.
        """
        job = self._jobs.get(job_id)
        if job is None:
            job = _Job(Matches(folder, pattern, since))
            self._jobs[job_id] = job
        for name, look in job.matches.complete(last=over).items():
            job.matches.taken[name] = look
            # A file name may be any bytes, but reports must be text.
            shown_name = os.fsencode(name).decode(errors="replace")
            saved = SavedFile(
                shown_name,
                step_of(name),
                look.changed_ns / 1e9,
                folder / name,
                look.folder,
                beneath=folder,
            )
            job.found.append(saved)
        return list(job.found)

    def forget(self, job_id: str) -> None:
        """Drop what is kept of a job."""
        self._jobs.pop(job_id, None)
