"""Reading arrays and their tasks."""

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from gpuyard.domain.states import JobState
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.queries.job_filter import ALL_JOBS, JobFilter
from gpuyard.ledger.queries.jobs import SHORTEST_TAIL, escape_like
from gpuyard.ledger.queries.visibility import visible
from gpuyard.ledger.tables import arrays, attempts, jobs, specs

_LIVE = tuple(state.value for state in JobState if not state.terminal)
_ENDED_BADLY = tuple(
    state.value
    for state in JobState
    if state.terminal and state is not JobState.COMPLETED
)


class ArrayQueries(LedgerReader):
    """Reads of arrays and their tasks."""

    def array(self, array_id: str) -> Row | None:
        """The array of this id."""
        return self._row(sa.select(arrays).where(arrays.c.id == array_id))

    def array_by_key(self, key: str) -> Row | None:
        """The array that was submitted with this idempotency key."""
        return self._row(sa.select(arrays).where(arrays.c.idempotency_key == key))

    def find_array_ids(
        self, reference: str, hidden: Collection[str] = (), limit: int = 3
    ) -> list[str]:
        """The arrays whose id is `reference` or ends so, but for those of `hidden`
        projects. One whose tasks are all gone is only kept for its idempotency key.
        """
        if len(reference) < SHORTEST_TAIL:
            return []
        ending = arrays.c.id.like("%" + escape_like(reference), escape="\\")
        task = sa.select(jobs.c.id).where(jobs.c.array_id == arrays.c.id)
        statement = (
            sa.select(arrays.c.id)
            .where(ending, task.correlate(arrays).exists())
            .where(*visible(arrays.c.project, hidden))
            .order_by(arrays.c.id.desc())
        )
        found = [row["id"] for row in self._rows(statement)]
        return [reference] if reference in found else found[:limit]

    def array_of(self, job_id: str) -> str | None:
        """The array of which this job is a task."""
        row = self._row(sa.select(jobs.c.array_id).where(jobs.c.id == job_id))
        return row["array_id"] if row else None

    def task_id(self, array_id: str, index: int) -> str | None:
        """The job that is the task of this index."""
        is_it = sa.and_(jobs.c.array_id == array_id, jobs.c.array_index == index)
        row = self._row(sa.select(jobs.c.id).where(is_it))
        return row["id"] if row else None

    def task_ids(
        self, array_id: str, *, queued: bool = False, failed: bool = False
    ) -> list[str]:
        """The jobs that are its tasks, in the order of their submission: all, or only
        the `queued` ones, or those that `failed` in any way.
        """
        statement = sa.select(jobs.c.id).where(jobs.c.array_id == array_id)
        if queued:
            statement = statement.where(jobs.c.state == JobState.QUEUED.value)
        if failed:
            statement = statement.where(jobs.c.state.in_(_ENDED_BADLY))
        return [row["id"] for row in self._rows(statement.order_by(jobs.c.id))]

    def own_specs(self, array_id: str) -> dict[str, Row]:
        """The specs of those of its tasks that have one of their own, because their
        owner changed them.
        """
        is_own = sa.and_(jobs.c.id == specs.c.job_id, jobs.c.array_id == array_id)
        rows = self._rows(sa.select(specs).where(is_own))
        return {row["job_id"]: row["body"] for row in rows}

    def arrays_page(
        self, *, limit: int, before: str | None = None, wanted: JobFilter = ALL_JOBS
    ) -> list[Row]:
        """Arrays older than the id `before` with a task that `wanted` admits, newest
        first.
        """
        conditions = wanted.conditions(self._engine.dialect.name)
        task = sa.select(jobs.c.id).where(jobs.c.array_id == arrays.c.id, *conditions)
        statement = sa.select(arrays).where(task.correlate(arrays).exists())
        if before:
            statement = statement.where(arrays.c.id < before)
        return self._rows(statement.order_by(arrays.c.id.desc()).limit(limit))

    def task_counts(self, array_ids: Sequence[str]) -> list[Row]:
        """For each of these arrays and each state of its tasks: `array_id`, `state`,
        their number `n`, and the first `started_at` and the last `ended_at` of them.
        """
        columns = (
            jobs.c.array_id,
            jobs.c.state,
            sa.func.count().label("n"),
            sa.func.min(jobs.c.started_at).label("started_at"),
            sa.func.max(jobs.c.ended_at).label("ended_at"),
        )
        statement = sa.select(*columns).where(jobs.c.array_id.in_(array_ids))
        return self._rows(statement.group_by(jobs.c.array_id, jobs.c.state))

    def array_costs(self, array_id: str) -> list[Row]:
        """What its ended attempts have cost, by `currency`, `basis` and `tier`: the
        `amount`.
        """
        columns = (attempts.c.currency, attempts.c.basis, attempts.c.tier)
        amount = sa.func.sum(sa.cast(attempts.c.cost, sa.Numeric(asdecimal=False)))
        statement = (
            sa.select(*columns, amount.label("amount"))
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(jobs.c.array_id == array_id)
        )
        return self._rows(statement.group_by(*columns))

    def users_of_arrays(self, array_ids: Sequence[str]) -> dict[str, str]:
        """Who submitted these arrays, where that is known."""
        user = specs.c.body["user"].as_string().label("user")
        wanted = specs.c.job_id.in_(array_ids)
        rows = self._rows(sa.select(specs.c.job_id, user).where(wanted))
        return {row["job_id"]: row["user"] for row in rows if row["user"]}

    def limited_arrays(self) -> list[Row]:
        """The arrays that limit how many tasks may run at once and that have tasks that
        are not over.
        """
        live = sa.select(jobs.c.id).where(
            jobs.c.array_id == arrays.c.id, jobs.c.state.in_(_LIVE)
        )
        statement = sa.select(arrays.c.id, arrays.c.at_most).where(
            arrays.c.at_most.is_not(None), live.correlate(arrays).exists()
        )
        return self._rows(statement)
