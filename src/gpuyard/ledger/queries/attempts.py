"""Reading attempts."""

from collections.abc import Iterable

import sqlalchemy as sa

from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import attempts, jobs

_LIVE_ATTEMPTS = tuple(state.value for state in AttemptState if state.live)


class AttemptQueries(LedgerReader):
    """Reads of attempts."""

    def attempts_of(self, job_ids: Iterable[str]) -> dict[str, list[Row]]:
        """Each job's attempts in order."""
        found: dict[str, list[Row]] = {}
        where = attempts.c.job_id.in_(list(job_ids))
        for row in self._rows(sa.select(attempts).where(where).order_by(attempts.c.id)):
            found.setdefault(row["job_id"], []).append(row)
        return found

    def live_attempts(self) -> list[Row]:
        """Every attempt that holds a booking."""
        return self._rows(
            sa.select(attempts)
            .where(attempts.c.state.in_(_LIVE_ATTEMPTS))
            .order_by(attempts.c.id)
        )

    def newest_ended(self, most: int, provider: str) -> list[Row]:
        """A provider's ended attempts, newest first.

        Each has the `name`, `labels` and `shape` of its job too.
        """
        columns = (attempts, jobs.c.name, jobs.c.labels, jobs.c.shape)
        found = (
            sa.select(*columns)
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(attempts.c.provider == provider, attempts.c.ended_at.is_not(None))
        )
        return self._rows(found.order_by(attempts.c.id.desc()).limit(most))

    def service(self, job_ids: Iterable[str]) -> dict[str, tuple[float, int]]:
        """By job: how many seconds its ended attempts ran, how many were preempted."""
        by_wall_clock = attempts.c.ended_at - attempts.c.started_at
        measured = sa.func.coalesce(attempts.c.ran_s, by_wall_clock)
        ran = sa.func.sum(measured).label("seconds")
        preempted = sa.func.sum(
            sa.case((attempts.c.reason == Reason.PREEMPTED.value, 1), else_=0)
        ).label("preempted")
        found = sa.select(attempts.c.job_id, ran, preempted).where(
            attempts.c.job_id.in_(list(job_ids)), attempts.c.ended_at.is_not(None)
        )
        rows = self._rows(found.group_by(attempts.c.job_id))
        return {
            row["job_id"]: (row["seconds"] or 0.0, row["preempted"]) for row in rows
        }

    def homes(self, job_ids: Iterable[str]) -> dict[str, str]:
        """By job: the provider of its newest ended attempt that ran."""
        ran = (
            attempts.c.job_id.in_(list(job_ids)),
            attempts.c.started_at.is_not(None),
            attempts.c.ended_at.is_not(None),
        )
        found = (
            sa.select(attempts.c.job_id, attempts.c.provider)
            .where(*ran)
            .order_by(attempts.c.id)
        )
        return {row["job_id"]: row["provider"] for row in self._rows(found)}
