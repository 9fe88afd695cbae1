"""What history is too old to keep: finds it in pages, and says how to remove it.

Rows of state go by an event that names each of them, so the journal stays exact. Series
are outside the journal and are deleted in place.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from gpuyard.domain.artifacts import links_note
from gpuyard.domain.batches import BatchState
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.states import JobState
from gpuyard.ledger.people_tables import notices, unused_gpus
from gpuyard.ledger.side_tables import notes, points, progress
from gpuyard.ledger.tables import (
    HAS_PARENTS,
    arrays,
    artifacts,
    attempts,
    batches,
    checkpoints,
    items,
    jobs,
    schedules,
    specs,
)

# What an attempt used has series with this beginning; others are the program's own.
USAGE_PREFIX = "system/"
_AFTER_USAGE = "system0"
_JOBS_AT_ONCE = 500
# Ids of jobs are hexadecimal.
AFTER_ALL_JOBS = "job_g"
_SERIES_AT_ONCE = 200
_POINTS_AT_ONCE = 200
_LINKS_AT_ONCE = 500
_ENDED = tuple(state.value for state in JobState if state.terminal)
_ENDED_BATCHES = tuple(state.value for state in BatchState if state.terminal)


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Up to when history goes, in UTC seconds, and how much of it stays; None: no
    limit.

    A job whose idempotency key may still come again stays: one that ended after
    `keys_before`.
    """

    jobs_before: float | None
    jobs_most: int | None
    keys_before: float
    series_before: float | None
    usage_before: float | None
    logs_before: float | None
    events_before: float | None
    events_most: int


def removal_event(keys: Mapping[Table, Sequence[str]], now: float) -> Event:
    """The event that removes these rows."""
    changes = tuple(
        Change(table, key, None) for table, found in keys.items() for key in found
    )
    info = {table.value: len(found) for table, found in keys.items() if found}
    return Event(EventKind.HISTORY_REMOVED, now, changes, None, info)


# --- jobs ---


@dataclass(slots=True)
class JobWalk:
    """Walks over the jobs that may go, from the newest to the oldest: a job goes before
    those it depended on. `blocked` counts those that only others still need.
    """

    limits: RetentionLimits
    blocked: int = 0
    _before: str | None = None
    _count_bound: str = ""

    def next_page(self, tx: sa.Connection) -> list[str] | None:
        """The jobs of the next page that may go; None after the last page."""
        if self._before is None:
            self._begin(tx)
        page = tx.execute(
            sa.select(
                jobs.c.id,
                jobs.c.state,
                jobs.c.ended_at,
                jobs.c.idempotency_key,
                sa.cast(jobs.c.labels, sa.Text).label("labels"),
            )
            .where(jobs.c.id < self._before)
            .order_by(jobs.c.id.desc())
            .limit(_JOBS_AT_ONCE)
        ).all()
        if not page:
            return None
        self._before = page[-1].id
        found = [row.id for row in page if self._may_go(row)]
        needed = _referred_to(tx, found)
        self.blocked += len(needed)
        return [job_id for job_id in found if job_id not in needed]

    def _begin(self, tx: sa.Connection) -> None:
        age_bound = ""
        if self.limits.jobs_before is not None:
            age_bound = f"job_{max(int(self.limits.jobs_before * 1000), 0):012x}"
        if self.limits.jobs_most is not None:
            newest_first = sa.select(jobs.c.id).order_by(jobs.c.id.desc())
            first_beyond = newest_first.limit(1).offset(self.limits.jobs_most)
            found = tx.execute(first_beyond).scalar()
            # The bound itself may go.
            self._count_bound = f"{found}0" if found else ""
        self._before = max(age_bound, self._count_bound)

    def _may_go(self, row: Any) -> bool:
        if row.state not in _ENDED:
            return False
        ended_at = row.ended_at or 0.0
        if row.idempotency_key and ended_at >= self.limits.keys_before:
            return False
        # A study reads its jobs whenever somebody asks for its report.
        if row.labels and '"study":' in row.labels:
            return False
        jobs_before = self.limits.jobs_before
        too_old = jobs_before is not None and ended_at < jobs_before
        return too_old or row.id < self._count_bound


def _referred_to(tx: sa.Connection, job_ids: Sequence[str]) -> set[str]:
    """Those that another job depends on or that a batch has as a worker."""
    if not job_ids:
        return set()
    of_batches = sa.select(items.c.job_id).where(items.c.job_id.in_(job_ids))
    found = set(tx.execute(of_batches.distinct()).scalars())
    elements = "json_each(jobs.depends_on) AS parent"
    value = "parent.value"
    if tx.dialect.name == "postgresql":
        elements = "json_array_elements_text(jobs.depends_on) AS parent(value)"
    # A job is older than those that depend on it.
    parents = sa.text(
        f"SELECT DISTINCT {value} FROM jobs, {elements} WHERE {HAS_PARENTS} AND"
        f" jobs.id > :oldest AND {value} IN :wanted"
    ).bindparams(sa.bindparam("wanted", expanding=True))
    values = {"oldest": min(job_ids), "wanted": list(job_ids)}
    return found | set(tx.execute(parents, values).scalars())


def rows_of_jobs(tx: sa.Connection, job_ids: Sequence[str]) -> dict[Table, list[str]]:
    """The keys of all rows of these jobs."""
    keys = {Table.JOBS: list(job_ids), Table.SPECS: list(job_ids)}
    of_jobs = (
        (Table.ATTEMPTS, attempts),
        (Table.CHECKPOINTS, checkpoints),
        (Table.NOTICES, notices),
        (Table.ARTIFACTS, artifacts),
    )
    for name, table in of_jobs:
        found = sa.select(table.c.id).where(table.c.job_id.in_(job_ids))
        keys[name] = list(tx.execute(found).scalars())
    return keys


# --- what jobs took along from their submission ---


class _TakenAlong(msgspec.Struct):
    carried_environment: str | None = None
    submitted_code: str | None = None
    packages: str | None = None


_taken_along = msgspec.json.Decoder(_TakenAlong)


@dataclass(slots=True)
class SubmissionWalk:
    """Walks over the specs of all schedules and batches, then over those of all jobs,
    from the newest to the oldest, and takes those environments and code from `unused`
    (digests) that one of them has.
    """

    unused: set[str]
    _before: str = AFTER_ALL_JOBS

    def next_page(self, tx: sa.Connection) -> bool:
        """Look at the next page of specs; False when nothing is left to look at."""
        # First: otherwise a schedule could submit a job behind the walk and be deleted
        # before its own turn.
        if self._before == AFTER_ALL_JOBS:
            body = sa.cast(schedules.c.spec, sa.Text)
            for spec in tx.execute(sa.select(body)).scalars():
                self._keep(spec)
            # Batches have one, too, and ids that do not begin as those of jobs do.
            of_batch = specs.c.job_id == batches.c.id
            body = sa.cast(specs.c.body, sa.Text)
            for spec in tx.execute(sa.select(body).where(of_batch)).scalars():
                self._keep(spec)
        page = tx.execute(
            sa.select(specs.c.job_id, sa.cast(specs.c.body, sa.Text).label("body"))
            .where(specs.c.job_id < self._before)
            .order_by(specs.c.job_id.desc())
            .limit(_JOBS_AT_ONCE)
        ).all()
        for row in page:
            self._keep(row.body)
        if page:
            self._before = page[-1].job_id
        return bool(page and self.unused)

    def _keep(self, spec: str) -> None:
        found = _taken_along.decode(spec)
        taken = (found.carried_environment, found.submitted_code, found.packages)
        self.unused.difference_update(digest for digest in taken if digest)


# --- batches ---


def old_batches(tx: sa.Connection, limits: RetentionLimits) -> list[str]:
    """The batches that ended too long ago."""
    if limits.jobs_before is None:
        return []
    before = min(limits.jobs_before, limits.keys_before)
    found = sa.select(batches.c.id).where(
        batches.c.state.in_(_ENDED_BATCHES), batches.c.ended_at < before
    )
    return list(tx.execute(found.order_by(batches.c.id)).scalars())


def items_of_batch(tx: sa.Connection, batch_id: str, most: int) -> list[str]:
    """The ids of at most so many of its items."""
    found = sa.select(items.c.id).where(items.c.batch_id == batch_id)
    return list(tx.execute(found.order_by(items.c.number).limit(most)).scalars())


def rows_of_batch(tx: sa.Connection, batch_id: str) -> dict[Table, list[str]]:
    """The keys of its rows but those of its items."""
    keys = {Table.BATCHES: [batch_id]}
    spec = sa.select(specs.c.job_id).where(specs.c.job_id == batch_id)
    if tx.execute(spec).first():
        keys[Table.SPECS] = [batch_id]
    return keys


# --- arrays ---


def arrays_without_tasks(tx: sa.Connection, limits: RetentionLimits) -> list[str]:
    """The arrays all of whose tasks are gone, unless their keys may still come."""
    task = sa.select(jobs.c.id).where(jobs.c.array_id == arrays.c.id)
    found = sa.select(arrays.c.id).where(
        _key_is_over(limits), sa.not_(task.correlate(arrays).exists())
    )
    return list(tx.execute(found.order_by(arrays.c.id)).scalars())


def arrays_emptied(
    tx: sa.Connection, limits: RetentionLimits, removed: Mapping[str, int]
) -> list[str]:
    """Those of the arrays that lose all their tasks when so many of each (`removed`, by
    array) go, unless their keys may still come.
    """
    count = sa.select(sa.func.count()).where(jobs.c.array_id == arrays.c.id)
    columns = (arrays.c.id, count.correlate(arrays).scalar_subquery().label("n"))
    found: list[str] = []
    array_ids = list(removed)
    for start in range(0, len(array_ids), _JOBS_AT_ONCE):
        ids = array_ids[start : start + _JOBS_AT_ONCE]
        wanted = sa.and_(arrays.c.id.in_(ids), _key_is_over(limits))
        rows = tx.execute(sa.select(*columns).where(wanted))
        found += [row.id for row in rows if row.n == removed[row.id]]
    return found


def rows_of_arrays(
    tx: sa.Connection, array_ids: Sequence[str]
) -> dict[Table, list[str]]:
    """The keys of all rows of these arrays but those of their tasks."""
    found = sa.select(notices.c.id).where(notices.c.job_id.in_(array_ids))
    told = list(tx.execute(found).scalars())
    ids = list(array_ids)
    return {Table.ARRAYS: ids, Table.SPECS: ids, Table.NOTICES: told}


def _key_is_over(limits: RetentionLimits) -> sa.ColumnElement[bool]:
    return sa.or_(
        arrays.c.idempotency_key.is_(None), arrays.c.created_at < limits.keys_before
    )


# --- GPUs that nobody used ---


def old_unused_gpus(tx: sa.Connection, limits: RetentionLimits, most: int) -> list[str]:
    """The ids of at most so many times in which a reserved GPU was unused that are over
    for as long as jobs are kept.
    """
    found = sa.select(unused_gpus.c.id).where(is_long_over(limits))
    return list(tx.execute(found.limit(most)).scalars())


def is_long_over(limits: RetentionLimits) -> sa.ColumnElement[bool]:
    """Whether such a time is; it is not while `ran_s` is NULL."""
    if limits.jobs_before is None:
        return sa.false()
    return unused_gpus.c.began_at + unused_gpus.c.ran_s < limits.jobs_before


# --- series ---


@dataclass(slots=True)
class SeriesWalk:
    """Walks over the jobs after the id `after` that have series and ended before the
    time `before`, from the oldest on.
    """

    before: float
    after: str = ""

    def next_page(self, tx: sa.Connection) -> list[str] | None:
        """The jobs of the next page whose series may go; None after the last page."""
        found: list[str] = []
        while len(found) < _SERIES_AT_ONCE:
            job_id = tx.execute(
                sa.select(points.c.job_id)
                .where(points.c.job_id > (found[-1] if found else self.after))
                .order_by(points.c.job_id)
                .limit(1)
            ).scalar()
            if job_id is None or job_id > f"job_{int(self.before * 1000):012x}":
                break
            found.append(job_id)
        if not found:
            return None
        self.after = found[-1]
        columns = (jobs.c.id, jobs.c.state, jobs.c.ended_at)
        rows = tx.execute(sa.select(*columns).where(jobs.c.id.in_(found)))
        kept = {
            row.id
            for row in rows
            if row.state not in _ENDED or (row.ended_at or 0.0) >= self.before
        }
        return [job_id for job_id in found if job_id not in kept]


@dataclass(frozen=True, slots=True)
class PointRemoval:
    """Deletes the points of `job_ids` in slices, and their last progress. With
    `usage_only`, only the points that say what the jobs used.
    """

    job_ids: Sequence[str]
    usage_only: bool = False

    def any(self, tx: sa.Connection) -> bool:
        """Whether there is anything to delete."""
        found = sa.select(sa.literal(1)).where(*self.chosen()).limit(1)
        if tx.execute(found).first():
            return True
        of_jobs = sa.select(sa.literal(1)).where(self._progress()).limit(1)
        return not self.usage_only and tx.execute(of_jobs).first() is not None

    def run_slice(self, tx: sa.Connection) -> int | None:
        """Delete some points; returns how many, or None when none was left."""
        if not self.usage_only:
            tx.execute(sa.delete(progress).where(self._progress()))
        key = (points.c.attempt_id, points.c.name, points.c.n)
        next_keys = sa.select(*key).where(*self.chosen()).limit(_POINTS_AT_ONCE)
        is_next = sa.tuple_(*key).in_(next_keys)
        deleted = tx.execute(sa.delete(points).where(is_next)).rowcount
        return deleted if deleted else None

    def _progress(self) -> sa.ColumnElement[bool]:
        return progress.c.job_id.in_(self.job_ids)

    def chosen(self) -> Iterator[sa.ColumnElement[bool]]:
        """The conditions for its points."""
        yield points.c.job_id.in_(self.job_ids)
        if self.usage_only:
            yield points.c.name >= USAGE_PREFIX
            yield points.c.name < _AFTER_USAGE


# --- links ---


class LinkRemoval:
    """Deletes the lists of links to these artifacts, in slices."""

    def __init__(self, artifact_ids: Sequence[str]) -> None:
        self._left = [links_note(each) for each in artifact_ids]

    def run_slice(self, tx: sa.Connection) -> int | None:
        """Look for some of them; returns how many, or None when none was left."""
        part = self._left[:_LINKS_AT_ONCE]
        if not part:
            return None
        tx.execute(sa.delete(notes).where(notes.c.name.in_(part)))
        del self._left[:_LINKS_AT_ONCE]
        return len(part)
