"""What is old: rows of used and retired things, and the blobs they name."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from gpuyard.verification.classes import Class
from gpuyard.verification.records.base import Records
from gpuyard.verification.tables import batches, events, prompts, samples, series, uploads, workloads

# SQLite takes so many values in one statement, and more.
_MOST = 500


@dataclass(frozen=True, slots=True)
class Old:
    """Workloads and series of a class that nobody needs, and the blobs that nothing else names."""

    workloads: Sequence[str]
    series: Sequence[str]
    blobs: Sequence[str]


class EvictionRecords(Records):
    """Removing what is old. A sample that is removed is not used again: it is gone."""

    def note_uploads(self, blobs: Sequence[str]) -> None:
        """Say that blobs are about to be stored, until a series or a workload names them."""
        now = self._now()
        with self.database.writing(lock="uploads") as tx:
            for blob in set(blobs):
                tx.execute(uploads.delete().where(uploads.c.blob == blob))
                tx.execute(uploads.insert().values(blob=blob, at=now))

    def stale_uploads(self, before: float) -> list[str]:
        """Blobs noted before then that no row came to name."""
        named = sa.or_(sa.exists().where(series.c.blob == uploads.c.blob),
                       sa.exists().where(workloads.c.blob == uploads.c.blob))  # fmt: skip
        with self.database.reading() as tx:
            return list(tx.execute(sa.select(uploads.c.blob).where(uploads.c.at < before, ~named)).scalars())

    def forget_uploads(self, blobs: Sequence[str]) -> None:
        """They are stored no more."""
        with self.database.writing() as tx:
            for some in _pieces(blobs):
                tx.execute(uploads.delete().where(uploads.c.blob.in_(some)))

    def retire_stale(self, cls: Class, before: float) -> int:
        """Retire the class's workloads that were made before then and never answered; end batches that old, whose
        process must be dead, and retire what they hold. Returns how many workloads were retired."""
        now = self._now()
        left = batches.update().where(batches.c.ended_at.is_(None), batches.c.created_at < before)
        dead = sa.select(batches.c.id).where(batches.c.ended_at.is_not(None))
        stale = sa.or_(workloads.c.batch_id.in_(dead),
                       sa.and_(workloads.c.finished_at.is_(None), workloads.c.created_at < before))  # fmt: skip
        mine = workloads.update().where(workloads.c.gpu_class == cls.value, workloads.c.retired_at.is_(None), stale)
        with self.database.writing() as tx:
            tx.execute(left.values(ended_at=now, outcome="abandoned"))
            return tx.execute(mine.values(retired_at=now)).rowcount

    def old(self, cls: Class, before: float) -> Old:
        """What of the class was retired before then, and is in no batch that goes on."""
        busy = sa.exists().where(batches.c.id == workloads.c.batch_id, batches.c.ended_at.is_(None))
        past = sa.select(workloads.c.id, workloads.c.blob).where(
            workloads.c.gpu_class == cls.value, workloads.c.retired_at < before, ~busy
        )
        with self.database.reading() as tx:
            gone = {row.id: row.blob for row in tx.execute(past)}
            kept = sa.exists().where(
                samples.c.series_id == series.c.id, samples.c.workload_id == workloads.c.id,
                sa.or_(workloads.c.retired_at.is_(None), workloads.c.retired_at >= before, busy),
            )  # fmt: skip
            unneeded = sa.select(series.c.id, series.c.blob).where(
                series.c.gpu_class == cls.value, series.c.retired_at < before, ~kept
            )
            unread = {row.id: row.blob for row in tx.execute(unneeded)}
            blobs = {*gone.values(), *unread.values()}
            still = {blob for table, known in ((workloads, gone), (series, unread)) for some in _pieces([*blobs])
                     for row_id, blob in tx.execute(sa.select(table.c.id, table.c.blob).where(table.c.blob.in_(some)))
                     if row_id not in known}  # fmt: skip
        return Old(list(gone), list(unread), sorted(blobs - still))

    def remove(self, old: Old) -> None:
        """Remove the rows; their blobs are to be gone by then, since nothing names them afterwards."""
        for some in _pieces(old.workloads):
            mine = sa.select(samples.c.id).where(samples.c.workload_id.in_(some))
            with self.database.writing() as tx:
                tx.execute(prompts.delete().where(prompts.c.sample_id.in_(mine)))
                tx.execute(samples.delete().where(samples.c.workload_id.in_(some)))
                tx.execute(workloads.delete().where(workloads.c.id.in_(some)))
        for some in _pieces(old.series):
            with self.database.writing() as tx:
                tx.execute(series.delete().where(series.c.id.in_(some)))

    def remove_events(self, cls: Class, before: float) -> None:
        """Remove the class's events from before then."""
        with self.database.writing() as tx:
            tx.execute(events.delete().where(events.c.gpu_class == cls.value, events.c.at < before))


def _pieces(values: Sequence[str]) -> list[Sequence[str]]:
    return [values[start : start + _MOST] for start in range(0, len(values), _MOST)]
