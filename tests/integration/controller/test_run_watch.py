"""A run that looks wrong: its owner is told once, also by the next server."""

import pytest

from gpuyard.domain import wire
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


async def say(instance: Controlled, job_id: str, *messages: wire.ProgressSeen) -> None:
    for message in messages:
        await instance.on_host(
            job_id,
            lambda host, i, said=message: host.say(
                wire.ProgressSeen(i, {}, said.points, None, said.not_finite)
            ),
        )
    await instance.settled()


def warned(instance: Controlled, job_id: str) -> list[str]:
    return instance.job(job_id)["warnings"] or []


async def running(instance: Controlled) -> str:
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    return job_id


async def test_a_loss_that_is_no_number_is_told_once(instance: Controlled) -> None:
    job_id = await running(instance)
    nan = wire.ProgressSeen("", {}, [], None, "loss is nan at step 7")
    later = wire.ProgressSeen("", {}, [], None, "loss is inf at step 9")
    await say(instance, job_id, nan, nan, later)
    (warning,) = warned(instance, job_id)
    assert warning.startswith("its loss is no number: loss is nan at step 7.")
    journal = instance.ledger.queries.events_after(0, 1000)
    (event,) = [row for row in journal if row["kind"] == "job.warning"]
    assert event["job_id"] == job_id
    assert event["info"]["topic"] == "loss_not_finite"


async def test_curves_are_watched(instance: Controlled) -> None:
    job_id = await running(instance)
    rises = [
        wire.SeriesPoint("loss", n, n, 1.0 if n < 20 else 5.0, float(n))
        for n in range(60)
    ]
    await say(instance, job_id, wire.ProgressSeen("", {}, rises))
    (warning,) = warned(instance, job_id)
    assert warning.startswith("its loss rises: loss is 5 at step 59, and was 1 at step")


async def test_a_gpu_that_does_nothing_is_told(instance: Controlled) -> None:
    job_id = await running(instance)
    idle = [
        wire.SeriesPoint("system/gpu0_utilization", n, None, 0.0, 10.0 * n)
        for n in range(60)
    ]
    await instance.on_host(job_id, lambda host, i: host.say(wire.UsageSeen(i, idle)))
    await instance.settled()
    (warning,) = warned(instance, job_id)
    assert "GPU 0 has done nothing for 5 minutes" in warning
    journal = instance.ledger.queries.events_after(0, 1000)
    (event,) = [row for row in journal if row["kind"] == "job.warning"]
    assert event["info"]["topic"] == "gpu_idle"


async def test_words_of_an_agent_are_cut_and_printable(instance: Controlled) -> None:
    job_id = await running(instance)
    words = "\x1b[31mnan\n" * 1000
    await say(instance, job_id, wire.ProgressSeen("", {}, [], None, words))
    (warning,) = warned(instance, job_id)
    assert warning.isprintable()
    assert len(warning) < 500
