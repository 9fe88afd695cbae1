"""Workloads: hidden prompts, one from each of many series, with a secret seed."""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from gpuyard.domain.ids import new_id
from gpuyard.verification.classes import Class
from gpuyard.verification.database import insert_many
from gpuyard.verification.records.base import RecordsBase, chunks
from gpuyard.verification.tables import (
    batches,
    prompts,
    samples,
    series,
    uploads,
    workloads,
)


@dataclass(frozen=True, slots=True)
class PromptWorkload:
    """A workload.

    `seed` is a signed 64-bit number, secret until the barrier. `blob` is the SHA-256 of
    the file of its prompts.
    """

    id: str
    seed: int
    blob: str


HiddenPrompt = tuple[str, str]
"""A series' id and one of its prompts."""


@dataclass(frozen=True, slots=True)
class NewWorkload:
    """A workload to be added, with its hidden prompts."""

    seed: int
    blob: str
    hidden: Sequence[HiddenPrompt]


@dataclass(frozen=True, slots=True)
class ExpiredData:
    """Old workloads and series of a class, by id.

    `blobs`: the files that no other row names.
    """

    workloads: Sequence[str]
    series: Sequence[str]
    blobs: Sequence[str]


class WorkloadRecords(RecordsBase):
    """The workloads of each class."""

    def add_workloads(self, cls: Class, fresh: Sequence[NewWorkload]) -> list[str]:
        """Add workloads in one transaction; returns their ids.

        Each of their prompts becomes a sample.
        """
        now = self._now()
        ids = [new_id("workload") for _ in fresh]
        with self.database.writing() as tx:
            for workload_id, one in zip(ids, fresh, strict=True):
                values = {
                    "gpu_class": cls.value,
                    "seed": one.seed,
                    "blob": one.blob,
                    "created_at": now,
                }
                tx.execute(workloads.insert().values(id=workload_id, **values))
                first = new_id("sample")
                taken = [
                    (f"{first}_{place}", *hidden)
                    for place, hidden in enumerate(one.hidden)
                ]
                columns = ("id", "series_id", "workload_id", "created_at")
                insert_many(
                    tx,
                    samples,
                    columns,
                    [(own, series_id, workload_id, now) for own, series_id, _ in taken],
                )
                insert_many(
                    tx,
                    prompts,
                    ("sample_id", "content"),
                    [(own, prompt) for own, _, prompt in taken],
                )
            tx.execute(
                uploads.delete().where(uploads.c.blob.in_([one.blob for one in fresh]))
            )
        return ids

    def workload(self, workload_id: str) -> PromptWorkload | None:
        """One workload, used or not."""
        wanted = sa.select(*_COLUMNS).where(workloads.c.id == workload_id)
        with self.database.reading() as tx:
            row = tx.execute(wanted).first()
            return PromptWorkload(*row) if row else None

    def unfinished(self, cls: Class) -> list[PromptWorkload]:
        """The workloads that wait for answers, oldest first."""
        wanted = (
            sa.select(*_COLUMNS)
            .where(*_waiting(cls))
            .order_by(workloads.c.created_at, workloads.c.id)
        )
        with self.database.reading() as tx:
            return [PromptWorkload(*row) for row in tx.execute(wanted)]

    def finish_workload(self, workload_id: str, answers: Mapping[str, str]) -> bool:
        """Store the answers of all its prompts; False when it does not wait for them.

        Raises KeyError, and stores nothing, when an answer is missing.
        """
        finished = workloads.update().where(
            workloads.c.id == workload_id,
            workloads.c.finished_at.is_(None),
            workloads.c.retired_at.is_(None),
        )
        mine = (
            sa.select(prompts.c.sample_id, prompts.c.content)
            .join(samples)
            .where(samples.c.workload_id == workload_id)
        )
        answered = (
            prompts.update()
            .where(prompts.c.sample_id == sa.bindparam("one"))
            .values(answer=sa.bindparam("said"))
        )
        with self.database.writing() as tx:
            if not tx.execute(finished.values(finished_at=self._now())).rowcount:
                return False
            rows = [
                {"one": sample_id, "said": answers[content]}
                for sample_id, content in tx.execute(mine)
            ]
            tx.execute(answered, rows)
            return True

    def retire_workload(self, workload_id: str) -> None:
        """Stop answering and using a workload."""
        one = workloads.update().where(
            workloads.c.id == workload_id, workloads.c.retired_at.is_(None)
        )
        with self.database.writing() as tx:
            tx.execute(one.values(retired_at=self._now()))

    def retire_stale(self, cls: Class, before: float) -> int:
        """Retire old workloads that were never answered; returns how many.

        Batches that are as old are closed, since their process must be dead, and their
        workloads are retired too.
        """
        now = self._now()
        left = batches.update().where(
            batches.c.ended_at.is_(None), batches.c.created_at < before
        )
        dead = sa.select(batches.c.id).where(batches.c.ended_at.is_not(None))
        stale = sa.or_(
            workloads.c.batch_id.in_(dead),
            sa.and_(workloads.c.finished_at.is_(None), workloads.c.created_at < before),
        )
        mine = workloads.update().where(
            workloads.c.gpu_class == cls.value, workloads.c.retired_at.is_(None), stale
        )
        with self.database.writing() as tx:
            tx.execute(left.values(ended_at=now, outcome="abandoned"))
            return tx.execute(mine.values(retired_at=now)).rowcount

    def expired(self, cls: Class, before: float) -> ExpiredData:
        """What of the class was retired before then, and no running batch uses."""
        old_workloads = sa.select(workloads.c.id, workloads.c.blob).where(
            workloads.c.gpu_class == cls.value,
            workloads.c.retired_at < before,
            ~_IN_RUNNING_BATCH,
        )
        kept_workload = sa.or_(
            workloads.c.retired_at.is_(None),
            workloads.c.retired_at >= before,
            _IN_RUNNING_BATCH,
        )
        in_kept_workload = sa.exists().where(
            samples.c.series_id == series.c.id,
            samples.c.workload_id == workloads.c.id,
            kept_workload,
        )
        old_series = sa.select(series.c.id, series.c.blob).where(
            series.c.gpu_class == cls.value,
            series.c.retired_at < before,
            ~in_kept_workload,
        )
        with self.database.reading() as tx:
            workload_blobs = {row.id: row.blob for row in tx.execute(old_workloads)}
            series_blobs = {row.id: row.blob for row in tx.execute(old_series)}
            blobs = {*workload_blobs.values(), *series_blobs.values()}
            kept = _named_elsewhere(tx, workloads, blobs, workload_blobs)
            kept |= _named_elsewhere(tx, series, blobs, series_blobs)
        return ExpiredData(
            list(workload_blobs), list(series_blobs), sorted(blobs - kept)
        )

    def remove_expired(self, expired: ExpiredData) -> None:
        """Remove the rows. Delete their files first, since no row names them then."""
        for some in chunks(expired.workloads):
            with self.database.writing() as tx:
                _remove_workloads(tx, some)
        for some in chunks(expired.series):
            with self.database.writing() as tx:
                tx.execute(series.delete().where(series.c.id.in_(some)))


def _remove_workloads(tx: sa.Connection, workload_ids: Sequence[str]) -> None:
    """Remove workloads, and before them the rows that name them."""
    in_these = samples.c.workload_id.in_(workload_ids)
    sample_ids = sa.select(samples.c.id).where(in_these)
    tx.execute(prompts.delete().where(prompts.c.sample_id.in_(sample_ids)))
    tx.execute(samples.delete().where(in_these))
    tx.execute(workloads.delete().where(workloads.c.id.in_(workload_ids)))


def retire_answered(tx: sa.Connection, cls: Class, now: float) -> None:
    """Stop using answered workloads of a class that no batch has."""
    answered = workloads.update().where(
        workloads.c.gpu_class == cls.value,
        workloads.c.finished_at.is_not(None),
        workloads.c.batch_id.is_(None),
        workloads.c.retired_at.is_(None),
    )
    tx.execute(answered.values(retired_at=now))


_COLUMNS = (workloads.c.id, workloads.c.seed, workloads.c.blob)


def _waiting(cls: Class) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        workloads.c.gpu_class == cls.value,
        workloads.c.finished_at.is_(None),
        workloads.c.retired_at.is_(None),
    )


_IN_RUNNING_BATCH = sa.exists().where(
    batches.c.id == workloads.c.batch_id, batches.c.ended_at.is_(None)
)


def _named_elsewhere(
    tx: sa.Connection, table: sa.Table, blobs: Collection[str], ids: Container[str]
) -> set[str]:
    """Those of `blobs` that a row of the table names that is not in `ids`."""
    named: set[str] = set()
    for some in chunks([*blobs]):
        rows = sa.select(table.c.id, table.c.blob).where(table.c.blob.in_(some))
        named |= {blob for row_id, blob in tx.execute(rows) if row_id not in ids}
    return named
