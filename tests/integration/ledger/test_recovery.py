"""Recovering from the ledger gives what folding the events gave."""

from typing import Any

import pytest

from gpuyard.controller.recovery import rebuild_view
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.writer import Writer
from gpuyard.scheduler.view import View
from tests.support.ledger import trust_event
from tests.support.life import Life, view_of

pytestmark = pytest.mark.anyio


def busy() -> Life:
    """Jobs in every state, of several shapes and kinds, with parents that live and
    parents that are over.
    """
    life = Life()
    first = life.submit(
        name="train-1",
        priority=2,
        project="a",
        tier="SPOT",
        timeout_s=60,
        deadline=life.now + 3600,
        estimated_duration_s=30.5,
    )
    life.submit(
        name="train-2",
        labels={"type": "nlp"},
        resources={"gpus": {"count": 2, "memory_gb": 8}},
    )
    life.submit(name="child", depends_on=[first])
    done = life.submit(name="done")
    failed = life.submit(name="failed")
    life.end(life.run(done), exit_code=0)
    life.end(life.run(failed), exit_code=3)
    life.submit(name="of-done", depends_on=[done])
    life.submit(name="of-failed", depends_on=[done, failed, first])
    life.run(life.submit(name="running", depends_on=[done]))
    life.intend(life.submit(name="intended", preemptible=True))
    ending = life.run(life.submit(name="ending"))
    life.stop(ending)
    again = life.submit(name="again", retry_count=2)
    life.end(life.run(again), exit_code=1, delay_s=500.0)
    taken = life.submit(name="taken", preemptible=True)
    attempt = life.run(taken)
    life.stop(attempt, "preempted")
    life.end(attempt, reason="preempted")
    for number in (1, 2, 6, 5):  # the second is changed again, the first is forgotten
        life.record(trust_event(number))
    return life


def plain_view(view: View) -> dict[str, Any]:
    """What a view knows, as far as it does not depend on the order in which it learned
    it.
    """
    return {
        "jobs": view.jobs,
        "attempts": view.attempts,
        "queue": {job.id for job in view.queue},
        "delayed": set(view.delayed),
        "dependents": view.dependents,
        "doomed": view.doomed,
        "ended": {
            job_id: view.ended[job_id]
            for job_id in view.ended.keys() & view.dependents.keys()
        },
        "deadlines": (len(view.deadlines), view.deadlines.next_look()),
        "trust": view.external_queues.trust.findings,
        "bookings": {node.id: node.bookings for node in view.nodes.values()},
    }


@pytest.mark.parametrize("page", [1, 5000])
async def test_a_rebuilt_view_equals_the_folded_journal(
    ledger: Ledger, writer: Writer, monkeypatch, page
):
    life = busy()
    writer.add_events(life.journal)
    await writer.committed()
    live_jobs = ledger.queries.live_jobs
    monkeypatch.setattr(ledger.queries, "live_jobs", lambda: live_jobs(most=page))
    rebuilt = plain_view(rebuild_view(ledger.queries, life.now))
    folded = plain_view(view_of(life.journal))
    assert len(rebuilt["jobs"]) == 10
    for part, known in folded.items():
        assert rebuilt[part] == known, part
