"""Workloads: hidden prompts, one from each of many series, with a seed that is a secret until the barrier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from gpuyard.domain.ids import new_id
from gpuyard.verification.classes import Class
from gpuyard.verification.database import insert_many
from gpuyard.verification.records.base import Records
from gpuyard.verification.tables import prompts, samples, uploads, workloads


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload; `seed` is a signed 64-bit number, `blob` the SHA-256 of the file of its prompts."""

    id: str
    seed: int
    blob: str


Hidden = tuple[str, str]
"""A series' id and one of its prompts."""


@dataclass(frozen=True, slots=True)
class NewWorkload:
    """A workload to be added, and what is hidden in it."""

    seed: int
    blob: str
    hidden: Sequence[Hidden]


class WorkloadRecords(Records):
    """Workloads of each class."""

    def add_workload(self, cls: Class, seed: int, blob: str, hidden: Sequence[Hidden]) -> str:
        """Add one workload; its id."""
        return self.add_workloads(cls, [NewWorkload(seed, blob, hidden)])[0]

    def add_workloads(self, cls: Class, fresh: Sequence[NewWorkload]) -> list[str]:
        """Add workloads with a sample for each of their prompts, all at once; their ids."""
        now, ids = self._now(), [new_id("workload") for _ in fresh]
        with self.database.writing() as tx:
            for workload_id, one in zip(ids, fresh, strict=True):
                values = {"gpu_class": cls.value, "seed": one.seed, "blob": one.blob, "created_at": now}
                tx.execute(workloads.insert().values(id=workload_id, **values))
                first = new_id("sample")
                taken = [(f"{first}_{place}", *hidden) for place, hidden in enumerate(one.hidden)]
                columns = ("id", "series_id", "workload_id", "created_at")
                insert_many(tx, samples, columns, [(own, series_id, workload_id, now) for own, series_id, _ in taken])
                insert_many(tx, prompts, ("sample_id", "content"), [(own, prompt) for own, _, prompt in taken])
            tx.execute(uploads.delete().where(uploads.c.blob.in_([one.blob for one in fresh])))
        return ids

    def workload(self, workload_id: str) -> Workload | None:
        """One workload, used or not."""
        wanted = sa.select(*_COLUMNS).where(workloads.c.id == workload_id)
        with self.database.reading() as tx:
            row = tx.execute(wanted).first()
            return Workload(*row) if row else None

    def unfinished(self, cls: Class) -> list[Workload]:
        """Those that wait for answers, oldest first."""
        wanted = sa.select(*_COLUMNS).where(*_waiting(cls)).order_by(workloads.c.created_at, workloads.c.id)
        with self.database.reading() as tx:
            return [Workload(*row) for row in tx.execute(wanted)]

    def finish_workload(self, workload_id: str, answers: Mapping[str, str]) -> bool:
        """Keep the answers of all its prompts, and have it be ready; False when it waits for none any more.

        KeyError, and nothing is kept, when a prompt has no answer.
        """
        finished = workloads.update().where(
            workloads.c.id == workload_id, workloads.c.finished_at.is_(None), workloads.c.retired_at.is_(None)
        )
        mine = (
            sa.select(prompts.c.sample_id, prompts.c.content).join(samples).where(samples.c.workload_id == workload_id)
        )
        answered = (
            prompts.update().where(prompts.c.sample_id == sa.bindparam("one")).values(answer=sa.bindparam("said"))
        )
        with self.database.writing() as tx:
            if not tx.execute(finished.values(finished_at=self._now())).rowcount:
                return False
            rows = [{"one": sample_id, "said": answers[content]} for sample_id, content in tx.execute(mine)]
            tx.execute(answered, rows)
            return True

    def retire_workload(self, workload_id: str) -> None:
        """Answer and use it no more."""
        one = workloads.update().where(workloads.c.id == workload_id, workloads.c.retired_at.is_(None))
        with self.database.writing() as tx:
            tx.execute(one.values(retired_at=self._now()))


_COLUMNS = (workloads.c.id, workloads.c.seed, workloads.c.blob)


def _waiting(cls: Class) -> tuple[sa.ColumnElement[bool], ...]:
    return workloads.c.gpu_class == cls.value, workloads.c.finished_at.is_(None), workloads.c.retired_at.is_(None)
