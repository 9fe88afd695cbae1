"""Reading progress and metric series."""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.side_tables import points, progress


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
