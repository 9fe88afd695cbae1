"""Ending jobs before they end themselves: cancel and timeout."""

from typing import Any

from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.jobspec import CheckpointSpec
from gpuyard.providers.conformance.subject import STAY, Subject, case


async def check_cancel_right_after_submit(subject: Subject) -> None:
    """A job cancelled in the moment of its submission does not run on."""
    job_id = await subject.submit(subject.job(STAY))
    live = await subject.provider.cancel_job(job_id)
    assert live is True, (
        f"cancel_job of a job just submitted should be True, not {live!r}"
    )
    _check_cancelled(await subject.ended(job_id))


async def check_cancel_while_running(subject: Subject) -> None:
    """A running job is ended by cancel; its output so far stays."""
    job_id = await subject.running(subject.job(STAY))
    live = await subject.provider.cancel_job(job_id)
    assert live is True, f"cancel_job of a running job should be True, not {live!r}"
    _check_cancelled(await subject.ended(job_id))
    log = await subject.provider.get_job_logs(job_id)
    assert log.startswith("here\n"), f"the log should stay: {log!r}"


async def check_cancel_twice(subject: Subject) -> None:
    """Cancelling again, before or after the end, is no error and changes nothing."""
    job_id = await subject.running(subject.job(STAY))
    await subject.provider.cancel_job(job_id)
    await subject.provider.cancel_job(job_id)
    result = await subject.ended(job_id)
    _check_cancelled(result)
    live = await subject.provider.cancel_job(job_id)
    assert live is False, f"cancel_job of an ended job should be False, not {live!r}"
    assert await subject.provider.get_job_status(job_id) == result, (
        "a cancel after the end should change nothing"
    )


async def check_cancel_after_the_end(subject: Subject) -> None:
    """A job that completed stays completed."""
    job_id = await subject.submit(subject.job("print('done')"))
    result = await subject.ended(job_id)
    live = await subject.provider.cancel_job(job_id)
    assert live is False, f"cancel_job of a completed job should be False, not {live!r}"
    assert await subject.provider.get_job_status(job_id) == result, (
        "a cancel after the end should change nothing"
    )


async def check_cancel_ends_children(subject: Subject) -> None:
    """A cancelled job leaves no process behind: what it started ends with it."""
    code = """
        import subprocess, sys, time
        child = "import time\\nwhile True: print('child', flush=True); time.sleep(0.02)"
        subprocess.Popen([sys.executable, "-c", child])
        while True:
            time.sleep(0.05)
        """
    job_id = await subject.running(subject.job(code))
    await subject.provider.cancel_job(job_id)
    _check_cancelled(await subject.ended(job_id))
    log = await subject.provider.get_job_logs(job_id)
    await subject.succeed(subject.job("import time; time.sleep(0.1)"))
    assert await subject.provider.get_job_logs(job_id) == log, (
        "a child of the job still writes after its end"
    )


async def check_cancel_the_stubborn(subject: Subject) -> None:
    """A job that ignores SIGTERM is killed once its grace is over."""
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("here", flush=True)
        while True:
            time.sleep(0.05)
        """
    job_id = await subject.running(subject.job(code, grace_s=0.5))
    await subject.provider.cancel_job(job_id)
    _check_cancelled(await subject.ended(job_id))


async def check_timeout(subject: Subject) -> None:
    """`timeout_minutes` ends a job that takes longer; the error says that it timed
    out.
    """
    job_id = await subject.submit(
        subject.job(STAY, timeout_minutes=subject.timeout_minutes, grace_s=0.5)
    )
    _check_timed_out(await subject.ended(job_id))


async def check_timeout_not_reached(subject: Subject) -> None:
    """A job that is faster than its timeout completes."""
    log = await subject.succeed(subject.job("print('in time')", timeout_minutes=60))
    assert log == "in time\n", f"the job should have run as ever: {log!r}"


async def check_timeout_checkpoint(subject: Subject) -> None:
    """Before a timeout ends a job, it gets its checkpoint signal and the grace to
    answer it.
    """
    code = """
        import signal, sys, time
        def save(*_):
            print("saving", flush=True)
            time.sleep(0.1)
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGUSR1, save)
        while True:
            time.sleep(0.05)
        """
    checkpoint = CheckpointSpec(signal="USR1", grace_s=subject.patience_s)
    fields: dict[str, Any] = {"checkpoint": checkpoint, "grace_s": checkpoint.grace_s}
    job_id = await subject.submit(
        subject.job(code, timeout_minutes=subject.timeout_minutes, **fields)
    )
    _check_timed_out(await subject.ended(job_id))
    log = await subject.provider.get_job_logs(job_id)
    assert log == "saving\nsaved\n", (
        f"the job should have seen its signal once, and had time to save: {log!r}"
    )


def _check_cancelled(result: JobResult) -> None:
    assert result.status is JobStatus.CANCELLED, f"the job was cancelled: {result}"
    assert result.completed_at is not None, f"a cancelled job has its end: {result}"


def _check_timed_out(result: JobResult) -> None:
    assert result.status is not JobStatus.COMPLETED, (
        f"a job that timed out has not completed: {result}"
    )
    assert "timed out" in (result.error_message or ""), (
        f"the error should say that it timed out: {result}"
    )


CASES = tuple(
    map(
        case,
        (
            check_cancel_right_after_submit,
            check_cancel_while_running,
            check_cancel_twice,
            check_cancel_after_the_end,
            check_cancel_ends_children,
            check_cancel_the_stubborn,
            check_timeout,
            check_timeout_not_reached,
            check_timeout_checkpoint,
        ),
    )
)
