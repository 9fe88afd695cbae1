"""Which attempt each Slurm job runs.

Slurm forgets a job minutes after its end, so the spool has a file for each job.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuyard.providers.attempt_folder import AttemptFolder
from gpuyard.providers.runner_files import Content
from gpuyard.providers.slurm.records import SlurmRow, is_job_id
from gpuyard.providers.slurm.site import SlurmSite

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class JobIndex:
    """The known jobs; `attempts` has the attempt of each."""

    def __init__(self, site: SlurmSite, spool: Path) -> None:
        self._site = site
        self._spool = spool
        self.attempts: dict[str, str] = {}

    def folder(self, attempt_id: str) -> AttemptFolder:
        """The folder of an attempt."""
        return AttemptFolder(self._spool, attempt_id)

    def job_folder(self, job_id: str) -> AttemptFolder:
        """The folder of a known job's attempt."""
        return self.folder(self.attempts[job_id])

    def _by_job(self, job_id: str) -> Path:
        return self._spool / "by-job" / job_id

    async def add(self, jobs: Mapping[str, str]) -> None:
        """Note the attempt of each of these jobs, here and in the spool."""
        self.attempts.update(jobs)
        files: dict[Path, bytes] = {}
        for job_id, attempt_id in jobs.items():
            files[self._by_job(job_id)] = attempt_id.encode()
        for job_id, attempt_id in jobs.items():
            files[self.folder(attempt_id).job] = job_id.encode()
        await self._site.write(files)

    async def look_up(
        self, job_ids: Sequence[str], rows: Mapping[str, SlurmRow]
    ) -> None:
        """Find the attempt of each of these jobs, in Slurm's rows or in the spool.

        The row of a job in an array names the array, not the attempt.
        """
        paths: dict[Path, str] = {}
        for job_id in job_ids:
            if job_id in self.attempts or not is_job_id(job_id):
                continue
            row = rows.get(job_id)
            if row and not row.index and is_id(row.attempt_id):
                self.attempts[job_id] = row.attempt_id
            else:
                paths[self._by_job(job_id)] = job_id
        if paths:
            found = await self._site.read_all(list(paths))
            for path, content in found.items():
                attempt_id = text_of(content)
                if is_id(attempt_id):
                    self.attempts[paths[path]] = attempt_id

    async def attempt_of(self, job_id: str) -> str | None:
        """The attempt of a job; None when it is unknown."""
        await self.look_up([job_id], {})
        return self.attempts.get(job_id)

    async def forget(self, job_id: str) -> None:
        """Remove a job."""
        await self._site.remove(self._by_job(job_id))
        self.attempts.pop(job_id, None)


def is_id(text: str) -> bool:
    """Whether this may be the id of an attempt or an array, by which its folder is
    named. Jobs can write where ids are read from, and folders are removed.
    """
    return _ID.fullmatch(text) is not None


def text_of(content: Content | None) -> str:
    """The text of a small file; empty when there is none that can be read."""
    return content.decode(errors="replace") if isinstance(content, bytes) else ""
