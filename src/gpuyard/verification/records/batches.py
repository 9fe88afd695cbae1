"""Batches, and their checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from gpuyard.domain.ids import new_id
from gpuyard.verification.records.base import RecordsBase
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.tables import batches, checks, executors, workloads

Row = Mapping[str, Any]
RecordAfter = Callable[[ExecutorRecord | None, Row, Sequence[str]], ExecutorRecord]
NEWEST_OF_EACH = 48
"""How many checks of an executor decide about it, of each outcome. So many of one do
not push out the others."""
_SAY_NOTHING = ("blameless", "unjudged")


class BatchRecords(RecordsBase):
    """Batches and their checks, as rows with the columns of their tables."""

    def new_batch(self, holder: str) -> str:
        """Create a batch of the process `holder`; returns its id."""
        batch_id = new_id("batch")
        with self.database.writing() as tx:
            tx.execute(
                batches.insert().values(
                    id=batch_id, holder=holder, created_at=self._now()
                )
            )
        return batch_id

    def release_batch(self, batch_id: str) -> None:
        """Mark a batch as released, before the first seed is sent.

        From now on the unused samples of its workloads are never used.
        """
        with self.database.writing() as tx:
            _release(tx, batch_id, self._now())

    def end_batch(self, batch_id: str, outcome: str) -> None:
        """Close a batch, released or not. A closed batch keeps its outcome."""
        now = self._now()
        with self.database.writing() as tx:
            _release(tx, batch_id, now)
            over = batches.update().where(
                batches.c.id == batch_id, batches.c.ended_at.is_(None)
            )
            tx.execute(over.values(ended_at=now, outcome=outcome))

    def open_batches(self) -> list[Row]:
        """The batches that are not closed, oldest first."""
        wanted = (
            sa.select(batches)
            .where(batches.c.ended_at.is_(None))
            .order_by(batches.c.created_at, batches.c.id)
        )
        return self._rows(wanted)

    def batch(self, batch_id: str) -> Row | None:
        """One batch."""
        return next(
            iter(self._rows(sa.select(batches).where(batches.c.id == batch_id))), None
        )

    def add_checks(self, rows: Sequence[Row]) -> None:
        """Add checks, created now.

        Each row needs `id` (that of its sample), `batch_id`, `executor`, `gpu_class`,
        `sample_id` and `state`.
        """
        now = self._now()
        if rows:
            with self.database.writing() as tx:
                for row in rows:
                    tx.execute(
                        checks.insert().values(
                            {"created_at": now, "scored": False, **row}
                        )
                    )

    def close_checks(self, rows: Sequence[Row], record_after: RecordAfter) -> None:
        """Store how checks ended and update their executors, in one transaction.

        `record_after` returns an executor's new record from the old one (None: there is
        none), the check's row and the outcomes, this one first. A check that was
        closed before changes nothing.
        """
        with self.database.writing(lock="executors") as tx:
            for row in rows:
                unscored = checks.update().where(
                    checks.c.id == row["id"], checks.c.scored.is_(False)
                )
                if tx.execute(unscored.values(scored=True, **row)).rowcount:
                    _update_executor(tx, row, record_after)

    def check(self, check_id: str) -> Row | None:
        """One check."""
        return next(
            iter(self._rows(sa.select(checks).where(checks.c.id == check_id))), None
        )

    def checks_of(self, batch_id: str) -> list[Row]:
        """The checks of a batch."""
        return self._rows(
            sa.select(checks).where(checks.c.batch_id == batch_id).order_by(checks.c.id)
        )

    def checks_by(self, executor: str, limit: int = 100) -> list[Row]:
        """An executor's checks, newest first."""
        newest = (checks.c.created_at.desc(), checks.c.id.desc())
        return self._rows(
            sa.select(checks)
            .where(checks.c.executor == executor)
            .order_by(*newest)
            .limit(limit)
        )

    def claims_since(self, at: float) -> list[tuple[str, dict[str, Any]]]:
        """The claims of checks that were passed and answered since then, each with its
        executor.
        """
        wanted = sa.select(checks.c.executor, checks.c.claims).where(
            checks.c.answered_at >= at, checks.c.outcome == "passed"
        )
        with self.database.reading() as tx:
            rows = tx.execute(wanted.order_by(checks.c.created_at)).all()
        return [(executor, claims) for executor, claims in rows if claims]

    def outcomes_after(self, check_id: str) -> list[str]:
        """The outcome of a check, and after it the others of its executor that decide
        about it, newest first.
        """
        with self.database.reading() as tx:
            return _outcomes(tx, check_id)

    def _rows(self, statement: sa.Select[Any]) -> list[Row]:
        with self.database.reading() as tx:
            return [dict(row) for row in tx.execute(statement).mappings()]


def _update_executor(tx: sa.Connection, row: Row, record_after: RecordAfter) -> None:
    mine = executors.c.name == row["executor"]
    known = tx.execute(sa.select(executors).where(mine)).mappings().first()
    old = ExecutorRecord(**known) if known else None
    record = record_after(old, row, _outcomes(tx, row["id"]))
    tx.execute(executors.delete().where(mine))
    tx.execute(executors.insert().values(**asdict(record)))


def _outcomes(tx: sa.Connection, check_id: str) -> list[str]:
    """The outcome of a check, and after it those of its executor that decide about it.

    That check comes first, though another that began later may be over already.
    """
    executor, own = tx.execute(
        sa.select(checks.c.executor, checks.c.outcome).where(checks.c.id == check_id)
    ).one()
    newest = (checks.c.created_at.desc(), checks.c.id.desc())
    place = sa.func.row_number().over(partition_by=checks.c.outcome, order_by=newest)
    found = (
        sa.select(
            checks.c.outcome, checks.c.created_at, checks.c.id, place.label("place")
        )
        .where(
            checks.c.executor == executor,
            checks.c.id != check_id,
            checks.c.scored.is_(True),
            checks.c.outcome.not_in(_SAY_NOTHING),
        )
        .subquery()
    )
    wanted = sa.select(found.c.outcome).where(found.c.place <= NEWEST_OF_EACH)
    others = wanted.order_by(found.c.created_at.desc(), found.c.id.desc())
    return [own, *tx.scalars(others)]


def _release(tx: sa.Connection, batch_id: str, now: float) -> None:
    held = batches.update().where(
        batches.c.id == batch_id, batches.c.released_at.is_(None)
    )
    tx.execute(held.values(released_at=now))
    bound = workloads.update().where(
        workloads.c.batch_id == batch_id, workloads.c.retired_at.is_(None)
    )
    tx.execute(bound.values(retired_at=now))
