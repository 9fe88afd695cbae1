"""Quotas at submission, and usage that outlives the server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.domain.errors import RefusedError
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {
    "scheduler": {"policy": "fair"},
    "fair_share": {
        "half_life": "365d",
        "organisations": {"physics": {"shares": 2}},
        "projects": {
            "vision": {
                "organisation": "physics",
                "shares": 3,
                "users": {"ana": {"shares": 2}},
            }
        },
    },
    "quotas": {
        "users": {
            "default": {
                "queued_jobs": 3,
                "running_gpus": 2,
                "gpu_hours_per_month": 1000,
            }
        },
        "projects": {"vision": {"queued_jobs": 1}},
    },
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def instance(tmp_path: Path) -> AsyncIterator[Controlled]:
    made = Controlled(tmp_path, **SETTINGS)
    made.host.gpu_count = 4
    await made.start()
    yield made
    await made.settled()
    made.check()
    await made.stop()


async def held(instance: Controlled, **fields: Any) -> str:
    return await instance.submit(held=True, **fields)


async def test_jobs_over_the_quota_of_queued_jobs_are_refused_as_a_whole(
    instance: Controlled,
):
    await held(instance, project="vision")
    with pytest.raises(RefusedError) as refused:
        await held(instance, project="vision")
    assert str(refused.value) == (
        "The project vision may have 1 job queued at once (the quota queued_jobs), has"
        " 1, and submits 1 job more. Wait until some have started or cancel some; an"
        " administrator can raise the quota in the settings."
    )
    await held(instance)
    body = {"command": ["true"], "held": True}
    with pytest.raises(RefusedError, match=r"has 2, and submits 2 jobs more"):
        await instance.controller.requests.submit([body, body])
    with pytest.raises(RefusedError, match=r"The owner of this instance may have 3"):
        await instance.controller.requests.arrays.create({**body, "array": "0-1"})
    await instance.restart()
    last = await held(instance)
    with pytest.raises(RefusedError, match="has 3"):
        await held(instance)
    await instance.cancel(last)
    await held(instance)


async def test_a_job_that_no_quota_would_ever_let_run_is_refused(instance: Controlled):
    with pytest.raises(RefusedError, match="asks for 3 GPUs, and the owner of this"):
        await held(instance, resources={"gpus": {"count": 3}})


async def test_what_was_used_is_known_after_a_restart(instance: Controlled):
    """Of organisations, of projects that have shares, and of users."""
    job_id = await instance.submit(project="vision")
    await instance.on_host(job_id, lambda host, i: host.started(i))
    await instance.until(job_id, "running")
    await instance.on_host(
        job_id, lambda host, i: host.ended(i, exit_code=0, ran_s=3600.0)
    )
    await instance.until(job_id)
    before = used(instance)
    assert before[0] == before[1] == before[3] > 0
    await instance.restart()
    assert used(instance) == pytest.approx(before, rel=0.01)
    instance.core.reload()
    assert used(instance) == pytest.approx(before, rel=0.01)


def used(instance: Controlled) -> tuple[float, ...]:
    """By the project, by its user, by the user in all, and by the organisation, in GPU
    seconds.
    """
    usage = instance.core.view.usage
    now = instance.core.clock()
    by_user, _ = usage.gpu_seconds(("", ""), now)
    by_organisation = usage.of_organisation("physics", now)
    return (*usage.gpu_seconds(("vision", ""), now), by_user, by_organisation)


async def test_what_was_used_in_this_month_is_known_after_a_restart(
    instance: Controlled,
):
    job_id = await instance.submit(project="vision", resources={"gpus": {"count": 2}})
    await instance.on_host(job_id, lambda host, i: host.started(i))
    await instance.until(job_id, "running")
    began = instance.core.clock()
    await instance.on_host(
        job_id, lambda host, i: host.ended(i, exit_code=0, ran_s=9.0)
    )
    await instance.until(job_id)
    month = instance.core.view.usage.month
    # The month may have begun a moment ago.
    expected = 2 * 9.0 if began >= month.begins_at else 0.0
    for whose in (("user", ""), ("project", "vision")):
        assert month.settled[whose] == pytest.approx(expected, abs=0.1)
    await instance.restart()
    month = instance.core.view.usage.month
    for whose in (("user", ""), ("project", "vision")):
        assert month.settled[whose] == pytest.approx(expected, abs=0.1)


async def test_the_estimate_tells_what_comes_before(instance: Controlled):
    job = msgspec.Raw(b'{"command":["true"]}')
    found = await instance.controller.requests.estimate(job, None)
    assert (found.ahead, found.in_the_way) == (0, "")
