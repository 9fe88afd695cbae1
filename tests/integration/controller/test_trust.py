"""Quarantines in a controller: what was sent ahead comes back, and a new server knows all that was recorded."""

import pytest

from gpuyard.controller import launching
from gpuyard.domain.trust import TrustFinding
from tests.integration.controller.test_claims import waiting
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def quarantine(yard: Controlled, seconds: float = 3600.0) -> TrustFinding:
    return TrustFinding(quarantined_until=yard.core.clock() + seconds, reason="wrong answers")


async def test_what_was_sent_ahead_comes_back_and_what_runs_runs_on(yard: Controlled, monkeypatch):
    monkeypatch.setattr(launching, "_CLAIM_S", 3600.0)
    jobs = await waiting(yard, 10)
    running = [i for i, attempt in yard.host.attempts.items() if attempt.live]
    await yard.controller.trust.record("fake", quarantine(yard))
    await eventually(lambda: not yard.core.view.sites.ahead, "the claims to be taken back")
    assert not yard.host.window
    assert [i for i, attempt in yard.host.attempts.items() if attempt.live] == running
    for attempt_id in running:
        yard.host.ended(attempt_id, exit_code=0)
    yard.provider.deliver_soon("node_1")
    await eventually(lambda: not yard.core.view.attempts, "the server to hear of their ends")
    assert sum(job.attempt_id is None for job in yard.core.view.jobs.values()) == len(jobs) - len(running)
    await yard.controller.trust.forget("fake")
    await yard.end_all(jobs)
    assert {yard.job(job)["state"] for job in jobs} == {"completed"}


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_a_new_server_knows_what_was_recorded(yard: Controlled, end: str):
    await yard.controller.trust.record("gpu:GPU-none", TrustFinding(score=0.5))
    await yard.controller.trust.record("fake", quarantine(yard))
    job = await yard.submit()
    await (yard.crash() if end == "crash" else yard.stop())
    await yard.start()
    assert [(t.place, t.score) for t in yard.controller.trust.listing()] == [("fake", None), ("gpu:GPU-none", 0.5)]
    await eventually(lambda: yard.core.view.nodes["node_1"].online, "the host to link up")
    yard.core.schedule()
    answer = yard.controller.requests.why(job)
    assert answer is not None
    assert answer.constraint == "quarantined"
    await yard.controller.trust.forget("fake")
    await yard.finish(job)


async def test_the_scheduler_looks_again_by_itself(yard: Controlled):
    await yard.controller.trust.record("node:" + yard.core.view.nodes["node_1"].title, quarantine(yard, 0.3))
    job = await yard.submit()
    assert yard.core.view.jobs[job].attempt_id is None
    await yard.finish(job)
