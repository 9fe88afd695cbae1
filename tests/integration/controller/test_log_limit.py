"""A job whose log has reached its limit."""

import pytest

from gpuyard.domain import wire
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


async def test_its_owner_is_told_once(
    instance: Controlled,
) -> None:
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    for _ in range(2):
        await instance.on_host(
            job_id, lambda host, i: host.say(wire.UsageSeen(i, [], 0.5))
        )
    await instance.settled()
    (warning,) = instance.job(job_id)["warnings"]
    assert warning.startswith("its log has reached its limit of 512 MB")
    assert instance.notes.count(("job.log_limited", job_id)) == 1
