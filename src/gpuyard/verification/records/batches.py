"""Batches of checks: what runs at once, behind one barrier."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from gpuyard.domain.ids import new_id
from gpuyard.verification.records.base import Records
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.tables import batches, checks, executors, workloads

Row = Mapping[str, Any]
Standing = Callable[[ExecutorRecord | None, Row], ExecutorRecord]


class BatchRecords(Records):
    """Batches and their checks. A row has the columns of its table."""

    def new_batch(self, holder: str) -> str:
        """Begin a batch of the process `holder`; its id."""
        batch_id = new_id("batch")
        with self.database.writing() as tx:
            tx.execute(batches.insert().values(id=batch_id, holder=holder, created_at=self._now()))
        return batch_id

    def release_batch(self, batch_id: str) -> None:
        """Do this before the first seed goes out: what the batch's workloads have left is never used."""
        with self.database.writing() as tx:
            _release(tx, batch_id, self._now())

    def end_batch(self, batch_id: str, outcome: str) -> None:
        """End it, released or not; once it is over it keeps its outcome."""
        now = self._now()
        with self.database.writing() as tx:
            _release(tx, batch_id, now)
            over = batches.update().where(batches.c.id == batch_id, batches.c.ended_at.is_(None))
            tx.execute(over.values(ended_at=now, outcome=outcome))

    def open_batches(self, holder: str | None = None) -> list[Row]:
        """Those that are not over, of one process or of all, oldest first."""
        wanted = sa.select(batches).where(batches.c.ended_at.is_(None)).order_by(batches.c.created_at, batches.c.id)
        return self._rows(wanted if holder is None else wanted.where(batches.c.holder == holder))

    def batch(self, batch_id: str) -> Row | None:
        """One batch."""
        return next(iter(self._rows(sa.select(batches).where(batches.c.id == batch_id))), None)

    def add_checks(self, rows: Sequence[Row]) -> None:
        """Add checks, each with its `id`, as its sample has it, `batch_id`, `executor`, `gpu_class`, `sample_id` and
        `state`, and whatever else is known; `created_at` is now."""
        now = self._now()
        if rows:
            with self.database.writing() as tx:
                for row in rows:
                    tx.execute(checks.insert().values({"created_at": now, "scored": False, **row}))

    def close_checks(self, rows: Sequence[Row], standing: Standing) -> None:
        """Write down how checks ended, and what that makes of their executors, all in one go.

        `standing` gives an executor's record after a check, from the one before (None: there is none) and the check's
        row. A check that was closed before changes nothing.
        """
        with self.database.writing(lock="executors") as tx:
            for row in rows:
                first = checks.update().where(checks.c.id == row["id"], checks.c.scored.is_(False))
                if tx.execute(first.values(scored=True, **row)).rowcount:
                    _stand(tx, row, standing)

    def check(self, check_id: str) -> Row | None:
        """One check."""
        return next(iter(self._rows(sa.select(checks).where(checks.c.id == check_id))), None)

    def checks_of(self, batch_id: str) -> list[Row]:
        """The checks of a batch."""
        return self._rows(sa.select(checks).where(checks.c.batch_id == batch_id).order_by(checks.c.id))

    def checks_by(self, executor: str, limit: int = 100) -> list[Row]:
        """An executor's checks, newest first."""
        newest = (checks.c.created_at.desc(), checks.c.id.desc())
        return self._rows(sa.select(checks).where(checks.c.executor == executor).order_by(*newest).limit(limit))

    def _rows(self, statement: sa.Select[Any]) -> list[Row]:
        with self.database.reading() as tx:
            return [dict(row) for row in tx.execute(statement).mappings()]


def _stand(tx: sa.Connection, row: Row, standing: Standing) -> None:
    mine = executors.c.name == row["executor"]
    known = tx.execute(sa.select(executors).where(mine)).mappings().first()
    record = standing(ExecutorRecord(**known) if known else None, row)
    tx.execute(executors.delete().where(mine))
    tx.execute(executors.insert().values(**asdict(record)))


def _release(tx: sa.Connection, batch_id: str, now: float) -> None:
    held = batches.update().where(batches.c.id == batch_id, batches.c.released_at.is_(None))
    tx.execute(held.values(released_at=now))
    bound = workloads.update().where(workloads.c.batch_id == batch_id, workloads.c.retired_at.is_(None))
    tx.execute(bound.values(retired_at=now))
