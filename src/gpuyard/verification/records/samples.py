"""Samples: each ties a hidden prompt to its series and its workload.

A sample checks one executor, once, ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gpuyard.domain.errors import RefusedError
from gpuyard.domain.ids import new_id
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.records.base import RecordsBase
from gpuyard.verification.tables import batches, prompts, samples, series, workloads


@dataclass(frozen=True, slots=True)
class TakenSample:
    """A sample given to the check `check_id`.

    `blob`: the SHA-256 of its series' file.
    """

    check_id: str
    sample_id: str
    workload_id: str
    seed: int
    series_id: str
    blob: str
    hidden: str
    answer: str


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """The figures of a class.

    Of its samples `ready` are answered and unused, `waiting` are unanswered, `used`
    were given to a check, and `retired` will not be used. Removed samples are not
    counted.
    """

    series: int
    used: int
    ready: int
    waiting: int
    retired: int


class SampleRecords(RecordsBase):
    """The samples of each class."""

    def samples_unused(self, cls: Class) -> int:
        """How many can be used now, or once they are answered."""
        return self._count_open(cls)

    def samples_ready(self, cls: Class) -> int:
        """How many can be used now."""
        return self._count_open(cls, _ANSWERED)

    def _count_open(self, cls: Class, *conditions: sa.ColumnElement[bool]) -> int:
        # What was used and retired, most of all there are, is not looked at.
        wanted = sa.select(sa.func.count()).select_from(samples).join(workloads)
        with self.database.reading() as tx:
            return (
                tx.scalar(
                    wanted.where(
                        workloads.c.gpu_class == cls.value, _UNUSED, *conditions
                    )
                )
                or 0
            )

    def counts(self, cls: Class) -> SampleCounts:
        """The figures of a class."""
        wanted = (
            sa.select(
                *(
                    sa.func.sum(sa.case((condition, 1), else_=0))
                    for condition in (
                        _USED,
                        sa.and_(_UNUSED, _ANSWERED),
                        sa.and_(_UNUSED, ~_ANSWERED),
                        sa.and_(~_USED, ~_OPEN),
                    )
                )
            )
            .select_from(samples)
            .join(workloads)
            .where(workloads.c.gpu_class == cls.value)
        )
        live = sa.select(sa.func.count()).where(
            series.c.gpu_class == cls.value, series.c.retired_at.is_(None)
        )
        with self.database.reading() as tx:
            return SampleCounts(
                tx.scalar(live) or 0,
                *(value or 0 for value in tx.execute(wanted).one()),
            )

    def take(self, cls: Class, count: int, batch_id: str) -> list[TakenSample]:
        """Give `count` ready samples, or as many as there are, to new checks.

        A workload is bound to its batch for ever, so as few workloads as possible are
        used: first those that the batch has already, then the oldest. Raises
        RefusedError when the batch is released or closed, because its seeds are known.
        """
        taken: list[TakenSample] = []
        with self.database.writing(lock=f"series {cls}") as tx:
            _require_open(tx, batch_id)
            while len(taken) < count:
                found = _next_samples(tx, cls, count - len(taken), batch_id)
                if not found:
                    break
                _bind(tx, found, batch_id, self._now())
                taken += found
        return taken


_USED = samples.c.check_id.is_not(None)
_OPEN = sa.and_(workloads.c.batch_id.is_(None), workloads.c.retired_at.is_(None))
_ANSWERED = workloads.c.finished_at.is_not(None)
_UNUSED = sa.and_(~_USED, _OPEN)


def _require_open(tx: sa.Connection, batch_id: str) -> None:
    """Lock the batch's row, so that it is not released meanwhile."""
    still = sa.select(batches.c.id).where(
        batches.c.id == batch_id,
        batches.c.released_at.is_(None),
        batches.c.ended_at.is_(None),
    )
    if tx.execute(still.with_for_update()).first() is None:
        raise RefusedError(
            f"The batch {batch_id} takes no more samples: it is released, over or not"
            " there."
        )


def _next_samples(
    tx: sa.Connection, cls: Class, count: int, batch_id: str
) -> list[TakenSample]:
    """Up to `count` samples that the batch may use."""
    left = sa.exists().where(
        samples.c.workload_id == workloads.c.id, samples.c.check_id.is_(None)
    )
    some = (
        sa.select(workloads.c.id)
        .where(
            workloads.c.gpu_class == cls.value,
            workloads.c.finished_at.is_not(None),
            workloads.c.retired_at.is_(None),
            sa.or_(workloads.c.batch_id.is_(None), workloads.c.batch_id == batch_id),
            left,
        )
        .order_by(
            workloads.c.batch_id.is_(None), workloads.c.created_at, workloads.c.id
        )
        .limit(-(-count // TRAITS[cls].prompts))
        .with_for_update()
    )
    mine: Sequence[str] = tx.execute(some).scalars().all()
    unused = (
        sa.select(
            samples.c.id,
            workloads.c.id,
            workloads.c.seed,
            series.c.id,
            series.c.blob,
            prompts.c.content,
            prompts.c.answer,
        )
        .select_from(samples)
        .join(workloads)
        .join(series, samples.c.series_id == series.c.id)
        .join(prompts, prompts.c.sample_id == samples.c.id)
        .where(workloads.c.id.in_(mine), samples.c.check_id.is_(None))
        .order_by(
            workloads.c.batch_id.is_(None),
            workloads.c.created_at,
            workloads.c.id,
            samples.c.id,
        )
        .limit(count)
    )
    return (
        [TakenSample(new_id("chk"), *row) for row in tx.execute(unused)] if mine else []
    )


def _bind(
    tx: sa.Connection, taken: Sequence[TakenSample], batch_id: str, now: float
) -> None:
    given: list[dict[str, Any]] = [
        {"the_sample": one.sample_id, "the_check": one.check_id} for one in taken
    ]
    tx.execute(
        samples.update()
        .where(samples.c.id == sa.bindparam("the_sample"))
        .values(check_id=sa.bindparam("the_check")),
        given,
    )
    bound = workloads.update().where(
        workloads.c.id.in_({one.workload_id for one in taken})
    )
    tx.execute(bound.values(batch_id=batch_id))
    seen = series.update().where(
        series.c.id.in_({one.series_id for one in taken}), series.c.used_at.is_(None)
    )
    tx.execute(seen.values(used_at=now))
