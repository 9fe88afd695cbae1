"""Reading progress and metric series."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.side_tables import points, progress


class StoredPoint(NamedTuple):
    """The point number `n` of a series of an attempt; `at` is UTC seconds."""

    n: int
    step: int | None
    value: float
    at: float


class MetricQueries(LedgerReader):
    """Reads of progress and metric series."""

    def progress_of(self, job_ids: Iterable[str]) -> dict[str, Row]:
        """Each job's latest progress, if it has one."""
        rows = self._rows(
            sa.select(progress).where(progress.c.job_id.in_(list(job_ids)))
        )
        return {row["job_id"]: row["body"] for row in rows}

    def point_counts(self, job_id: str) -> dict[tuple[str, str], int]:
        """How many points each series of a job has, by attempt and name."""
        last = sa.func.max(points.c.n).label("last")
        statement = sa.select(points.c.attempt_id, points.c.name, last)
        statement = statement.where(points.c.job_id == job_id)
        rows = self._rows(statement.group_by(points.c.attempt_id, points.c.name))
        return {(row["attempt_id"], row["name"]): row["last"] + 1 for row in rows}

    def series_names(self, job_id: str) -> list[str]:
        """The names of a job's series, in order, without a look at each point."""
        found: list[str] = []
        column = points.c.name
        statement = sa.select(column).where(points.c.job_id == job_id)
        following = statement.order_by(column).limit(1)
        rows = self._rows(following)
        while rows:
            found.append(rows[0]["name"])
            rows = self._rows(following.where(column > found[-1]))
        return found

    def points_after(self, attempt_id: str, name: str, after: int) -> list[StoredPoint]:
        """The points of a series of one attempt whose `n` is larger, in order."""
        columns = (points.c.n, points.c.step, points.c.value, points.c.at)
        statement = sa.select(*columns).where(
            points.c.attempt_id == attempt_id, points.c.name == name, points.c.n > after
        )
        return self._results(
            statement.order_by(points.c.n),
            (),
            lambda result: [StoredPoint(*row) for row in result],
        )

    def has_point(self, attempt_id: str, name: str, n: int) -> bool:
        """Whether this point is still there."""
        found = sa.select(points.c.n).where(
            points.c.attempt_id == attempt_id, points.c.name == name, points.c.n == n
        )
        return bool(self._rows(found))

    def series(self, job_id: str, names: Sequence[str] = ()) -> dict[str, list[Row]]:
        """A job's metric series by name: `step`, `value` and `at` of each point.

        Points are in the order in which they were printed.
        """
        columns = (points.c.name, points.c.step, points.c.value, points.c.at)
        statement = sa.select(*columns).where(points.c.job_id == job_id)
        if names:
            statement = statement.where(points.c.name.in_(names))
        found: dict[str, list[Row]] = {}
        # Attempt ids sort by time, so the series of a resumed job continues where the
        # previous attempt stopped.
        for row in self._rows(statement.order_by(points.c.attempt_id, points.c.n)):
            found.setdefault(row.pop("name"), []).append(row)
        return found
