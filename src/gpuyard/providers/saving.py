"""Checkpoints of jobs whose folder this host can see: found as they are completed."""

from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.providers.base import SavedFile
from gpuyard.storage.matches import Matches, step_of


@dataclass(slots=True)
class _Job:
    matches: Matches
    found: list[SavedFile] = field(default_factory=list[SavedFile])


class Saving:
    """What each job has saved, by the provider's reference."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def look(self, job_id: str, folder: Path, pattern: str | None, since: float, *, over: bool) -> list[SavedFile]:
        """All it has saved so far, the oldest first; it blocks on the disk.

        `since`: when it began (UTC seconds). `over`: it has ended by itself.
        """
        job = self._jobs.get(job_id) or self._jobs.setdefault(job_id, _Job(Matches(folder, pattern, since)))
        for name, look in job.matches.complete(last=over).items():
            job.matches.taken[name] = look
            job.found.append(SavedFile(name, step_of(name), look.changed_ns / 1e9, folder / name, look.folder))
        return list(job.found)

    def forget(self, job_id: str) -> None:
        """Nobody asks for this one any more."""
        self._jobs.pop(job_id, None)
