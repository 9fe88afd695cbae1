"""How a job is, from what Slurm says of it and what its runner has left in its folder."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.providers.folder import AttemptFolder, ended, read_json
from gpuyard.providers.slurm import text
from gpuyard.providers.slurm.text import Row


def waits(row: Row | None) -> bool:
    """True for one that has never run, so that its folder holds nothing new."""
    return row is not None and row.status is JobStatus.PENDING and row.reason not in ("", "BeginTime")


def result_of(
    job_id: str, row: Row | None, folder: AttemptFolder, files: Mapping[Path, bytes]
) -> JobResult | None:  # fmt: skip
    """What both say of a job; None when neither knows it."""
    if folder.exit in files:
        return ended(job_id, read_json(files[folder.exit]))
    began, told = read_json(files.get(folder.started)), read_json(files.get(folder.stop))
    if row is None:
        # One of an array that has not begun leaves no trace when it is cancelled, while a job of its own does.
        ours = not began and "_" in job_id and told.get("reason") == "cancelled"
        return JobResult(job_id, JobStatus.CANCELLED, reason="cancelled", completed_at=time.time()) if ours else None
    base = JobResult(job_id, row.status, started_at=began.get("at"), node=text.hosts(row.nodes))
    again = read_json(files.get(folder.again)).get("job") == job_id
    if again or (began and row.status is JobStatus.PENDING):
        message = f"Slurm took it off its node and queued it again ({text.say_reason(row.reason) or row.state})"
        return replace(base, status=JobStatus.FAILED, reason="preempted", error_message=message,
                       completed_at=time.time())  # fmt: skip
    if row.status is JobStatus.PENDING:
        return replace(base, reason=row.reason, error_message=text.say_reason(row.reason) or None)
    if row.status is JobStatus.RUNNING:
        running = JobStatus.RUNNING if began else JobStatus.PENDING
        return replace(base, status=running, gpus=tuple(began.get("gpus", ())), node=began.get("host", base.node))
    said = files.get(folder.messages, b"").decode(errors="replace").strip()
    return _ended_by_slurm(base, row, str(told.get("reason") or ""), said[-500:])


def taken_out(job_id: str) -> JobResult:
    """Of an array, and nobody knows it any more, though it has not begun."""
    return JobResult(job_id, JobStatus.FAILED, reason="preempted", completed_at=time.time(),
                     error_message="somebody took it out of its array before it began")  # fmt: skip


def _ended_by_slurm(base: JobResult, row: Row, told: str, said: str) -> JobResult:
    """Slurm says that it is over, and the runner has left no word: it was never started, or killed itself."""
    done = row.ended_at or time.time()
    if row.status is JobStatus.COMPLETED:
        return replace(base, status=JobStatus.UNKNOWN, error_message="it ended, and left no exit code")
    reason = text.ENDS.get(row.state, "")
    if reason == "cancelled":
        if told == "cancelled":
            return replace(base, status=JobStatus.CANCELLED, reason="cancelled", completed_at=done)
        reason = "preempted"
    message = "timed out" if reason == "timed_out" else f"Slurm: {row.state}{f': {said}' if said else ''}"
    code = -row.signal if row.signal else row.exit_code
    # The runner itself leaves with 0: any other end of it says nothing of the job's own.
    return replace(base, status=JobStatus.FAILED, reason=reason or "exit_status_lost", completed_at=done,
                   error_message=message, exit_code=None if reason or not code else code)  # fmt: skip
