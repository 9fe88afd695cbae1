"""Failures that are retried, and those that are not."""

from itertools import pairwise

import pytest

from gpuyard.domain.errors import ProviderError
from tests.support.controlled import RETRY_S, Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def requeued(instance: Controlled, job_id: str, failures: int) -> dict:
    """Wait until the ledger has counted so many failures; the event that told of the
    last one.
    """
    await eventually(
        lambda: instance.job(job_id)["failures"] == failures,
        f"failure {failures} to be counted",
    )
    events = instance.ledger.queries.events_after(0, 1000, job_id)
    return next(event for event in reversed(events) if event["kind"] == "job.requeued")


async def test_a_failing_job_is_tried_again_until_its_retries_are_used_up(
    instance: Controlled,
):
    job_id = await instance.submit(retry_count=3)
    for failures in range(1, 4):
        attempt_id = await instance.finish(job_id, exit_code=1)
        event = await requeued(instance, job_id, failures)
        # The wait doubles, up to its bound; it begins when the server hears of the end.
        assert event["info"]["not_before"] >= event["at"] + min(
            RETRY_S * 2 ** (failures - 1), 4 * RETRY_S
        )
        assert event["info"]["attempt_id"] == attempt_id
        await instance.begun(job_id)
    await instance.finish(job_id, exit_code=7)
    row = await instance.until(job_id)
    assert (
        row["state"],
        row["reason"],
        row["exit_code"],
        row["failures"],
        row["attempts"],
    ) == (
        "failed",
        "exit_code",
        7,
        3,
        4,
    )
    attempts = instance.attempts(job_id)
    assert [
        (attempt["number"], attempt["token"], attempt["exit_code"])
        for attempt in attempts
    ] == [(1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 4, 7)]
    assert all(
        after["created_at"] >= one["ended_at"] + RETRY_S * 0.99
        for one, after in pairwise(attempts)
    )


async def test_a_retry_that_succeeds_completes_the_job(instance: Controlled):
    job_id = await instance.submit(retry_count=5)
    await instance.finish(job_id, signal=9, reason="out_of_memory")
    await requeued(instance, job_id, 1)
    await instance.finish(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["failures"], row["reason"], row["exit_code"]) == (
        "completed",
        1,
        None,
        0,
    )
    assert [attempt["reason"] for attempt in instance.attempts(job_id)] == [
        "out_of_memory",
        None,
    ]


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        ({"reason": "command_not_found"}, "failed", "command_not_found"),
        ({"reason": "not_executable"}, "failed", "not_executable"),
        ({"reason": "workdir_missing"}, "failed", "workdir_missing"),
    ],
)
async def test_what_would_end_the_same_way_again_is_not_retried(
    instance: Controlled, outcome, state, reason
):
    job_id = await instance.submit(retry_count=3)
    await instance.finish(job_id, **outcome)
    row = await instance.until(job_id)
    assert (row["state"], row["reason"], row["attempts"]) == (state, reason, 1)


async def test_one_that_timed_out_goes_on_from_its_checkpoint_with_its_time_anew(
    instance: Controlled,
):
    job_id = await instance.submit(retry_count=1, timeout_s=60)
    content = await instance.save(job_id, "out/ckpt-1.pt")
    await instance.finish(job_id, stopped="timed_out", signal=15)
    await requeued(instance, job_id, 1)
    attempt_id = await instance.begun(job_id)
    order = instance.host.attempts[attempt_id].order
    assert order.resume_from is not None
    assert (order.resume_from.sha256, order.timeout_s) == (content, 60)
    await instance.finish(job_id, stopped="timed_out", signal=15)
    row = await instance.until(job_id)
    assert (row["state"], row["attempts"]) == ("timed_out", 2)


async def test_the_causes_of_retries_outlive_a_crash(instance: Controlled):
    job_id = await instance.submit(retry_count=3, retry_on="timeout, lost")
    await instance.begun(job_id)
    await instance.restart()
    await instance.finish(job_id, stopped="timed_out", signal=15)
    await requeued(instance, job_id, 1)
    await instance.finish(job_id, exit_code=1)
    row = await instance.until(job_id)
    assert (row["state"], row["reason"], row["attempts"]) == ("failed", "exit_code", 2)


async def test_while_one_waits_for_its_retry_another_runs(instance: Controlled):
    failing = await instance.submit(retry_count=1, resources={"cpus": 4})
    waiting = await instance.submit(resources={"cpus": 4})
    await instance.finish(failing, exit_code=1)
    await instance.begun(waiting)
    await instance.finish(waiting)
    await instance.until(waiting)
    await instance.finish(failing)
    assert (await instance.until(failing))["state"] == "completed"


async def test_a_refused_submission_is_a_failure_like_any_other(instance: Controlled):
    instance.host.refuse_with = ProviderError("busy", "fake", "SUBMIT_FAILED")
    # The next try may come before this test could take the refusal back.
    instance.host.refuse_times = 1
    job_id = await instance.submit(retry_count=1)
    await requeued(instance, job_id, 1)
    await instance.finish(job_id)
    assert (await instance.until(job_id))["state"] == "completed"
