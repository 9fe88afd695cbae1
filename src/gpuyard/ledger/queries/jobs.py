"""Reading jobs and their specs."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from gpuyard.domain.arrays import task_body
from gpuyard.domain.idempotency_keys import given_key, owned_key
from gpuyard.domain.states import JobState
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.queries.job_filter import ALL_JOBS, Condition, JobFilter
from gpuyard.ledger.queries.visibility import visible
from gpuyard.ledger.tables import JOB_TAIL, attempts, jobs, specs

# SQLite takes 32,766 variables in one statement unless it was built to take more.
_MAX_VARIABLES = 30_000
# The least length of an ending that may stand for an id; the index holds as much.
SHORTEST_TAIL = 4
# The queued ones last: of some arrays, a limited number of tasks may run at once.
_LIVE_JOBS = (
    *(s.value for s in JobState if not s.terminal and s is not JobState.QUEUED),
    JobState.QUEUED.value,
)


class StoredJob(NamedTuple):
    """The columns of a job that the scheduler needs.

    `labels`, `shape`, `depends_on`, `parent_ends` and `retry_on` are JSON text, not
    decoded: in a long queue many rows hold the same text. Booleans may be 1 or 0.
    """

    id: str
    state: str
    name: str | None
    kind: str
    labels: str | None
    shape: str
    priority: int
    project: str | None
    created_at: float
    started_at: float | None
    not_before: float | None
    timeout_s: float | None
    estimated_duration_s: float | None
    preemptible: bool
    depends_on: str | None
    retry_count: int
    failures: int
    attempts: int
    attempt_id: str | None
    cancel_requested: bool
    resume_from: str | None
    tier: str | None
    held: bool | None
    parent_ends: str | None
    retry_on: str | None
    array_id: str | None
    array_index: int | None
    owner: str | None
    deadline: float | None
    deadline_told: int | None


def _stored(name: str) -> str:
    return f"CAST({name} AS TEXT)" if isinstance(jobs.c[name].type, sa.JSON) else name


_STORED = ", ".join(_stored(name) for name in StoredJob._fields)


class JobQueries(LedgerReader):
    """Reads of jobs and their specs."""

    def job(self, job_id: str) -> Row | None:
        """The job of this id."""
        return self._row(sa.select(jobs).where(jobs.c.id == job_id))

    def jobs_by_id(self, ids: Iterable[str]) -> dict[str, Row]:
        """The jobs of these ids."""
        wanted = list(ids)
        parts = [
            wanted[i : i + _MAX_VARIABLES]
            for i in range(0, len(wanted), _MAX_VARIABLES)
        ]
        found: dict[str, Row] = {}
        for part in parts:
            rows = self._rows(sa.select(jobs).where(jobs.c.id.in_(part)))
            found |= {row["id"]: row for row in rows}
        return found

    def find_job_ids(
        self,
        reference: str,
        owner: str | None = None,
        hidden: Collection[str] = (),
        limit: int = 3,
    ) -> list[str]:
        """The ids that `reference` may mean, but for jobs of `hidden` projects.

        It is an id, else the end of one or several, else the name of a job: the newest
        that `owner` has submitted is meant, else the newest of all.
        """
        seen = visible(jobs.c.project, hidden)
        if len(reference) >= SHORTEST_TAIL:
            found = self._ids_ending_with(reference, seen)
            if found:
                return [reference] if reference in found else found[:limit]
        named = sa.select(jobs.c.id).where(jobs.c.name == reference, *seen)
        newest_first = named.order_by(jobs.c.id.desc())
        own = jobs.c.owner.is_(None) if owner is None else jobs.c.owner == owner
        newest = self._row(newest_first.where(own)) or self._row(newest_first)
        return [newest["id"]] if newest else []

    def _ids_ending_with(
        self, text: str, seen: Sequence[sa.ColumnElement[bool]]
    ) -> list[str]:
        """The ids of such jobs that fulfil `seen`, newest first. `text` has at least
        SHORTEST_TAIL characters: there is an index of so many.
        """
        in_index = sa.literal_column(JOB_TAIL) == text[-SHORTEST_TAIL:]
        ends_so = jobs.c.id.like("%" + escape_like(text), escape="\\")
        ending = sa.select(jobs.c.id).where(in_index, ends_so, *seen)
        rows = self._rows(ending.order_by(jobs.c.id.desc()))
        return [row["id"] for row in rows]

    def visible_job_ids(
        self, job_ids: Sequence[str], hidden: Collection[str] = ()
    ) -> set[str]:
        """Which of these are ids of jobs, but for those of `hidden` projects."""
        found: set[str] = set()
        for start in range(0, len(job_ids), _MAX_VARIABLES):
            part = job_ids[start : start + _MAX_VARIABLES]
            seen = visible(jobs.c.project, hidden)
            rows = self._rows(sa.select(jobs.c.id).where(jobs.c.id.in_(part), *seen))
            found |= {row["id"] for row in rows}
        return found

    def jobs_page(
        self, *, limit: int, before: str | None = None, wanted: JobFilter = ALL_JOBS
    ) -> list[Row]:
        """Jobs older than the id `before` that `wanted` admits, newest first."""
        statement = sa.select(jobs).order_by(jobs.c.id.desc()).limit(limit)
        if before:
            statement = statement.where(jobs.c.id < before)
        return self._rows(statement.where(*self._conditions(wanted)))

    def job_ids(self, wanted: JobFilter) -> list[str]:
        """The ids of all jobs that `wanted` admits, oldest first."""
        statement = sa.select(jobs.c.id).where(*self._conditions(wanted))
        return [row["id"] for row in self._rows(statement.order_by(jobs.c.id))]

    def _conditions(self, wanted: JobFilter) -> list[Condition]:
        return wanted.conditions(self._engine.dialect.name)

    def live_jobs(self, most: int = 5000) -> Iterator[list[StoredJob]]:
        """Pages of the jobs that are not over, by state and order of submission."""
        # Plain SQL, because a starting server reads all of these before anything else
        # and SQLAlchemy would spend most of that time on making dicts. One state at a
        # time, so that the index returns them in order.
        mark = self._mark
        sql = (
            f"SELECT {_STORED} FROM jobs WHERE state = {mark} AND id > {mark} ORDER BY"
            f" id LIMIT {most}"
        )
        for state in _LIVE_JOBS:
            last = ""
            while page := self._results(sql, (state, last), _stored_jobs):
                yield page
                last = page[-1].id

    def live_of_kind(self, kind: str) -> list[str]:
        """The ids of the jobs of this kind that are not over."""
        statement = sa.select(jobs.c.id).where(
            jobs.c.kind == kind, jobs.c.state.in_(_LIVE_JOBS)
        )
        return [row["id"] for row in self._rows(statement)]

    def jobs_by_idempotency_key(self, keys: Sequence[str]) -> dict[str, str]:
        """The id of the job that was submitted with each of these keys, by key. They
        are those of their owners (`owned_key`).

        Pass at most a few thousand keys.
        """
        # Those of users from earlier versions stand there as they were given.
        stored = {*keys, *map(given_key, keys)}
        columns = (jobs.c.idempotency_key, jobs.c.owner, jobs.c.id)
        statement = sa.select(*columns).where(jobs.c.idempotency_key.in_(stored))
        found = {
            owned_key(given_key(row["idempotency_key"]), row["owner"]): row["id"]
            for row in self._rows(statement)
        }
        return {key: found[key] for key in keys if key in found}

    def newest_completed(self, most: int) -> list[Row]:
        """The newest completed jobs: `id`, `name`, `labels` and `shape`."""
        columns = (jobs.c.id, jobs.c.name, jobs.c.labels, jobs.c.shape)
        completed = jobs.c.state == JobState.COMPLETED.value
        return self._rows(
            sa.select(*columns).where(completed).order_by(jobs.c.id.desc()).limit(most)
        )

    def specs(self, job_ids: Iterable[str]) -> dict[str, Row]:
        """The specs of these jobs, as submitted."""
        wanted = list(job_ids)
        rows = self._rows(sa.select(specs).where(specs.c.job_id.in_(wanted)))
        found = {row["job_id"]: row["body"] for row in rows}
        others = [job_id for job_id in wanted if job_id not in found]
        if others:
            columns = (jobs.c.id, jobs.c.array_index, specs.c.body)
            of_arrays = sa.select(*columns).where(_is_task_of_spec(others))
            found |= {
                row["id"]: task_body(row["body"], row["array_index"])
                for row in self._rows(of_arrays)
            }
        return found

    def submitters_of(self, job_ids: Iterable[str]) -> dict[str, str]:
        """Who submitted these jobs, arrays and batches; nothing of those that the owner
        of the instance submitted.
        """
        ids = list(job_ids)
        found: dict[str, str] = {}
        for start in range(0, len(ids), _MAX_VARIABLES):
            found |= self._submitters_of(ids[start : start + _MAX_VARIABLES])
        return found

    def _submitters_of(self, wanted: Sequence[str]) -> dict[str, str]:
        user = specs.c.body["user"].as_string().label("user")
        own = sa.select(specs.c.job_id, user)
        own = own.where(specs.c.job_id.in_(wanted))
        task_id = jobs.c.id.label("job_id")
        of_arrays = sa.select(task_id, user)
        of_arrays = of_arrays.where(_is_task_of_spec(wanted))
        found: dict[str, str] = {}
        for statement in (own, of_arrays):
            for row in self._rows(statement):
                if row["user"]:
                    found[row["job_id"]] = row["user"]
        return found

    def spec_texts(self, job_ids: Iterable[str]) -> dict[str, str]:
        """The specs of these jobs as JSON text, not decoded; for the task of an array,
        that of the array.

        Jobs of one batch often have equal texts.
        """
        wanted = tuple(job_ids)
        if not wanted:
            return {}
        # Plain SQL, because each start of a job runs this: SQLAlchemy would take ten
        # times as long as SQLite itself.
        marks = ", ".join([self._mark] * len(wanted))
        sql = (
            "SELECT job_id, CAST(body AS TEXT) AS body FROM specs WHERE job_id IN"
            f" ({marks})"
        )
        found: dict[str, str] = dict(self._results(sql, wanted, _drivers_rows))
        others = tuple(job_id for job_id in wanted if job_id not in found)
        if others:
            marks = ", ".join([self._mark] * len(others))
            sql = (
                "SELECT jobs.id, CAST(body AS TEXT) AS body FROM jobs JOIN specs ON"
                f" specs.job_id = jobs.array_id WHERE jobs.id IN ({marks})"
            )
            found |= dict(self._results(sql, others, _drivers_rows))
        return found

    def job_outcomes(self, job_ids: Sequence[str]) -> list[Row]:
        """Of each of these jobs: `id`, `name`, `state`, `reason`, `exit_code`,
        `array_id`, `array_index`, and the `signal` that ended its last attempt.
        """
        last = (
            sa.select(attempts.c.signal)
            .where(attempts.c.job_id == jobs.c.id)
            .order_by(attempts.c.number.desc())
            .limit(1)
            .scalar_subquery()
        )
        columns = (
            jobs.c.id,
            jobs.c.name,
            jobs.c.state,
            jobs.c.reason,
            jobs.c.exit_code,
            jobs.c.array_id,
            jobs.c.array_index,
            last.label("signal"),
        )
        found: list[Row] = []
        for start in range(0, len(job_ids), _MAX_VARIABLES):
            part = job_ids[start : start + _MAX_VARIABLES]
            found += self._rows(sa.select(*columns).where(jobs.c.id.in_(part)))
        return found

    def job_counts(self, hidden: Collection[str] = ()) -> dict[str, int]:
        """How many jobs are in each state, but for those of `hidden` projects."""
        counted = sa.select(jobs.c.state, sa.func.count().label("n")).group_by("state")
        counts = {row["state"]: int(row["n"]) for row in self._rows(counted)}
        if hidden:
            # Subtracted, because an index has all states, and another these projects.
            of_hidden = counted.where(jobs.c.project.in_(sorted(hidden)))
            for row in self._rows(of_hidden):
                counts[row["state"]] = counts.get(row["state"], 0) - int(row["n"])
        return {state: number for state, number in counts.items() if number > 0}


def _is_task_of_spec(job_ids: Sequence[str]) -> sa.ColumnElement[bool]:
    """Joins these jobs, as far as they are tasks, with the specs of their arrays."""
    return sa.and_(jobs.c.id.in_(job_ids), specs.c.job_id == jobs.c.array_id)


def _stored_jobs(result: sa.CursorResult[Any]) -> list[StoredJob]:
    return list(map(StoredJob._make, _drivers_rows(result)))


def _drivers_rows(result: sa.CursorResult[Any]) -> list[tuple[Any, ...]]:
    """Without SQLAlchemy's own object for each row."""
    cursor: Any = result.cursor
    return cursor.fetchall()


def escape_like(text: str) -> str:
    """The text as LIKE takes it with `\\` as its escape."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
