"""The life of a job: its states, how it ends, and what is said of a job nobody
knows.
"""

import asyncio
import signal

from gpuyard.domain.errors import JobNotFoundError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.conformance.subject import STAY, Subject, case


async def check_completes(subject: Subject) -> None:
    """A job is pending, then running, then completed, never the other way; its times
    are in order.
    """
    job_id = await subject.submit(subject.job("pass"))
    result = await subject.provider.get_job_status(job_id)
    seen = [result.status]
    while not seen[-1].is_over:
        await asyncio.sleep(subject.pause_s)
        result = await subject.provider.get_job_status(job_id)
        if result.status is not seen[-1]:
            seen.append(result.status)
    order = [JobStatus.PENDING, JobStatus.RUNNING, JobStatus.COMPLETED]
    assert seen[-1] is JobStatus.COMPLETED, f"the job should complete: {result}"
    assert seen == [status for status in order if status in seen], (
        f"the states came in another order: {seen}"
    )
    assert result.job_id == job_id, f"the status of {job_id} speaks of {result.job_id}"
    assert result.exit_code == 0, f"a completed job has exit code 0: {result}"
    assert result.error_message is None, f"a completed job has no error: {result}"
    assert result.started_at is not None and result.completed_at is not None, (
        f"the times are missing: {result}"
    )
    assert result.completed_at >= result.started_at, (
        f"it ended before it started: {result}"
    )
    assert await subject.provider.get_job_status(job_id) == result, (
        "the status of an ended job should not change"
    )


async def check_exit_codes(subject: Subject) -> None:
    """Exit codes arrive as they are; only 0 is a success."""
    codes = (0, 1, 7, 255)
    jobs = [
        await subject.submit(
            subject.job("import sys; sys.exit(int(sys.argv[1]))", str(code))
        )
        for code in codes
    ]
    for code, job_id in zip(codes, jobs, strict=True):
        result = await subject.ended(job_id)
        assert result.exit_code == code, f"the job left with {code}: {result}"
        wanted = JobStatus.FAILED if code else JobStatus.COMPLETED
        assert result.status is wanted, f"exit code {code} means {wanted}: {result}"


async def check_killed_by_signal(subject: Subject) -> None:
    """A job killed by a signal has failed, and is told apart from one that left by
    itself.
    """
    result, _ = await subject.finish(subject.job("import os; os.kill(os.getpid(), 9)"))
    assert result.status is JobStatus.FAILED, f"a killed job has failed: {result}"
    told = result.exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL) or "KILL" in (
        result.error_message or ""
    )
    assert told, f"the result should say that it was SIGKILL: {result}"


async def check_unknown_id(subject: Subject) -> None:
    """Every call refuses a job it does not know with JobNotFoundError: the provider's
    name, code JOB_NOT_FOUND.
    """
    provider = subject.provider
    unknown = new_id("attempt")
    calls = (
        provider.get_job_status,
        provider.cancel_job,
        provider.get_job_logs,
        provider.get_cost_info,
    )
    for call in calls:
        try:
            answer = await call(unknown)
        except JobNotFoundError as error:
            _check_not_found(error, provider.PROVIDER_NAME, call.__name__)
        else:
            raise AssertionError(
                f"{call.__name__} should raise JobNotFoundError for {unknown!r}; it"
                f" said {answer!r}"
            )
    stream = provider.stream_logs(unknown, lines=None, follow=True)
    try:
        parts = [part async for part in stream]
    except JobNotFoundError as error:
        _check_not_found(error, provider.PROVIDER_NAME, "stream_logs")
    else:
        raise AssertionError(
            f"stream_logs should raise JobNotFoundError for {unknown!r}; it gave"
            f" {parts!r}"
        )


def _check_not_found(error: ProviderError, provider: str, call: str) -> None:
    assert error.provider == provider, (
        f"{call}: the error should name {provider}, not {error.provider!r}"
    )
    assert error.error_code == "JOB_NOT_FOUND", (
        f"{call}: the code should be JOB_NOT_FOUND, not {error.error_code!r}"
    )


async def check_retry(subject: Subject) -> None:
    """A job that failed runs again under a new attempt id, and both attempts stay
    apart: status, exit code, log.
    """
    code = "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))"
    first = subject.job(code, "first", "3")
    second = subject.job(code, "second", "0")
    one = await subject.submit(first)
    two = await subject.submit(second)
    assert one != two, f"two attempts should have two references: {one!r}"
    ends = [await subject.ended(job_id) for job_id in (one, two)]
    assert [end.exit_code for end in ends] == [
        3,
        0,
    ], f"the attempts left with 3 and 0: {ends}"
    logs = [await subject.provider.get_job_logs(job_id) for job_id in (one, two)]
    assert logs == ["first\n", "second\n"], f"each attempt has its own log: {logs}"


async def check_retry_count(subject: Subject) -> None:
    """`retry_count` runs a program that fails again, so often and not more; or it is
    refused, and the explanation names it.
    """
    config = subject.job("print('a try', flush=True); raise SystemExit(3)")
    config = config.model_copy(update={"retry_count": 1})
    try:
        result, log = await subject.finish(config)
    except ProviderError as error:
        assert "retry_count" in str(error), f"the error should name it: {error}"
        return
    assert (result.status, result.exit_code) == (
        JobStatus.FAILED,
        3,
    ), f"the last try left with 3: {result}"
    assert log == "a try\n" * 2, f"it should have run twice: {log!r}"


async def check_status_of_a_long_job(subject: Subject) -> None:
    """A running job stays running, with its start and no end."""
    job_id = await subject.running(subject.job(STAY))
    await subject.succeed(subject.job("pass"))
    result = await subject.provider.get_job_status(job_id)
    assert result.status is JobStatus.RUNNING, f"it still runs: {result}"
    assert result.started_at is not None, f"it has started: {result}"
    assert (result.completed_at, result.exit_code) == (
        None,
        None,
    ), f"it has not ended: {result}"


CASES = tuple(
    map(
        case,
        (
            check_completes,
            check_exit_codes,
            check_killed_by_signal,
            check_unknown_id,
            check_retry,
            check_retry_count,
            check_status_of_a_long_job,
        ),
    )
)
