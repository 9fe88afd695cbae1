"""What may go is found in both databases; a ledger of before keeps its journal."""

import zlib
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import gpuyard.ledger
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.apply import apply
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.replay import check
from gpuyard.ledger.retention import (
    JobWalk,
    PointRemoval,
    RetentionLimits,
    SeriesWalk,
)
from gpuyard.ledger.retention_plan import plan
from gpuyard.ledger.writer import Writer
from tests.support.ledger import node_event

NOW = 1_700_000_000.0
LIMITS = RetentionLimits(
    jobs_before=NOW,
    jobs_most=None,
    keys_before=NOW,
    series_before=NOW,
    usage_before=NOW,
    logs_before=None,
    events_before=None,
    events_most=1000,
)


def job_id(number: int) -> str:
    return f"job_{int(NOW * 1000) - 1000 + number:012x}7{number:019x}"


def job(number: int, *parents: int, state: str = "completed") -> Event:
    """A job that ended before `NOW`, unless `state` says otherwise."""
    values = {
        "state": state,
        "ended_at": NOW - 100,
        "depends_on": [job_id(parent) for parent in parents],
        "labels": {},
    }
    change = Change(Table.JOBS, job_id(number), values)
    return Event(EventKind.JOB_SUBMITTED, NOW - 200, (change,), job_id(number))


def pages(ledger: Ledger, walk: JobWalk | SeriesWalk) -> set[str]:
    found: set[str] = set()
    while (page := ledger.read(walk.next_page)) is not None:
        found |= set(page)
    return found


@pytest.mark.anyio
async def test_what_others_need_is_not_found(ledger: Ledger, writer: Writer) -> None:
    item = Change(Table.ITEMS, "batch_1_0", {"batch_id": "b", "job_id": job_id(3)})
    writer.add_events(
        [
            job(0),
            job(1),
            job(2, 1, state="running"),
            job(3),
            job(4),
            Event(EventKind.BATCH_CHANGED, NOW, (item,)),
        ]
    )
    names = ("loss", "system/memory_mb")
    writer.add_points(
        [
            {
                "attempt_id": f"attempt_{number}",
                "job_id": job_id(number),
                "name": name,
                "n": n,
                "step": n,
                "value": 1.0,
                "at": NOW,
            }
            for number in (0, 2)
            for name in names
            for n in range(300)
        ]
    )
    await writer.committed()
    assert pages(ledger, JobWalk(LIMITS)) == {job_id(0), job_id(4)}
    assert pages(ledger, SeriesWalk(NOW)) == {job_id(0)}
    found, _ = ledger.read(plan, LIMITS, frozenset())
    assert found["jobs"].count == 2
    assert found["jobs"].bytes > 0
    assert found["usage"].count == 300
    removal = PointRemoval([job_id(0)], usage_only=True)
    removed = 0
    while (count := await writer.maintain(removal.run_slice)) is not None:
        assert count <= 250
        removed += count
    assert removed == 300
    assert list(ledger.queries.series(job_id(0))) == ["loss"]
    assert len(ledger.queries.series(job_id(2))) == 2


def test_a_snapshot_of_before_becomes_images(path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{path}")
    config = Config()
    folder = Path(gpuyard.ledger.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    with engine.begin() as tx:
        config.attributes["connection"] = tx
        command.upgrade(config, "0007")
        apply_old(tx)
    engine.dispose()
    ledger = Ledger.open(path)
    report = check(ledger.engine)
    assert report.ok, report.differences
    assert report.rows["nodes"] == 10
    assert ledger.queries.last_seq() == 20
    ledger.close()


def apply_old(tx: sa.Connection) -> None:
    """Twenty events, the older half of them pruned as they were before."""
    tx.execute(sa.text("CREATE TABLE pruned (name TEXT, seq INTEGER)"))
    apply(tx, [node_event(n % 10, state=f"s{n}", limits={"n": n}) for n in range(20)])
    tx.execute(sa.text("DROP TABLE pruned"))
    found = tx.execute(sa.text("SELECT id, name, state FROM nodes")).mappings()
    rows = [{**row, "limits": {"n": 10 + int(row["name"][1:])}} for row in found]
    body = zlib.compress(msgspec.json.encode(rows))
    tx.execute(
        sa.text("INSERT INTO snapshots VALUES (20, 'nodes', :body)"), {"body": body}
    )
    tx.execute(sa.text("DELETE FROM events WHERE seq <= 10"))
