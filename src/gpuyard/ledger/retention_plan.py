"""How much a pass of retention would remove: counted in pages, without a write."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from gpuyard.domain.events import Table
from gpuyard.ledger.apply import last_seq
from gpuyard.ledger.people_tables import notices, unused_gpus
from gpuyard.ledger.prune import KEPT_ALWAYS
from gpuyard.ledger.retention import (
    JobWalk,
    PointRemoval,
    RetentionLimits,
    SeriesWalk,
    arrays_emptied,
    arrays_without_tasks,
    is_long_over,
    old_batches,
)
from gpuyard.ledger.side_tables import points
from gpuyard.ledger.tables import (
    STATE_TABLES,
    arrays,
    artifacts,
    attempts,
    checkpoints,
    events,
    items,
    jobs,
    specs,
)

_OF_JOBS: Mapping[str, tuple[sa.Table, sa.Column[str]]] = {
    "jobs": (jobs, jobs.c.id),
    "specs": (specs, specs.c.job_id),
    "attempts": (attempts, attempts.c.job_id),
    "checkpoints": (checkpoints, checkpoints.c.job_id),
    "artifacts": (artifacts, artifacts.c.job_id),
    "notices": (notices, notices.c.job_id),
    "points": (points, points.c.job_id),
}
_EVENTS_AT_ONCE = 20_000


@dataclass(slots=True)
class Amount:
    """How many, and how many bytes of content they hold."""

    count: int = 0
    bytes: int = 0

    def add(self, count: int, size: int) -> None:
        """Add this much."""
        self.count += count
        self.bytes += size


Plan = dict[str, Amount]


def plan(
    tx: sa.Connection, limits: RetentionLimits, logged: Collection[str]
) -> tuple[Plan, list[str]]:
    """What would be removed, by kind, and those of the attempts `logged` that would go.

    Jobs that only others still need which would go themselves do not count.
    """
    found: Plan = defaultdict(Amount)
    gone: list[str] = []
    tasks = Counter[str]()
    walk = JobWalk(limits)
    while (page := walk.next_page(tx)) is not None:
        _add_jobs(tx, page, found)
        tasks.update(_tasks_by_array(tx, page))
        gone += [each for each in _attempts_of(tx, page) if each in logged]
    for batch_id in old_batches(tx, limits):
        _add_batch(tx, batch_id, found)
    for array_id in arrays_without_tasks(tx, limits):
        _add_array(tx, array_id, found)
    for array_id in arrays_emptied(tx, limits, tasks):
        _add_array(tx, array_id, found)
    _add(tx, found["unused_gpus"], unused_gpus, is_long_over(limits))
    _add_series(tx, limits, found)
    for first, last in _old_events(tx, limits):
        _add(tx, found["events"], events, events.c.seq.between(first, last))
    return dict(found), gone


def _add_jobs(tx: sa.Connection, job_ids: Collection[str], found: Plan) -> None:
    """Add jobs with all that belongs to them."""
    for kind, (table, column) in _OF_JOBS.items():
        _add(tx, found[kind], table, column.in_(job_ids))
    found["checkpoint files"].add(*_kept_files(tx, checkpoints, job_ids))
    found["artifact files"].add(*_kept_files(tx, artifacts, job_ids))


def _add_batch(tx: sa.Connection, batch_id: str, found: Plan) -> None:
    batches = STATE_TABLES[Table.BATCHES]
    _add(tx, found["batches"], batches, batches.c.id == batch_id)
    _add(tx, found["items"], items, items.c.batch_id == batch_id)
    _add(tx, found["specs"], specs, specs.c.job_id == batch_id)


def _add_array(tx: sa.Connection, array_id: str, found: Plan) -> None:
    _add(tx, found["arrays"], arrays, arrays.c.id == array_id)
    _add(tx, found["specs"], specs, specs.c.job_id == array_id)
    _add(tx, found["notices"], notices, notices.c.job_id == array_id)


def _attempts_of(tx: sa.Connection, job_ids: Collection[str]) -> Iterable[str]:
    chosen = sa.select(attempts.c.id).where(attempts.c.job_id.in_(job_ids))
    return tx.execute(chosen).scalars()


def _kept_files(
    tx: sa.Connection, table: sa.Table, job_ids: Collection[str]
) -> tuple[int, int]:
    """How many files of these jobs are kept, and their bytes."""
    size = sa.func.coalesce(sa.func.sum(table.c.size), 0)
    kept = sa.and_(table.c.job_id.in_(job_ids), table.c.kept)
    row = tx.execute(sa.select(sa.func.count(), size).where(kept)).one()
    return int(row[0]), int(row[1])


def _tasks_by_array(tx: sa.Connection, job_ids: Collection[str]) -> dict[str, int]:
    """How many of these jobs are tasks of which array."""
    of_array = sa.and_(jobs.c.id.in_(job_ids), jobs.c.array_id.is_not(None))
    counted = sa.select(jobs.c.array_id, sa.func.count()).where(of_array)
    rows = tx.execute(counted.group_by(jobs.c.array_id))
    return {row[0]: int(row[1]) for row in rows}


def _add_series(tx: sa.Connection, limits: RetentionLimits, found: Plan) -> None:
    kinds = (("points", limits.series_before), ("usage", limits.usage_before))
    for kind, before in kinds:
        walk = SeriesWalk(before or 0.0)
        while (page := walk.next_page(tx)) is not None:
            chosen = PointRemoval(page, usage_only=kind == "usage").chosen()
            _add(tx, found[kind], points, *chosen)


def _old_events(
    tx: sa.Connection, limits: RetentionLimits
) -> Iterator[tuple[int, int]]:
    """The numbers of the events that would go: the first and the last of each page."""
    first = tx.execute(sa.select(sa.func.min(events.c.seq))).scalar() or 0
    last = last_seq(tx)
    upto = last - limits.events_most
    if limits.events_before is not None:
        kept = tx.execute(
            sa.select(events.c.seq)
            .where(events.c.seq > max(upto, 0), events.c.at >= limits.events_before)
            .order_by(events.c.seq)
            .limit(1)
        ).scalar()
        newest_old = last if kept is None else kept - 1
        always_kept = min(limits.events_most, KEPT_ALWAYS)
        upto = max(upto, min(newest_old, last - always_kept))
    while first <= upto:
        end = min(first + _EVENTS_AT_ONCE - 1, upto)
        yield first, end
        first = end + 1


def _add(
    tx: sa.Connection,
    amount: Amount,
    table: sa.Table,
    *where: sa.ColumnElement[bool],
) -> None:
    lengths = [
        sa.func.coalesce(sa.func.length(sa.cast(column, sa.Text)), 0)
        for column in table.columns
    ]
    size = lengths[0]
    for length in lengths[1:]:
        size += length
    total = sa.func.coalesce(sa.func.sum(size), 0)
    row = tx.execute(sa.select(sa.func.count(), total).where(*where)).one()
    amount.add(int(row[0]), int(row[1]))
