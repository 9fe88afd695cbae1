"""Quarantines in a controller: what was sent ahead comes back, and a new server knows
all that was recorded.
"""

import pytest

from gpuyard.controller import launching
from gpuyard.domain.trust import TrustFinding
from tests.integration.controller.test_prefetch import waiting
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def quarantine(instance: Controlled, seconds: float = 3600.0) -> TrustFinding:
    return TrustFinding(
        quarantined_until=instance.core.clock() + seconds, reason="wrong answers"
    )


async def test_what_was_sent_ahead_comes_back_and_what_runs_runs_on(
    instance: Controlled, monkeypatch
):
    monkeypatch.setattr(launching, "_LONGEST_PREFETCH_WAIT_S", 3600.0)
    jobs = await waiting(instance, 10)
    running = [i for i, attempt in instance.host.attempts.items() if attempt.live]
    await instance.controller.trust.record("fake", quarantine(instance))
    await eventually(
        lambda: not instance.core.view.prefetch_sites.waiting,
        "the claims to be taken back",
    )
    assert not instance.host.prefetched
    assert [
        i for i, attempt in instance.host.attempts.items() if attempt.live
    ] == running
    for attempt_id in running:
        instance.host.ended(attempt_id, exit_code=0)
    instance.provider.deliver_soon("node_1")
    await eventually(
        lambda: not instance.core.view.attempts, "the server to hear of their ends"
    )
    assert sum(
        job.attempt_id is None for job in instance.core.view.jobs.values()
    ) == len(jobs) - len(running)
    await instance.controller.trust.forget("fake")
    await instance.end_all(jobs)
    assert {instance.job(job)["state"] for job in jobs} == {"completed"}


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_a_new_server_knows_what_was_recorded(instance: Controlled, end: str):
    await instance.controller.trust.record("gpu:GPU-none", TrustFinding(score=0.5))
    await instance.controller.trust.record("fake", quarantine(instance))
    job = await instance.submit()
    await (instance.crash() if end == "crash" else instance.stop())
    await instance.start()
    assert [(t.place, t.score) for t in instance.controller.trust.listing()] == [
        ("fake", None),
        ("gpu:GPU-none", 0.5),
    ]
    await eventually(
        lambda: instance.core.view.nodes["node_1"].online, "the host to link up"
    )
    instance.core.schedule()
    answer = instance.controller.requests.why(job)
    assert answer is not None
    assert answer.constraint == "quarantined"
    await instance.controller.trust.forget("fake")
    await instance.finish(job)


async def test_the_scheduler_looks_again_by_itself(instance: Controlled):
    await instance.controller.trust.record(
        "node:" + instance.core.view.nodes["node_1"].title, quarantine(instance, 0.3)
    )
    job = await instance.submit()
    assert instance.core.view.jobs[job].attempt_id is None
    await instance.finish(job)
