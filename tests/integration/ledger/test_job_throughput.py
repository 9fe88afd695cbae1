"""How many jobs end over time, counted from the journal."""

import pytest
import sqlalchemy as sa

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.throughput import ThroughputStep
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.tables import events
from gpuyard.ledger.writer import Writer
from gpuyard.server.job_throughput import JobThroughput

pytestmark = pytest.mark.anyio
MINUTE = 60.0
NOW = 1_800_000_010.0  # ten seconds into a minute, and into an hour


async def end(
    writer: Writer, job_id: str, kind: EventKind, at: float, project: str | None = None
) -> None:
    changes = (Change(Table.JOBS, job_id, {"project": project, "depends_on": []}),)
    writer.add_events([Event(EventKind.JOB_SUBMITTED, at, changes, job_id)])
    writer.add_events([Event(kind, at, (), job_id)])
    await writer.committed()


async def test_ends_are_counted_once_by_minute_hour_and_outcome(
    ledger: Ledger, writer: Writer
) -> None:
    throughput = JobThroughput(ledger.queries)
    assert not any(throughput.read(ThroughputStep.MINUTE, (), NOW).ended["completed"])
    await end(writer, "job_1", EventKind.JOB_COMPLETED, NOW - 70 * MINUTE)
    await end(writer, "job_2", EventKind.JOB_COMPLETED, NOW - MINUTE)
    await end(writer, "job_3", EventKind.JOB_COMPLETED, NOW - MINUTE, "hidden")
    assert throughput.read(ThroughputStep.MINUTE, (), NOW).ended["completed"][-3:] == [
        0,
        2,
        0,
    ]
    # What was counted is not read again. The last event is never removed.
    newest = sa.select(sa.func.max(events.c.seq)).scalar_subquery()
    with ledger.engine.begin() as tx:
        tx.execute(sa.delete(events).where(events.c.seq < newest))
    await end(writer, "job_2", EventKind.JOB_FAILED, NOW)
    shown = throughput.read(ThroughputStep.MINUTE, {"hidden"}, NOW)
    assert (shown.begins_at, shown.step_s) == (NOW - 10 - 59 * MINUTE, 60)
    assert (shown.ended["completed"][-3:], sum(shown.ended["completed"])) == (
        [0, 1, 0],
        1,
    )
    assert shown.ended["failed"][-2:] == [0, 1]
    by_hour = throughput.read(ThroughputStep.HOUR, {"hidden"}, NOW)
    assert by_hour.ended["completed"][-3:] == [1, 1, 0]
    later = throughput.read(ThroughputStep.MINUTE, (), NOW + 2 * MINUTE)
    assert later.ended["failed"][-4:] == [0, 1, 0, 0]


async def test_a_new_server_counts_the_events_of_a_day_and_no_older_ones(
    ledger: Ledger, writer: Writer
) -> None:
    for hours in range(60, -1, -1):
        at = NOW - hours * 60 * MINUTE
        await end(writer, f"job_{hours}", EventKind.JOB_COMPLETED, at)
    first = ledger.queries.seq_before(NOW - 25 * 60 * MINUTE)
    read = ledger.queries.events_after(first, 1)
    assert read[0]["at"] == NOW - 25 * 60 * MINUTE
    shown = JobThroughput(ledger.queries).read(ThroughputStep.HOUR, (), NOW)
    assert shown.ended["completed"] == [1] * 24
