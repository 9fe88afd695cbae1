"""The state of jobs, from Slurm's queue, its accounting and the runners' files."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.providers.runner_files import Content
from gpuyard.providers.shared_call import SharedCall
from gpuyard.providers.slurm.client import SlurmClient
from gpuyard.providers.slurm.job_index import JobIndex
from gpuyard.providers.slurm.records import SlurmRow, unlisted_jobs
from gpuyard.providers.slurm.results import (
    has_never_run,
    removed_from_array,
    result_of,
)
from gpuyard.providers.slurm.scripts import SlurmScripts
from gpuyard.providers.slurm.site import SlurmSite

# A stopped job is killed this long after twice its grace.
_FORCE_S = 15.0
# An array job that Slurm has not listed for this long is given up.
_UNLISTED_S = 15.0
_UNWANTED = (Reason.PREEMPTED, Reason.BROKEN_FILE)


class SlurmPolling:
    """Finds the state of jobs, and ends those that must not run on."""

    def __init__(
        self,
        slurm: SlurmClient,
        site: SlurmSite,
        jobs: JobIndex,
        scripts: SlurmScripts,
        queue: SharedCall[list[SlurmRow]],
    ) -> None:
        self._slurm = slurm
        self._site = site
        self._jobs = jobs
        self._scripts = scripts
        self._queue = queue
        self._force_at: dict[str, float] = {}
        self._unlisted_since: dict[str, float] = {}

    def force_after(self, job_id: str, grace_s: float) -> None:
        """Kill the job when it outlives its grace."""
        self._force_at.setdefault(job_id, time.monotonic() + 2 * grace_s + _FORCE_S)

    async def poll(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """The state of each known job. One `squeue` lists all jobs in the queue."""
        rows = {row.job_id: row for row in await self._queue()}
        await self._jobs.look_up(job_ids, rows)
        known = [job_id for job_id in job_ids if job_id in self._jobs.attempts]
        await self._scripts.note(known, rows)
        begun = [job_id for job_id in known if not has_never_run(rows.get(job_id))]
        files = await self._read_files(begun)
        await self._add_missing_rows(rows, known, files)
        await self._look_again(rows, known, files)
        results: dict[str, JobResult | None] = {}
        for job_id in known:
            folder = self._jobs.job_folder(job_id)
            results[job_id] = result_of(job_id, rows.get(job_id), folder, files)
        await self._cancel_unwanted(rows, results)
        await self._give_up_unlisted(results, files)
        return {
            job_id: result for job_id, result in results.items() if result is not None
        }

    async def _read_files(self, job_ids: Iterable[str]) -> Mapping[Path, Content]:
        paths: list[Path] = []
        for job_id in job_ids:
            folder = self._jobs.job_folder(job_id)
            paths += [folder.exit, folder.started, folder.stop]
            paths += [folder.again, folder.messages]
        return await self._site.read_all(paths) if paths else {}

    async def _add_missing_rows(
        self,
        rows: dict[str, SlurmRow],
        job_ids: Sequence[str],
        files: Mapping[Path, Content],
    ) -> None:
        """Add the rows of jobs that have left the queue, or are not listed singly."""
        unlisted = [job_id for job_id in job_ids if job_id not in rows]
        gone = [
            job_id
            for job_id in unlisted
            if self._jobs.job_folder(job_id).exit not in files
        ]
        if gone:
            rows |= {row.job_id: row for row in await self._slurm.gone(gone)}
        for job_id in job_ids:
            others = unlisted_jobs(job_id)
            if job_id not in rows and others in rows:
                rows[job_id] = rows[others]

    async def _look_again(
        self,
        rows: dict[str, SlurmRow],
        job_ids: Sequence[str],
        files: Mapping[Path, Content],
    ) -> None:
        """Correct the rows of jobs that began after Slurm had said that they wait.

        Only a job that waits now, although it has begun, was queued again.
        """
        begun: list[str] = []
        for job_id in job_ids:
            row = rows.get(job_id)
            waits = row is not None and row.status is JobStatus.PENDING
            if waits and self._jobs.job_folder(job_id).started in files:
                begun.append(job_id)
        if not begun:
            return
        newer = {row.job_id: row for row in await self._queue()}
        for job_id in begun:
            row = newer.get(job_id) or newer.get(unlisted_jobs(job_id))
            if row is None or row.status is not JobStatus.PENDING:
                # If it has ended since, its files are read at the next poll.
                rows[job_id] = replace(row or rows[job_id], state="RUNNING")

    async def _cancel_unwanted(
        self, rows: Mapping[str, SlurmRow], results: Mapping[str, JobResult | None]
    ) -> None:
        """Cancel jobs that Slurm has queued again, those past their grace, and those
        that have broken their files.
        """
        for job_id, result in results.items():
            row = rows.get(job_id)
            is_in_slurm = row is not None and row.status.is_live
            is_over = False
            is_unwanted = False
            if result is not None and not result.status.is_live:
                is_over = True
                is_unwanted = result.reason in _UNWANTED
            force_at = self._force_at.get(job_id, float("inf"))
            is_overdue = not is_over and time.monotonic() >= force_at
            if is_in_slurm and (is_unwanted or is_overdue):
                await self._slurm.cancel(job_id)
            if is_over or row is None:
                self._force_at.pop(job_id, None)

    async def _give_up_unlisted(
        self, results: dict[str, JobResult | None], files: Mapping[Path, Content]
    ) -> None:
        """Give up array jobs that Slurm does not list and that never began.

        An answer may leave a job out for a moment. A job that is given up is cancelled
        too, so that it cannot begin later.
        """
        for job_id, result in results.items():
            has_begun = self._jobs.job_folder(job_id).started in files
            if result is not None or "_" not in job_id or has_begun:
                self._unlisted_since.pop(job_id, None)
                continue
            since = self._unlisted_since.setdefault(job_id, time.monotonic())
            results[job_id] = JobResult(
                job_id,
                JobStatus.PENDING,
                reason="NotListed",
                error_message="Slurm lists it not",
            )
            if time.monotonic() - since >= _UNLISTED_S:
                await self._slurm.cancel(job_id)
                results[job_id] = removed_from_array(job_id)
