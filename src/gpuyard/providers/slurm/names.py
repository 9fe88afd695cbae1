"""Which attempt each job of Slurm's is. Slurm forgets a job minutes after its end; whose it was stands in the spool."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuyard.providers.folder import AttemptFolder
from gpuyard.providers.slurm.site import Site
from gpuyard.providers.slurm.text import Row, is_job


class Names:
    """The jobs that are known, each with its attempt."""

    def __init__(self, site: Site, spool: Path) -> None:
        self._site = site
        self._spool = spool
        self.attempts: dict[str, str] = {}

    def folder(self, attempt_id: str) -> AttemptFolder:
        """Where the files of an attempt lie."""
        return AttemptFolder(self._spool, attempt_id)

    def _by_job(self, job_id: str) -> Path:
        return self._spool / "by-job" / job_id

    async def remember(self, jobs: Mapping[str, str]) -> None:
        """Each of these jobs is this attempt."""
        self.attempts |= jobs
        files = {self._by_job(job_id): attempt_id for job_id, attempt_id in jobs.items()}
        files |= {self.folder(attempt_id).job: job_id for job_id, attempt_id in jobs.items()}
        await self._site.write({path: text.encode() for path, text in files.items()})

    async def learn(self, job_ids: Sequence[str], rows: Mapping[str, Row]) -> None:
        """Which attempt each of these is, from Slurm, which knows only the array of one that is in an array, or from
        the spool."""
        unknown = [job_id for job_id in job_ids if job_id not in self.attempts and is_job(job_id)]
        told = {i: rows[i].attempt_id for i in unknown if i in rows and rows[i].attempt_id and not rows[i].index}
        self.attempts |= told
        paths = {self._by_job(job_id): job_id for job_id in unknown if job_id not in told}
        if paths:
            found = await self._site.read_all(list(paths))
            self.attempts |= {paths[path]: attempt_id.decode() for path, attempt_id in found.items()}

    async def attempt_of(self, job_id: str) -> str | None:
        """Whose it is; None when nobody knows."""
        await self.learn([job_id], {})
        return self.attempts.get(job_id)

    async def forget(self, job_id: str) -> None:
        """Let go of a job."""
        await self._site.remove(self._by_job(job_id))
        self.attempts.pop(job_id, None)
