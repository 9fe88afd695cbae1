"""One job's way through the controller, and what it leaves in the ledger."""

from decimal import Decimal

import pytest

from gpuyard.domain.errors import ProviderError
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def test_a_job_is_queued_launched_run_and_done(instance: Controlled):
    job_id = await instance.submit(
        name="train", environment={"A": "b"}, resources={"cpus": 2}
    )
    # It fits, so it was intended in the same commit.
    assert instance.job(job_id)["state"] in ("assigned", "running")
    attempt_id = await instance.begun(job_id)
    order = instance.host.attempts[attempt_id].order
    assert (order.name, order.command, order.environment, order.gpu_spec.vcpus) == (
        "train",
        ("true",),
        {"A": "b"},
        2,
    )
    assert (order.attempt_id, order.token, order.job_id) == (
        attempt_id,
        1,
        job_id,
    )
    await instance.until(job_id, "running")
    await instance.finish(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["exit_code"], row["reason"], row["attempt_id"]) == (
        "completed",
        0,
        None,
        None,
    )
    (attempt,) = instance.attempts(job_id)
    assert (attempt["state"], attempt["provider_ref"], attempt["limits"]) == (
        "ended",
        f"fake/{attempt_id}",
        {"memory": "cgroup"},
    )
    assert row["started_at"] == attempt["started_at"]


async def test_what_happened_is_told_in_order_and_after_the_commit(
    instance: Controlled,
):
    told: list[tuple[str, str]] = []
    instance.core.listeners.append(
        lambda _, events: told.extend(
            (e.kind.value, instance.job(e.job_id)["state"]) for e in events if e.job_id
        )
    )
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    await instance.finish(job_id)
    await instance.until(job_id)
    assert [kind for kind, _ in told] == [
        "job.submitted",
        "attempt.intended",
        "attempt.sent",
        "attempt.started",
        "job.completed",
    ]
    assert told[-1][1] == "completed"


async def test_an_attempt_costs_its_seconds_at_the_price_of_its_day(
    instance: Controlled,
):
    job_id = await instance.submit(tier="CPU_LARGE")
    await instance.until(job_id, "running")
    await instance.finish(job_id)
    await instance.until(job_id)
    (attempt,) = instance.attempts(job_id)
    seconds = Decimal(str(round(attempt["ended_at"] - attempt["started_at"], 6)))
    assert (attempt["tier"], attempt["price_per_hour"], attempt["currency"]) == (
        "CPU_LARGE",
        "0.0416",
        "USD",
    )
    assert Decimal(attempt["cost"]) == (Decimal("0.0416") * seconds / 3600).quantize(
        Decimal("0.000001")
    )


async def test_jobs_share_a_host_and_the_next_starts_when_one_is_done(
    instance: Controlled,
):
    ids = [await instance.submit(resources={"cpus": 2}) for _ in range(3)]
    for job_id in ids[:2]:
        await instance.until(job_id, "running")
    assert instance.job(ids[2])["state"] == "queued"
    why = instance.controller.requests.why(ids[2])
    assert why is not None
    assert "in use" in why.summary
    await instance.finish(ids[0])
    await instance.until(ids[2], "running")
    for job_id in ids[1:]:
        await instance.finish(job_id)
        await instance.until(job_id)


async def test_every_gpu_is_given_out_once(instance: Controlled):
    instance.host.gpu_count = 2
    await instance.provider.join("node_1")
    ids = [await instance.submit(resources={"gpus": {"count": 1}}) for _ in range(4)]
    for job_id in ids:
        await instance.finish(job_id)
        await instance.until(job_id)
    assert {
        attempt["placements"][0]["gpu_uuids"][0]
        for i in ids
        for attempt in instance.attempts(i)
    } == {
        "GPU-node_1-0",
        "GPU-node_1-1",
    }


async def test_many_jobs_at_once_all_end_once(instance: Controlled):
    ids = await instance.controller.requests.submit(
        [{"command": ["true"], "name": f"n{n}"} for n in range(40)]
    )
    for job_id in ids:
        await instance.finish(job_id)
    for job_id in ids:
        assert (await instance.until(job_id))["state"] == "completed"
    assert sum(instance.host.runs.values()) == 40


async def test_an_end_before_its_start_was_told_is_an_end(instance: Controlled):
    instance.host.obedient = False
    job_id = await instance.submit()
    await instance.finish(
        job_id, reason="command_not_found", message="nosuch: not found"
    )
    row = await instance.until(job_id)
    assert (row["state"], row["reason"], row["started_at"]) == (
        "failed",
        "command_not_found",
        None,
    )
    assert instance.attempts(job_id)[0]["message"] == "nosuch: not found"


async def test_reports_that_come_twice_change_nothing(instance: Controlled):
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    first = instance.job(job_id), instance.attempts(job_id)
    await instance.on_host(job_id, lambda host, i: host.started(i))
    assert (instance.job(job_id), instance.attempts(job_id)) == first
    attempt_id = await instance.finish(job_id)
    await instance.until(job_id)
    after = instance.job(job_id), instance.attempts(job_id)
    instance.host.ended(attempt_id, exit_code=9)
    instance.host.say(instance.host.outbox[-1].body)
    await instance.provider.deliver("node_1")
    assert (instance.job(job_id), instance.attempts(job_id)) == after
    assert instance.host.outbox == []


async def test_a_provider_that_refuses_fails_the_attempt_with_its_words(
    instance: Controlled,
):
    instance.host.refuse_with = ProviderError(
        "the image is gone", "fake", "SUBMIT_FAILED"
    )
    job_id = await instance.submit()
    row = await instance.until(job_id)
    assert (row["state"], row["reason"]) == ("failed", "submit_failed")
    assert instance.attempts(job_id)[0]["message"] == "the image is gone"


async def test_its_output_is_read_over_its_attempts(instance: Controlled):
    job_id = await instance.submit(retry_count=1)
    await instance.until(job_id, "running")
    for text, code in ((b"one\n", 1), (b"two\n", 0)):
        attempt_id = await instance.begun(job_id)
        instance.host.attempts[attempt_id].log = text
        await instance.finish(job_id, exit_code=code)
    await eventually(lambda: instance.job(job_id)["state"] == "completed")
