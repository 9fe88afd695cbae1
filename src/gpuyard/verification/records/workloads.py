"""Workloads: hidden prompts, one from each of many series, with a seed that is a secret until the barrier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from gpuyard.domain.ids import new_id
from gpuyard.verification.classes import Class
from gpuyard.verification.records.base import Records
from gpuyard.verification.tables import prompts, samples, uploads, workloads


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload; `seed` is a signed 64-bit number, `blob` the SHA-256 of the file of its prompts."""

    id: str
    seed: int
    blob: str


class WorkloadRecords(Records):
    """Workloads of each class."""

    def add_workload(self, cls: Class, seed: int, blob: str, hidden: Sequence[tuple[str, str]]) -> str:
        """Add a workload with a sample for each `(series, prompt)` of `hidden`, all at once; its id."""
        now, workload_id = self._now(), new_id("workload")
        taken = [(new_id("sample"), series_id, prompt) for series_id, prompt in hidden]
        with self.database.writing() as tx:
            tx.execute(workloads.insert().values(
                id=workload_id, gpu_class=cls.value, seed=seed, blob=blob, created_at=now
            ))  # fmt: skip
            tx.execute(samples.insert(), [
                {"id": sample_id, "series_id": series_id, "workload_id": workload_id, "created_at": now}
                for sample_id, series_id, _ in taken
            ])  # fmt: skip
            tx.execute(prompts.insert(), [
                {"id": new_id("prompt"), "sample_id": sample_id, "content": prompt} for sample_id, _, prompt in taken
            ])  # fmt: skip
            tx.execute(uploads.delete().where(uploads.c.blob == blob))
        return workload_id

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
        mine = sa.select(prompts.c.id, prompts.c.content).join(samples).where(samples.c.workload_id == workload_id)
        answered = prompts.update().where(prompts.c.id == sa.bindparam("prompt_id")).values(answer=sa.bindparam("said"))
        with self.database.writing() as tx:
            if not tx.execute(finished.values(finished_at=self._now())).rowcount:
                return False
            rows = [{"prompt_id": prompt_id, "said": answers[content]} for prompt_id, content in tx.execute(mine)]
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
