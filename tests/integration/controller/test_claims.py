"""Short jobs are sent ahead of a free place: nothing runs twice, nothing is lost, and what waits in vain comes back."""

import asyncio

import pytest

from gpuyard.controller import launching
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def warm(yard: Controlled) -> None:
    """Let the scheduler learn that these jobs are short."""
    for _ in range(3):
        await yard.finish(await yard.submit())
    await eventually(lambda: not yard.core.view.jobs)


async def waiting(yard: Controlled, count: int) -> list[str]:
    """Jobs of which so many wait on the host for a place, after all its places were taken."""
    await warm(yard)
    jobs = await yard.controller.requests.submit([{"command": ["true"]}] * 40)
    await eventually(lambda: len(yard.host.window) >= count, "jobs to be sent ahead")
    return jobs


async def test_they_take_over_one_after_the_other_without_the_server(yard: Controlled):
    jobs = await waiting(yard, 10)
    ran_before = len(yard.host.attempts)
    for attempt_id in [i for i, attempt in yard.host.attempts.items() if attempt.live]:
        yard.host.ended(attempt_id, exit_code=0)
    assert len(yard.host.attempts) > ran_before, "the next had to wait for the server"
    await yard.end_all(jobs)
    assert {yard.job(job)["state"] for job in jobs} == {"completed"}
    assert {row["number"] for job in jobs for row in yard.attempts(job)} == {1}
    assert all(row["placements"][0]["cpus"] == 1.0 for job in jobs for row in yard.attempts(job))


async def test_one_that_waits_is_cancelled_at_once(yard: Controlled):
    await waiting(yard, 10)
    attempt_id = list(yard.host.window)[3]
    job_id = yard.core.view.attempts[attempt_id].job_id
    await yard.cancel(job_id)
    assert (await yard.until(job_id))["state"] == "cancelled"
    assert yard.host.runs[attempt_id] == 0


async def test_what_waits_behind_jobs_that_became_long_comes_back(yard: Controlled, monkeypatch):
    monkeypatch.setattr(launching, "_CLAIM_S", 0.05)
    await waiting(yard, 10)
    await eventually(lambda: not yard.core.view.sites.ahead, "the claims to be taken back")
    assert not yard.host.window
    queued = [job for job in yard.core.view.jobs.values() if job.attempt_id is None]
    assert len(queued) == 36
    assert {job.failures for job in queued} == {0}


async def test_a_new_server_sends_them_anew(yard: Controlled):
    jobs = await waiting(yard, 10)
    await yard.restart()
    await eventually(lambda: len(yard.host.window) >= 10, "the window to be filled again")
    await yard.end_all(jobs)
    assert {yard.job(job)["state"] for job in jobs} == {"completed"}


async def test_a_place_that_fell_free_before_the_claim_arrived_is_given_to_it(yard: Controlled):
    await warm(yard)
    jobs = await yard.controller.requests.submit([{"command": ["true"]}] * 4)
    for job in jobs:
        await yard.begun(job)
    yard.host.hold_start = asyncio.Event()
    late = await yard.controller.requests.submit([{"command": ["true"]}])
    await eventually(lambda: yard.core.view.sites.ahead, "a claim")
    await yard.finish(jobs[0])  # its successor is not there yet
    yard.host.hold_start.set()
    await yard.end_all([*jobs, *late])
    assert yard.job(late[0])["state"] == "completed"
