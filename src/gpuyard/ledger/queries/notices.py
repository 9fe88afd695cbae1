"""Reading who is still to be told that a job or an array has ended."""

import sqlalchemy as sa

from gpuyard.domain.states import JobState
from gpuyard.ledger.people_tables import notices
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import arrays, jobs

_ENDED = tuple(state.value for state in JobState if state.terminal)
_MOST_OF_OWNER = 1000


class NoticeQueries(LedgerReader):
    """Reads of notices."""

    def due_notices(self) -> list[Row]:
        """Of each address and owner, the first notice whose job or array has ended and
        that nobody was told; of one owner so many at most.

        With the `name` of the job, its `state`, `reason` and `exit_code`, and when it
        `ended_at`; or with the `name` of the array, how many tasks it has (`total`) and
        how many of them ended in which state (`counts`).
        """
        return [*self._of_jobs(), *self._of_arrays()]

    def _of_jobs(self) -> list[Row]:
        has_ended = jobs.c.state.in_(_ENDED)
        firsts = _firsts(notices.join(jobs, jobs.c.id == notices.c.job_id), has_ended)
        return self._rows(
            sa.select(
                notices.c.id,
                notices.c.job_id,
                notices.c.address,
                notices.c.owner,
                jobs.c.name,
                jobs.c.project,
                jobs.c.state,
                jobs.c.reason,
                jobs.c.exit_code,
                jobs.c.ended_at,
            )
            .join(jobs, jobs.c.id == notices.c.job_id)
            .where(notices.c.id.in_(firsts))
        )

    def _of_arrays(self) -> list[Row]:
        task = sa.select(jobs.c.id).where(jobs.c.array_id == arrays.c.id)
        runs = task.where(jobs.c.state.not_in(_ENDED)).correlate(arrays).exists()
        firsts = _firsts(notices.join(arrays, arrays.c.id == notices.c.job_id), ~runs)
        rows = self._rows(
            sa.select(
                notices.c.id,
                notices.c.job_id,
                notices.c.address,
                notices.c.owner,
                arrays.c.name,
                arrays.c.project,
                arrays.c.total,
            )
            .join(arrays, arrays.c.id == notices.c.job_id)
            .where(notices.c.id.in_(firsts))
        )
        return [self._with_counts(row) for row in rows]

    def _with_counts(self, row: Row) -> Row:
        counted = self._rows(
            sa.select(
                jobs.c.state,
                sa.func.count().label("tasks"),
                sa.func.max(jobs.c.ended_at).label("ended_at"),
            )
            .where(jobs.c.array_id == row["job_id"])
            .group_by(jobs.c.state)
            .order_by(jobs.c.state)
        )
        counts = {each["state"]: each["tasks"] for each in counted}
        ends = [each["ended_at"] or 0.0 for each in counted]
        return {**row, "counts": counts, "ended_at": max(ends, default=0.0)}


def _firsts(where: sa.Join, is_due: sa.ColumnElement[bool]) -> sa.Select[tuple[str]]:
    """The ids of the notices whose turn it is: the first of each address and owner, and
    of each owner the oldest of these. So nobody's many addresses hide another's.
    """
    first = sa.func.min(notices.c.id)
    turn = sa.func.row_number().over(partition_by=notices.c.owner, order_by=first)
    found = (
        sa.select(first.label("id"), turn.label("turn"))
        .select_from(where)
        .where(notices.c.told_at.is_(None), is_due)
        .group_by(notices.c.address, notices.c.owner)
        .subquery()
    )
    return sa.select(found.c.id).where(found.c.turn <= _MOST_OF_OWNER)
