"""A program that finds no GPU, because its job asked for none."""

from typing import Any

import pytest

from gpuyard.domain import wire
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio
LINE = "Using cpu device"


async def warned(instance: Controlled, **fields: Any) -> tuple[str, list[str]]:
    """A job whose program says twice that it found no GPU, and its warnings."""
    await instance.provider.join("node_1")  # tells the GPUs of the host
    job_id = await instance.submit(**fields)
    await instance.until(job_id, "running")
    for _ in range(2):
        await instance.on_host(
            job_id, lambda host, i: host.say(wire.ProgressSeen(i, {}, [], LINE))
        )
    await instance.settled()
    return job_id, instance.job(job_id)["warnings"] or []


async def test_its_owner_is_told_once(instance: Controlled) -> None:
    instance.host.gpu_count = 1
    job_id, (warning,) = await warned(instance)
    assert warning.startswith(f"its program found no GPU ({LINE!r})")
    journal = instance.ledger.queries.events_after(0, 1000)
    (event,) = [row for row in journal if row["kind"] == "job.on_cpu"]
    assert (event["job_id"], event["info"]["printed"]) == (job_id, LINE)


async def test_nobody_is_told_who_wants_none(instance: Controlled) -> None:
    instance.host.gpu_count = 1
    _, warnings = await warned(instance, resources={"gpus": 0})
    assert warnings == []


async def test_nobody_is_told_where_no_gpu_is(instance: Controlled) -> None:
    _, warnings = await warned(instance)
    assert warnings == []
