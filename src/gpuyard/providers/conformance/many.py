"""The same attempt twice, a reply that was lost, and many jobs at once."""

import asyncio

from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.conformance.subject import STAY, Subject, case, need

_MANY = 50


async def check_same_attempt_once(subject: Subject) -> None:
    """An attempt submitted again (at once, while it runs, after its end) is the same
    job and runs once.
    """
    config = subject.job("import time; print('ran', flush=True); time.sleep(0.2)")
    first, second = await asyncio.gather(subject.submit(config), subject.submit(config))
    await subject.says(first)
    third = await subject.submit(config)
    result = await subject.ended(first)
    fourth = await subject.submit(config)
    assert {first, second, third, fourth} == {first}, (
        f"one attempt, one reference: {[first, second, third, fourth]}"
    )
    await subject.succeed(subject.job("pass"))
    assert await subject.provider.get_job_status(first) == result, (
        "submitting an ended attempt should change nothing"
    )
    log = await subject.provider.get_job_logs(first)
    assert log == "ran\n", f"the attempt should have run once: {log!r}"


async def check_lost_reply(subject: Subject) -> None:
    """A submission whose reply was lost is found by its attempt id, running or ended;
    one that never was is None.
    """
    provider = subject.provider
    need(
        subject.has_own("find_by_attempt"),
        f"{provider.PROVIDER_NAME} does not find attempts",
    )
    running = subject.job(STAY)
    over = subject.job("pass")
    jobs = {
        str(running.attempt_id): await subject.running(running),
        str(over.attempt_id): await subject.submit(over),
    }
    await subject.ended(jobs[str(over.attempt_id)])
    for attempt_id, job_id in jobs.items():
        found = await provider.find_by_attempt(attempt_id)
        assert found == job_id, (
            f"attempt {attempt_id} was submitted as {job_id!r}; {found!r} was found"
        )
    found = await provider.find_by_attempt(new_id("attempt"))
    assert found is None, (
        f"an attempt that was never submitted should not be found: {found!r}"
    )


async def check_fifty_at_once(subject: Subject) -> None:
    """50 jobs submitted at once all complete, once, each with its own output and
    exit.
    """
    configs = [
        subject.job("import sys; print('number', sys.argv[1])", str(number))
        for number in range(_MANY)
    ]
    jobs = await asyncio.gather(*map(subject.submit, configs))
    assert len(set(jobs)) == _MANY, (
        f"{_MANY} jobs should have {_MANY} references, not {len(set(jobs))}"
    )
    # One after the other: fifty who ask all the time would hold up what they wait for.
    results = [await subject.ended(job) for job in jobs]
    failed = [result for result in results if result.status is not JobStatus.COMPLETED]
    assert not failed, f"{len(failed)} of {_MANY} jobs did not complete: {failed[:3]}"
    logs = await asyncio.gather(*map(subject.provider.get_job_logs, jobs))
    assert logs == [f"number {number}\n" for number in range(_MANY)], (
        f"each job has its own output: {logs}"
    )


CASES = tuple(
    map(case, (check_same_attempt_once, check_lost_reply, check_fifty_at_once))
)
