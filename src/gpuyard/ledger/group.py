"""What one commit holds, and the statements that write it."""

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
from gpuyard.ledger.statements import insert_points, upsert_notes, upsert_progress
from gpuyard.ledger.tables import points

# So many events are some six milliseconds of statements: whoever writes on the event loop lets others in between.
SLICE = 200
_POINT = tuple(points.columns.keys())
_Task = asyncio.Task[Any]


@dataclass(frozen=True, slots=True)
class Put:
    """What one call put: it is written whole or refused whole. `by` is the task that did."""

    events: Sequence[Event] = ()
    points: Sequence[Mapping[str, Any]] = ()
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    notes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    by: _Task | None = None

    def __str__(self) -> str:
        """What it is about, as an error names it."""
        if self.events:
            event = self.events[0]
            more = f" and {len(self.events) - 1} more" if len(self.events) > 1 else ""
            return f"{event.kind.value} of {event.job_id or event.changes[0].key if event.changes else 'nothing'}{more}"
        if self.points:
            return f"a point of job {self.points[0].get('job_id')}"
        if self.notes:
            return f"the note {next(iter(self.notes))}"
        return f"a reading of job {next(iter(self.progress), None)}"


@dataclass(frozen=True, slots=True)
class Waiter:
    """Waits for the first `after` puts of its group; with `by`, only that task's own count."""

    future: asyncio.Future[None]
    after: int
    by: _Task | None = None

    def answer(self, puts: Sequence[Put], refused: Mapping[int, LedgerError]) -> None:
        """Say that what it waits for is written, or why not; `refused` are errors by the number of the put."""
        if self.future.done():
            return
        for number, error in refused.items():
            if number < self.after and (self.by is None or puts[number].by is self.by):
                self.future.set_exception(error)
                return
        self.future.set_result(None)


@dataclass(slots=True)
class Group:
    """What the next commit will hold, and who waits for it."""

    puts: list[Put] = field(default_factory=list[Put])
    waiters: list[Waiter] = field(default_factory=list[Waiter])
    urgent: bool = False

    def __bool__(self) -> bool:
        return bool(self.puts or self.waiters)

    def fail(self, error: LedgerError) -> None:
        """Tell everyone who waits that nothing of it was written."""
        for waiter in self.waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)


def write(tx: sa.Connection, puts: Sequence[Put], first_seq: int) -> Iterator[None]:
    """Run the statements of `puts`, whose first event gets `first_seq`; yields between slices of them."""
    events = chain.from_iterable(put.events for put in puts)  # a put of many makes them one by one
    while batch := list(islice(events, SLICE)):
        first_seq = apply(tx, batch, first_seq) + 1
        if len(batch) == SLICE:
            yield
    series = [row for put in puts for row in put.points]
    for start in range(0, len(series), SLICE):
        yield
        insert_points(tx.dialect.name).run(cursor(tx), [_point(row) for row in series[start : start + SLICE]])
    progress = {job_id: body for put in puts for job_id, body in put.progress.items()}
    if progress:
        upsert_progress(tx.dialect.name).run(cursor(tx), progress.items())
    notes = {name: body for put in puts for name, body in put.notes.items()}
    if notes:
        upsert_notes(tx.dialect.name).run(cursor(tx), notes.items())


def write_each(
    tx: sa.Connection, puts: Sequence[Put], first_seq: int, faults: tuple[type[Exception], ...]
) -> dict[int, Exception]:
    """Write put by put; those that `faults` refuse are left out and returned by their number.

    Whatever came after a refused one and touches the same rows or job was made believing in it, and is left out too.
    """
    refused: dict[int, Exception] = {}
    doubtful: dict[str, Exception] = {}
    run_on = cursor(tx)
    for number, put in enumerate(puts):
        about = {change.key for event in put.events for change in event.changes}
        about |= {event.job_id for event in put.events if event.job_id}
        error = next((doubtful[key] for key in about if key in doubtful), None)
        if error is None:
            run_on.execute("SAVEPOINT put")
            try:
                for _ in write(tx, [put], first_seq):
                    pass
                first_seq += len(put.events)
            except faults as fault:
                error = fault
                run_on.execute("ROLLBACK TO SAVEPOINT put")
            run_on.execute("RELEASE SAVEPOINT put")
        if error is not None:
            refused[number] = error
            doubtful |= dict.fromkeys(about, error)
    return refused


def _point(row: Mapping[str, Any]) -> Sequence[Any]:
    # SQLite would take it for NULL and PostgreSQL for a number that no JSON can show.
    if not math.isfinite(row["value"]):
        raise ValueError(f"{row['name']} is {row['value']}, which is no number to keep")
    return [row[name] for name in _POINT]
