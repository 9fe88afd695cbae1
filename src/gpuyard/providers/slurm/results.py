"""The state of a job, from its row in Slurm and the files of its runner."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.providers.attempt_folder import AttemptFolder
from gpuyard.providers.runner_files import (
    BrokenFileError,
    Content,
    RunnerStart,
    plain,
    read_end,
    read_json,
    read_start,
)
from gpuyard.providers.slurm.records import ENDS, SlurmRow, explain_reason, hosts


def has_never_run(row: SlurmRow | None) -> bool:
    """True for a job that has never run, so that its folder has no new files."""
    if row is None or row.status is not JobStatus.PENDING:
        return False
    return row.reason not in ("", "BeginTime")


def result_of(
    job_id: str,
    row: SlurmRow | None,
    folder: AttemptFolder,
    files: Mapping[Path, Content],
) -> JobResult | None:
    """The state of a job; None when neither Slurm nor its folder knows it.

    A job whose files are broken has failed.
    """
    try:
        if folder.exit in files:
            return read_end(job_id, files[folder.exit])
        start = read_start(files.get(folder.started))
        return _unfinished(job_id, row, folder, files, start)
    except BrokenFileError as error:
        return error.result(job_id)


def _unfinished(
    job_id: str,
    row: SlurmRow | None,
    folder: AttemptFolder,
    files: Mapping[Path, Content],
    start: RunnerStart | None,
) -> JobResult | None:
    """The state of a job whose runner has written no end."""
    stop = read_json(files.get(folder.stop))
    stop_reason = str(stop.get("reason") or "")
    if row is None:
        return None if start else _cancelled_in_array(job_id, stop_reason)
    base = JobResult(
        job_id,
        row.status,
        started_at=start.at if start else None,
        node=hosts(row.nodes),
    )
    second_start = read_json(files.get(folder.again))
    is_pending = row.status is JobStatus.PENDING
    if second_start.get("job") == job_id or (start and is_pending):
        return _requeued(base, row)
    if is_pending:
        why = explain_reason(row.reason) or None
        return replace(base, reason=row.reason, error_message=why)
    if row.status is JobStatus.RUNNING:
        return _running(base, start)
    output = files.get(folder.messages, b"")
    shown = output.decode(errors="replace") if isinstance(output, bytes) else ""
    return _ended_by_slurm(base, row, stop_reason, plain(shown.strip()[-500:]))


def _cancelled_in_array(job_id: str, stop_reason: str) -> JobResult | None:
    """The end of an array job that was cancelled before it began.

    Slurm keeps no trace of it, as it does of a job outside an array.
    """
    if "_" not in job_id or stop_reason != Reason.CANCELLED:
        return None
    return JobResult(
        job_id, JobStatus.CANCELLED, reason=Reason.CANCELLED, completed_at=time.time()
    )


def _requeued(base: JobResult, row: SlurmRow) -> JobResult:
    why = explain_reason(row.reason) or row.state
    return replace(
        base,
        status=JobStatus.FAILED,
        reason=Reason.PREEMPTED,
        error_message=f"Slurm took it off its node and queued it again ({why})",
        completed_at=time.time(),
    )


def _running(base: JobResult, start: RunnerStart | None) -> JobResult:
    """It runs once its runner has said so; before that it is still pending."""
    if start is None:
        return replace(base, status=JobStatus.PENDING)
    node = start.host or base.node
    return replace(base, status=JobStatus.RUNNING, gpus=start.gpus, node=node)


def removed_from_array(job_id: str) -> JobResult:
    """The end of an array job that never began, and that Slurm no longer lists."""
    return JobResult(
        job_id,
        JobStatus.FAILED,
        reason=Reason.PREEMPTED,
        completed_at=time.time(),
        error_message="somebody took it out of its array before it began",
    )


def _ended_by_slurm(
    base: JobResult, row: SlurmRow, stop_reason: str, output: str
) -> JobResult:
    """The end of a job whose runner wrote none.

    The runner was never started, or was killed.
    """
    ended_at = row.ended_at or time.time()
    if row.status is JobStatus.COMPLETED:
        return replace(
            base,
            status=JobStatus.UNKNOWN,
            error_message="it ended, and left no exit code",
        )
    reason = ENDS.get(row.state, "")
    if reason == Reason.CANCELLED and stop_reason == Reason.CANCELLED:
        return replace(
            base,
            status=JobStatus.CANCELLED,
            reason=Reason.CANCELLED,
            completed_at=ended_at,
        )
    if reason == Reason.CANCELLED:
        reason = Reason.PREEMPTED
    message = f"Slurm: {row.state}"
    if reason == Reason.TIMED_OUT:
        message = "timed out"
    elif output:
        message = f"{message}: {output}"
    code = -row.signal if row.signal else row.exit_code
    # The runner itself exits with 0. Any other code of it is not the job's own.
    exit_code = code if code and not reason else None
    return replace(
        base,
        status=JobStatus.FAILED,
        reason=reason or Reason.EXIT_STATUS_LOST,
        completed_at=ended_at,
        error_message=message,
        exit_code=exit_code,
    )
