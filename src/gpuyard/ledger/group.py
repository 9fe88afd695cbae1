"""What one commit writes: write batches, and the tasks that wait for them."""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import sqlalchemy as sa

from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Event
from gpuyard.ledger.apply import apply, cursor
from gpuyard.ledger.side_tables import points
from gpuyard.ledger.statements import insert_points, upsert_notes, upsert_progress

# This many events take about two milliseconds to write. After each slice the event loop
# may run other tasks.
SLICE = 60
_POINT_COLUMNS = tuple(points.columns.keys())
_Task = asyncio.Task[Any]


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """What one call added: it is written as a whole or refused as a whole.

    `task` is the task that made the call.
    """

    events: Sequence[Event] = ()
    points: Sequence[Mapping[str, Any]] = ()
    progress: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    notes: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    task: _Task | None = None

    def __str__(self) -> str:
        """Its name in error messages."""
        if self.events:
            event = self.events[0]
            subject = event.changes[0].key if event.changes else "nothing"
            more = f" and {len(self.events) - 1} more" if len(self.events) > 1 else ""
            return f"{event.kind.value} of {event.job_id or subject}{more}"
        if self.points:
            return f"a point of job {self.points[0].get('job_id')}"
        if self.notes:
            return f"the note {next(iter(self.notes))}"
        return f"a reading of job {next(iter(self.progress), None)}"

    def touched_keys(self) -> set[str]:
        """The keys of the rows its events change, and the jobs they are about."""
        keys = {change.key for event in self.events for change in event.changes}
        return keys | {event.job_id for event in self.events if event.job_id}


@dataclass(frozen=True, slots=True)
class CommitWaiter:
    """A future that waits for the first `count` batches of its group.

    With `task`, only the batches that this task added count.
    """

    future: asyncio.Future[None]
    count: int
    task: _Task | None = None

    def resolve(
        self, batches: Sequence[WriteBatch], refused: Mapping[int, LedgerError]
    ) -> None:
        """Report the commit's outcome; `refused` has errors by the batch's number."""
        if self.future.done():
            return
        for number, error in refused.items():
            counts = self.task is None or batches[number].task is self.task
            if number < self.count and counts:
                self.future.set_exception(error)
                return
        self.future.set_result(None)


@dataclass(slots=True)
class CommitGroup:
    """The batches of the next commit, and the waiters for it.

    `urgent`: the commit must not be delayed.
    """

    batches: list[WriteBatch] = field(default_factory=list[WriteBatch])
    waiters: list[CommitWaiter] = field(default_factory=list[CommitWaiter])
    urgent: bool = False

    def __bool__(self) -> bool:
        return bool(self.batches or self.waiters)

    @property
    def event_count(self) -> int:
        """How many events its batches hold."""
        return sum(len(batch.events) for batch in self.batches)

    @property
    def row_count(self) -> int:
        """How many events and points its batches hold."""
        return self.event_count + sum(len(batch.points) for batch in self.batches)

    def fail(self, error: LedgerError) -> None:
        """Report `error` to every waiter: nothing of this group was written."""
        for waiter in self.waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)


def write(
    tx: sa.Connection, batches: Sequence[WriteBatch], first_seq: int
) -> Iterator[None]:
    """Write `batches`; their first event gets `first_seq`. Yields between slices."""
    # Lazily: the events of a large batch are made while they are read.
    events = chain.from_iterable(batch.events for batch in batches)
    while part := list(islice(events, SLICE)):
        first_seq = apply(tx, part, first_seq) + 1
        if len(part) == SLICE:
            yield
    rows = [row for batch in batches for row in batch.points]
    for start in range(0, len(rows), SLICE):
        yield
        values = [_point_values(row) for row in rows[start : start + SLICE]]
        insert_points(tx.dialect.name).run(cursor(tx), values)
    _write_latest(tx, batches)


def _write_latest(tx: sa.Connection, batches: Sequence[WriteBatch]) -> None:
    """Write the newest progress of each job and the newest note of each name."""
    progress: dict[str, Mapping[str, Any]] = {}
    notes: dict[str, Mapping[str, Any]] = {}
    for batch in batches:
        progress |= batch.progress
        notes |= batch.notes
    if progress:
        upsert_progress(tx.dialect.name).run(cursor(tx), progress.items())
    if notes:
        upsert_notes(tx.dialect.name).run(cursor(tx), notes.items())


def write_each(
    tx: sa.Connection,
    batches: Sequence[WriteBatch],
    first_seq: int,
    refusals: tuple[type[Exception], ...],
) -> dict[int, Exception]:
    """Write the batches one by one; return the error of each refused one by its number.

    A batch is refused when writing it raises one of `refusals`. Later batches that
    touch the same rows or job were made on the assumption that it is written, so they
    are refused too.
    """
    refused: dict[int, Exception] = {}
    tainted: dict[str, Exception] = {}
    for number, batch in enumerate(batches):
        keys = batch.touched_keys()
        error = next((tainted[key] for key in keys if key in tainted), None)
        if error is None:
            error = _try_write(tx, batch, first_seq, refusals)
        if error is None:
            first_seq += len(batch.events)
        else:
            refused[number] = error
            tainted |= dict.fromkeys(keys, error)
    return refused


def _try_write(
    tx: sa.Connection,
    batch: WriteBatch,
    first_seq: int,
    refusals: tuple[type[Exception], ...],
) -> Exception | None:
    """Write one batch behind a savepoint; returns the error when it is refused."""
    run_on = cursor(tx)
    error: Exception | None = None
    run_on.execute("SAVEPOINT write_batch")
    try:
        for _ in write(tx, [batch], first_seq):
            pass
    except refusals as refusal:
        error = refusal
        run_on.execute("ROLLBACK TO SAVEPOINT write_batch")
    run_on.execute("RELEASE SAVEPOINT write_batch")
    return error


def _point_values(row: Mapping[str, Any]) -> Sequence[Any]:
    # SQLite would store NaN as NULL, and PostgreSQL as a number that JSON cannot hold.
    if not math.isfinite(row["value"]):
        raise ValueError(f"{row['name']} is {row['value']}, which is no number to keep")
    return [row[name] for name in _POINT_COLUMNS]
