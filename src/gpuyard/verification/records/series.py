"""Series: secret files of prompts, each used in many workloads until it is retired."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from gpuyard.domain.ids import new_id
from gpuyard.verification.classes import Class
from gpuyard.verification.records.base import RecordsBase
from gpuyard.verification.tables import series, uploads


@dataclass(frozen=True, slots=True)
class Series:
    """A series. `blob`: the SHA-256 of its file."""

    id: str
    blob: str


class SeriesRecords(RecordsBase):
    """The series of each class."""

    def series_count(self, cls: Class) -> int:
        """How many series are not retired."""
        with self.database.reading() as tx:
            return _count(tx, cls)

    def series(self, cls: Class) -> list[Series]:
        """The series that may be sampled, oldest first."""
        wanted = (
            sa.select(series.c.id, series.c.blob)
            .where(*_live(cls))
            .order_by(series.c.created_at, series.c.id)
        )
        with self.database.reading() as tx:
            return [Series(*row) for row in tx.execute(wanted)]

    def series_room(self, cls: Class, most: int) -> int:
        """How many series can be added.

        There can be `most` of them, and used ones can be replaced.
        """
        with self.database.reading() as tx:
            used = (
                tx.scalar(
                    sa.select(sa.func.count())
                    .select_from(series)
                    .where(*_live(cls), _USED)
                )
                or 0
            )
            return max(most - _count(tx, cls) + used, 0)

    def add_series(
        self, cls: Class, blobs: Sequence[str], generator_version: int, most: int
    ) -> int:
        """Add series with these files; returns how many were added.

        Files that exist already are skipped. There are never more than `most` series:
        the oldest used ones are retired for new ones, and what has no room is left out.
        """
        now = self._now()
        with self.database.writing(lock=f"series {cls}") as tx:
            known = set(
                tx.execute(
                    sa.select(series.c.blob).where(series.c.blob.in_(blobs))
                ).scalars()
            )
            blobs = [blob for blob in dict.fromkeys(blobs) if blob not in known]
            excess = _count(tx, cls) + len(blobs) - most
            retired = _retire_oldest(tx, cls, excess, now) if excess > 0 else 0
            added = blobs[: max(len(blobs) - max(excess - retired, 0), 0)]
            rows = [
                {
                    "id": new_id("series"),
                    "gpu_class": cls.value,
                    "blob": blob,
                    "created_at": now,
                    "generator_version": generator_version,
                }
                for blob in added
            ]
            if rows:
                tx.execute(series.insert(), rows)
                tx.execute(uploads.delete().where(uploads.c.blob.in_(added)))
        return len(rows)

    def retire_series(self, series_id: str) -> None:
        """Stop sampling a series, because its file is gone or damaged."""
        one = series.update().where(
            series.c.id == series_id, series.c.retired_at.is_(None)
        )
        with self.database.writing() as tx:
            tx.execute(one.values(retired_at=self._now()))


_USED = series.c.used_at.is_not(None)


def _live(cls: Class) -> tuple[sa.ColumnElement[bool], ...]:
    return series.c.gpu_class == cls.value, series.c.retired_at.is_(None)


def _count(tx: sa.Connection, cls: Class) -> int:
    return (
        tx.scalar(sa.select(sa.func.count()).select_from(series).where(*_live(cls)))
        or 0
    )


def _retire_oldest(tx: sa.Connection, cls: Class, count: int, now: float) -> int:
    oldest = (
        sa.select(series.c.id)
        .where(*_live(cls), _USED)
        .order_by(series.c.created_at, series.c.id)
        .limit(count)
    )
    return tx.execute(
        series.update().where(series.c.id.in_(oldest)).values(retired_at=now)
    ).rowcount
