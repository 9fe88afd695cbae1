"""A limit for the points of metrics that are stored of a job."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuyard.domain import wire
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


@pytest.fixture
async def instance(tmp_path: Path) -> AsyncIterator[Controlled]:
    made = Controlled(tmp_path, jobs={"metric_points": 10})
    await made.start()
    yield made
    await made.settled()
    made.check()
    await made.stop()


async def say(instance: Controlled, job_id: str, name: str, *numbers: int) -> None:
    points = [wire.SeriesPoint(name, n, n, float(n), 1.0) for n in numbers]
    await instance.on_host(
        job_id, lambda host, i: host.say(wire.ProgressSeen(i, {}, points, None))
    )
    await instance.settled()


def stored(instance: Controlled, job_id: str) -> dict[str, list[float]]:
    series = instance.ledger.queries.series(job_id)
    return {name: [row["value"] for row in rows] for name, rows in series.items()}


async def test_beyond_the_limit_the_first_points_stay_and_the_owner_is_told_once(
    instance: Controlled,
):
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    await say(instance, job_id, "loss", *range(6))
    # An agent that starts again reads the log again.
    await say(instance, job_id, "loss", *range(8))
    assert not instance.job(job_id)["warnings"]
    await instance.restart()
    await say(instance, job_id, "accuracy", 0, 1, 2)
    kept = {"loss": [*range(8)], "accuracy": [0, 1]}
    assert stored(instance, job_id) == kept
    await say(instance, job_id, "loss", 7, 8, 9)
    await instance.restart()
    await say(instance, job_id, "accuracy", 1, 2, 3)
    assert stored(instance, job_id) == kept
    (warning,) = instance.job(job_id)["warnings"]
    assert warning.startswith("its metrics have reached the limit of 10 points")
    assert instance.notes.count(("job.warning", job_id)) == 1
    await instance.finish(job_id)
    await instance.until(job_id)


async def test_a_number_that_is_left_out_makes_no_room_for_more(instance: Controlled):
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    await say(instance, job_id, "loss", 1_000_000, 4, *range(1000))
    assert stored(instance, job_id) == {"loss": [*map(float, range(10))]}
    await instance.finish(job_id)
