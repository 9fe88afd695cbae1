"""Checkpoints of jobs whose folder this host can see: found as they are completed."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.providers.base import SavedFile
from gpuyard.storage.matches import Matches, step_of

_KILLED = frozenset({130, 137, 143})
"""What a shell makes of INT, KILL and TERM."""


@dataclass(slots=True)
class _Job:
    matches: Matches
    found: list[SavedFile] = field(default_factory=list[SavedFile])


def by_itself(exit_code: int | None, reason: str) -> bool:
    """True when a job that is over left by its own will, and was not killed."""
    return exit_code is not None and exit_code not in _KILLED and not reason


class Saving:
    """What each job has saved, by the provider's reference."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def look(self, job_id: str, folder: Path, pattern: str | None, since: float, *, over: bool) -> list[SavedFile]:
        """All it has saved so far, the oldest first; it blocks on the disk.

        `since`: when it began (UTC seconds). `over`: it has ended by itself; one that was ended may have left a file
        half-written.
        """
        job = self._jobs.get(job_id) or self._jobs.setdefault(job_id, _Job(Matches(folder, pattern, since)))
        for name, look in job.matches.complete(last=over).items():
            job.matches.taken[name] = look
            # A name may be any bytes; what is reported has to be text.
            shown = os.fsencode(name).decode(errors="replace")
            job.found.append(SavedFile(shown, step_of(name), look.changed_ns / 1e9, folder / name, look.folder))
        return list(job.found)

    def forget(self, job_id: str) -> None:
        """Nobody asks for this one any more."""
        self._jobs.pop(job_id, None)
