"""What a jump of the wall clock of the server's host must not do, for any provider."""

import time

import pytest

from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import STAY

HOUR_S = 3600.0
_real_time = time.time


async def survive_a_jump(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    """The clock is put forward: a job with a limit of ten minutes goes on. It is put
    back: one with a short limit ends in time.
    """
    config = subject.job(STAY, timeout_minutes=10, grace_s=0.5)
    patient = await subject.running(config)
    _set_clock(patch, HOUR_S)
    await subject.provider.get_job_status(patient)
    # If that look had taken it for overdue, it would be over when another job is.
    await subject.succeed(subject.job("print('after the jump')"))
    result = await subject.provider.get_job_status(patient)
    assert result.status is JobStatus.RUNNING, f"ended by the clock: {result}"
    _set_clock(patch, 0)
    limit = subject.timeout_minutes
    overdue = await subject.submit(subject.job(STAY, timeout_minutes=limit))
    await subject.until(overdue, JobStatus.RUNNING)
    _set_clock(patch, -HOUR_S)
    result = await subject.ended(overdue)
    assert "timed out" in (result.error_message or ""), result


def _set_clock(patch: pytest.MonkeyPatch, off_s: float) -> None:
    """Let the wall clock of this process be off by so much."""
    patch.setattr(time, "time", lambda: _real_time() + off_s)
