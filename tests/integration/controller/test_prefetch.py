"""Short jobs are sent ahead of a free place: nothing runs twice, nothing is lost, and
what waits in vain comes back.
"""

import asyncio

import pytest

from gpuyard.controller import launching
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim is taken back because the test is slow."""
    monkeypatch.setattr(launching, "_LONGEST_PREFETCH_WAIT_S", 600)


async def warm(instance: Controlled) -> None:
    """Let the scheduler learn that these jobs are short, however slow the test is."""
    for _ in range(3):
        await instance.finish(await instance.submit(), exit_code=0, ran_s=0.001)
    await eventually(lambda: not instance.core.view.jobs)


async def waiting(instance: Controlled, count: int) -> list[str]:
    """Jobs of which so many wait on the host for a place, after all its places were
    taken.
    """
    await warm(instance)
    jobs = await instance.controller.requests.submit([{"command": ["true"]}] * 40)
    await eventually(
        lambda: len(instance.host.prefetched) >= count, "jobs to be sent ahead"
    )
    return jobs


async def test_they_take_over_one_after_the_other_without_the_server(
    instance: Controlled,
):
    jobs = await waiting(instance, 10)
    ran_before = len(instance.host.attempts)
    for attempt_id in [
        i for i, attempt in instance.host.attempts.items() if attempt.live
    ]:
        instance.host.ended(attempt_id, exit_code=0)
    assert len(instance.host.attempts) > ran_before, (
        "the next had to wait for the server"
    )
    await instance.end_all(jobs)
    assert {instance.job(job)["state"] for job in jobs} == {"completed"}
    assert {row["number"] for job in jobs for row in instance.attempts(job)} == {1}
    assert all(
        row["placements"][0]["cpus"] == 1.0
        for job in jobs
        for row in instance.attempts(job)
    )


async def test_one_that_waits_is_cancelled_at_once(instance: Controlled):
    await waiting(instance, 10)
    attempt_id = list(instance.host.prefetched)[3]
    job_id = instance.core.view.attempts[attempt_id].job_id
    await instance.cancel(job_id)
    assert (await instance.until(job_id))["state"] == "cancelled"
    assert instance.host.runs[attempt_id] == 0


async def test_what_waits_behind_jobs_that_became_long_comes_back(
    instance: Controlled, monkeypatch
):
    monkeypatch.setattr(launching, "_LONGEST_PREFETCH_WAIT_S", 0.05)
    await warm(instance)
    await instance.controller.requests.submit([{"command": ["true"]}] * 40)
    await eventually(
        lambda: instance.host.stops and not instance.core.view.prefetch_sites.waiting,
        "the claims to be taken back",
    )
    assert not instance.host.prefetched
    queued = [job for job in instance.core.view.jobs.values() if job.attempt_id is None]
    assert len(queued) == 36
    assert {job.failures for job in queued} == {0}


async def test_a_new_server_sends_them_anew(instance: Controlled):
    jobs = await waiting(instance, 10)
    await instance.restart()
    await eventually(
        lambda: len(instance.host.prefetched) >= 10, "prefetched attempts to wait again"
    )
    await instance.end_all(jobs)
    assert {instance.job(job)["state"] for job in jobs} == {"completed"}


async def test_a_place_that_fell_free_before_the_claim_arrived_is_given_to_it(
    instance: Controlled,
):
    await warm(instance)
    jobs = await instance.controller.requests.submit([{"command": ["true"]}] * 4)
    for job in jobs:
        await instance.begun(job)
    instance.host.hold_start = asyncio.Event()
    late = await instance.controller.requests.submit([{"command": ["true"]}])
    await eventually(lambda: instance.core.view.prefetch_sites.waiting, "a claim")
    await instance.finish(jobs[0])  # the next one is not there yet
    instance.host.hold_start.set()
    await instance.end_all([*jobs, *late])
    assert instance.job(late[0])["state"] == "completed"
