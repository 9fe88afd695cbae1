"""Reading the ledger: rows as plain dicts, lists with a cursor. Every function opens and closes its own transaction."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gpuyard.domain.batches import BatchState, ItemState
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.ledger.faults import is_lost, ledger_error, place
from gpuyard.ledger.tables import (
    JOB_TAIL,
    LEASE,
    attempts,
    batches,
    checkpoints,
    events,
    gpus,
    habits,
    items,
    jobs,
    lease,
    models,
    nodes,
    notes,
    points,
    progress,
    specs,
    timings,
    trust,
)

Row = dict[str, Any]
T = TypeVar("T")
Take = Callable[[sa.CursorResult[Any]], list[T]]
LIVE_ATTEMPTS = tuple(state.value for state in AttemptState if state.live)
# SQLite takes 32,766 in one statement unless it was built to take more.
_MAX_VARIABLES = 30_000
# How much of an id a person must give at least, and what the index of endings holds.
_TAIL = 4
_LIVE_JOBS = tuple(state.value for state in JobState if not state.terminal)


class StoredJob(NamedTuple):
    """What the scheduler asks of a job's row. `labels`, `shape` and `depends_on` are JSON, unread: the rows of a long
    queue say the same. What is true or false may be 1 or 0."""

    id: str
    state: str
    reason: str | None
    name: str | None
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


_STORED = ", ".join(f"CAST({name} AS TEXT)" if isinstance(jobs.c[name].type, sa.JSON) else name
                    for name in StoredJob._fields)  # fmt: skip


class Queries:
    """Reads of one ledger, which never wait for its writer; LedgerError when it cannot be read."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        # Elsewhere each read would be a transaction, of three round trips instead of one.
        elsewhere = engine.dialect.name == "postgresql"
        self._mark = "%s" if elsewhere else "?"
        self._reads = engine.execution_options(isolation_level="AUTOCOMMIT") if elsewhere else engine

    def _rows(self, statement: sa.Executable | str, values: tuple[Any, ...] = ()) -> list[Row]:
        return self._found(statement, values, lambda found: [dict(row) for row in found.mappings()])

    def _found(self, statement: sa.Executable | str, values: tuple[Any, ...], take: Take[T]) -> list[T]:
        """What `take` makes of the rows found; a statement in words has its values apart."""
        try:
            try:
                return self._read(statement, values, take)
            except DBAPIError as error:
                if not is_lost(error):
                    raise
            # The database may have been started anew since the pool last spoke to it.
            return self._read(statement, values, take)
        except DBAPIError as error:
            raise ledger_error(error, place(self._engine)) from error

    def _read(self, statement: sa.Executable | str, values: tuple[Any, ...], take: Take[T]) -> list[T]:
        with self._reads.connect() as connection:
            words = isinstance(statement, str)
            return take(connection.exec_driver_sql(statement, values) if words else connection.execute(statement))

    def _row(self, statement: sa.Select[*tuple[Any, ...]]) -> Row | None:
        rows = self._rows(statement.limit(1))
        return rows[0] if rows else None

    # --- jobs ---

    def job(self, job_id: str) -> Row | None:
        """The job of this id."""
        return self._row(sa.select(jobs).where(jobs.c.id == job_id))

    def jobs_by_id(self, ids: Iterable[str]) -> dict[str, Row]:
        """The jobs of these ids."""
        wanted = list(ids)
        parts = [wanted[i : i + _MAX_VARIABLES] for i in range(0, len(wanted), _MAX_VARIABLES)]
        return {row["id"]: row for part in parts for row in self._rows(sa.select(jobs).where(jobs.c.id.in_(part)))}

    def find_job_ids(self, reference: str, limit: int = 3) -> list[str]:
        """Ids a person may mean: an exact id, else a unique ending of one, else the newest job of that name."""
        if len(reference) >= _TAIL:
            tail = sa.literal_column(JOB_TAIL) == reference[-_TAIL:]
            ending = sa.select(jobs.c.id).where(tail, jobs.c.id.like("%" + _escape(reference), escape="\\"))
            found = [row["id"] for row in self._rows(ending.order_by(jobs.c.id.desc()))]
            if found:
                return [reference] if reference in found else found[:limit]
        named = self._row(sa.select(jobs.c.id).where(jobs.c.name == reference).order_by(jobs.c.id.desc()))
        return [named["id"]] if named else []

    def jobs_page(self, *, limit: int, before: str | None = None, filters: Mapping[str, Sequence[str]]) -> list[Row]:
        """Newest first, older than the id `before`; `filters` maps a column (state, name, project) to values."""
        statement = sa.select(jobs).order_by(jobs.c.id.desc()).limit(limit)
        if before:
            statement = statement.where(jobs.c.id < before)
        for column, values in filters.items():
            statement = statement.where(jobs.c[column].in_(values))
        return self._rows(statement)

    def live_jobs(self, most: int = 5000) -> Iterator[list[StoredJob]]:
        """The jobs that are not over, page by page: state by state, in the order of submission."""
        # In words, since a server that starts reads all of them before anything else: SQLAlchemy would take most of the
        # time to make a dict of each. And one state at a time, so that the index gives them in order.
        mark = self._mark
        asked = f"SELECT {_STORED} FROM jobs WHERE state = {mark} AND id > {mark} ORDER BY id LIMIT {most}"
        for state in _LIVE_JOBS:
            last = ""
            while page := self._found(asked, (state, last), lambda found: [StoredJob._make(row) for row in found]):
                yield page
                last = page[-1].id

    def jobs_by_idempotency_key(self, keys: Sequence[str]) -> dict[str, str]:
        """The id of the job that a request with a key made, by key; at most a few thousand keys."""
        statement = sa.select(jobs.c.idempotency_key, jobs.c.id).where(jobs.c.idempotency_key.in_(keys))
        return {row["idempotency_key"]: row["id"] for row in self._rows(statement)}

    def newest_completed(self, most: int) -> list[Row]:
        """What is learned from completed jobs, newest first: `id`, `name`, `labels`, `shape`."""
        columns = (jobs.c.id, jobs.c.name, jobs.c.labels, jobs.c.shape)
        completed = jobs.c.state == JobState.COMPLETED.value
        return self._rows(sa.select(*columns).where(completed).order_by(jobs.c.id.desc()).limit(most))

    def service(self, job_ids: Iterable[str]) -> dict[str, tuple[float, int]]:
        """For how many seconds the ended attempts of these jobs ran, and how many of them were preempted."""
        ran = sa.func.sum(attempts.c.ended_at - attempts.c.started_at).label("seconds")
        preempted = sa.func.sum(sa.case((attempts.c.reason == "preempted", 1), else_=0)).label("preempted")
        found = sa.select(attempts.c.job_id, ran, preempted).where(
            attempts.c.job_id.in_(list(job_ids)), attempts.c.ended_at.is_not(None)
        )
        rows = self._rows(found.group_by(attempts.c.job_id))
        return {row["job_id"]: (row["seconds"] or 0.0, row["preempted"]) for row in rows}

    def homes(self, job_ids: Iterable[str]) -> dict[str, str]:
        """The provider of the newest attempt that ran, of those that are over, by job."""
        ran = attempts.c.job_id.in_(list(job_ids)), attempts.c.started_at.is_not(None), attempts.c.ended_at.is_not(None)
        found = sa.select(attempts.c.job_id, attempts.c.provider).where(*ran).order_by(attempts.c.id)
        return {row["job_id"]: row["provider"] for row in self._rows(found)}

    def specs(self, job_ids: Iterable[str]) -> dict[str, Row]:
        """The specs of these jobs, as submitted."""
        rows = self._rows(sa.select(specs).where(specs.c.job_id.in_(list(job_ids))))
        return {row["job_id"]: row["body"] for row in rows}

    def spec_texts(self, job_ids: Iterable[str]) -> dict[str, str]:
        """The specs of these jobs as JSON, unread: the jobs of a batch have the same."""
        wanted = tuple(job_ids)
        if not wanted:
            return {}
        # In words, since each start asks it: SQLAlchemy would spend ten times as long on making them as SQLite on them.
        marks = ", ".join([self._mark] * len(wanted))
        asked = f"SELECT job_id, CAST(body AS TEXT) AS body FROM specs WHERE job_id IN ({marks})"
        return {row["job_id"]: row["body"] for row in self._rows(asked, wanted)}

    def job_counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        count = sa.func.count()
        return {
            row["state"]: row["n"] for row in self._rows(sa.select(jobs.c.state, count.label("n")).group_by("state"))
        }

    # --- attempts ---

    def attempts_of(self, job_ids: Iterable[str]) -> dict[str, list[Row]]:
        """Each job's attempts in order."""
        found: dict[str, list[Row]] = {}
        where = attempts.c.job_id.in_(list(job_ids))
        for row in self._rows(sa.select(attempts).where(where).order_by(attempts.c.id)):
            found.setdefault(row["job_id"], []).append(row)
        return found

    def live_attempts(self) -> list[Row]:
        """Every attempt that holds a booking."""
        return self._rows(sa.select(attempts).where(attempts.c.state.in_(LIVE_ATTEMPTS)).order_by(attempts.c.id))

    def newest_ended(self, most: int, provider: str) -> list[Row]:
        """A provider's attempts that are over, newest first, with `name`, `labels` and `shape` of their jobs."""
        columns = (attempts, jobs.c.name, jobs.c.labels, jobs.c.shape)
        found = sa.select(*columns).join(jobs, jobs.c.id == attempts.c.job_id).where(
            attempts.c.provider == provider, attempts.c.ended_at.is_not(None)
        )  # fmt: skip
        return self._rows(found.order_by(attempts.c.id.desc()).limit(most))

    # --- checkpoints, progress, series ---

    def checkpoints_of(self, job_id: str) -> list[Row]:
        """A job's checkpoints, oldest first."""
        order = checkpoints.c.created_at, checkpoints.c.id
        return self._rows(sa.select(checkpoints).where(checkpoints.c.job_id == job_id).order_by(*order))

    def checkpoint_counts(self, job_ids: Iterable[str]) -> dict[str, int]:
        """How many checkpoints of each job are kept."""
        statement = (
            sa.select(checkpoints.c.job_id, sa.func.count().label("n"))
            .where(checkpoints.c.job_id.in_(list(job_ids)), checkpoints.c.kept)
            .group_by(checkpoints.c.job_id)
        )
        return {row["job_id"]: row["n"] for row in self._rows(statement)}

    def checkpoint(self, checkpoint_id: str) -> Row | None:
        """The checkpoint of this id."""
        return self._row(sa.select(checkpoints).where(checkpoints.c.id == checkpoint_id))

    def has_checkpoint(self, attempt_id: str, path: str, sha256: str, created_at: float) -> bool:
        """Is this very checkpoint in the ledger, kept or not?"""
        where = sa.and_(checkpoints.c.sha256 == sha256, checkpoints.c.attempt_id == attempt_id,
                        checkpoints.c.path == path, checkpoints.c.created_at == created_at)  # fmt: skip
        return self._row(sa.select(checkpoints.c.id).where(where)) is not None

    def blob_is_used(self, sha256: str) -> bool:
        """Does any kept checkpoint need this blob?"""
        where = sa.and_(checkpoints.c.sha256 == sha256, checkpoints.c.kept)
        return self._row(sa.select(checkpoints.c.id).where(where)) is not None

    def progress_of(self, job_ids: Iterable[str]) -> dict[str, Row]:
        """Each job's latest reading, if it has one."""
        rows = self._rows(sa.select(progress).where(progress.c.job_id.in_(list(job_ids))))
        return {row["job_id"]: row["body"] for row in rows}

    def series(self, job_id: str, names: Sequence[str] = ()) -> dict[str, list[Row]]:
        """A job's metric series by name, in the order they were printed: `step`, `value`, `at`."""
        columns = (points.c.name, points.c.step, points.c.value, points.c.at)
        statement = sa.select(*columns).where(points.c.job_id == job_id)
        if names:
            statement = statement.where(points.c.name.in_(names))
        found: dict[str, list[Row]] = {}
        # Attempt ids sort by time, so a resumed job's series goes on where the last attempt stopped.
        for row in self._rows(statement.order_by(points.c.attempt_id, points.c.n)):
            found.setdefault(row.pop("name"), []).append(row)
        return found

    # --- nodes, GPUs, events, epochs ---

    def nodes(self) -> list[Row]:
        """Every node."""
        return self._rows(sa.select(nodes).order_by(nodes.c.id))

    def gpus(self) -> list[Row]:
        """Every GPU that is on a node, by node and index."""
        return self._rows(sa.select(gpus).where(gpus.c.node_id.is_not(None)).order_by(gpus.c.node_id, gpus.c.index))

    def models(self) -> list[Row]:
        """What was wished of models."""
        return self._rows(sa.select(models))

    def timings(self) -> list[Row]:
        """How long models took to move, the oldest first."""
        return self._rows(sa.select(timings).order_by(timings.c.at))

    def habits(self) -> list[Row]:
        """When models are asked for."""
        return self._rows(sa.select(habits))

    def trust(self) -> list[Row]:
        """What was found out about places, by place."""
        return self._rows(sa.select(trust).where(trust.c.updated_at.is_not(None)).order_by(trust.c.place))

    # --- batches ---

    def batches(self) -> list[Row]:
        """Every batch, the newest first."""
        return self._rows(sa.select(batches).order_by(batches.c.created_at.desc(), batches.c.id))

    def live_batches(self) -> list[Row]:
        """Those that are not over, the oldest first."""
        live = [state.value for state in BatchState if not state.terminal]
        return self._rows(sa.select(batches).where(batches.c.state.in_(live)).order_by(batches.c.created_at))

    def batch(self, batch_id: str) -> Row | None:
        """The batch of this id."""
        return self._row(sa.select(batches).where(batches.c.id == batch_id))

    def batch_by_key(self, key: str) -> Row | None:
        """The batch that was submitted with this idempotency key."""
        return self._row(sa.select(batches).where(batches.c.idempotency_key == key))

    def batch_ids(self, beginning: str) -> list[str]:
        """The ids that begin so."""
        rows = self._rows(sa.select(batches.c.id).where(batches.c.id.startswith(beginning, autoescape=True)))
        return [row["id"] for row in rows]

    def items_of(self, batch_id: str) -> list[Row]:
        """A batch's items in order."""
        return self._rows(sa.select(items).where(items.c.batch_id == batch_id).order_by(items.c.number))

    def item_counts(self, batch_id: str | None = None) -> dict[str, dict[str, int]]:
        """By batch (or of one), how many items are in each state."""
        counted = sa.select(items.c.batch_id, items.c.state, sa.func.count().label("count"))
        if batch_id is not None:
            counted = counted.where(items.c.batch_id == batch_id)
        found: dict[str, dict[str, int]] = {}
        for row in self._rows(counted.group_by(items.c.batch_id, items.c.state)):
            found.setdefault(row["batch_id"], {})[row["state"]] = row["count"]
        return found

    def newest_items(self, script: str, most: int) -> list[Row]:
        """The items of a script that were completed last."""
        of_script = sa.select(items).join(batches, batches.c.id == items.c.batch_id).where(batches.c.script == script)
        done = of_script.where(items.c.state == ItemState.COMPLETED.value)
        return self._rows(done.order_by(items.c.ended_at.desc()).limit(most))

    def live_of_kind(self, kind: str) -> list[str]:
        """The ids of the jobs of this kind that are not over."""
        statement = sa.select(jobs.c.id).where(jobs.c.kind == kind, jobs.c.state.in_(_LIVE_JOBS))
        return [row["id"] for row in self._rows(statement)]

    def events_after(self, seq: int, limit: int, job_id: str | None = None) -> list[Row]:
        """Journal rows after `seq`, in order."""
        statement = sa.select(events).where(events.c.seq > seq).order_by(events.c.seq).limit(limit)
        if job_id:
            statement = statement.where(events.c.job_id == job_id)
        return self._rows(statement)

    def events_of(self, kinds: Iterable[str], seq: int, limit: int) -> list[Row]:
        """Journal rows of these kinds after `seq`, in order, without what they changed."""
        columns = (events.c.seq, events.c.at, events.c.kind, events.c.job_id, events.c.info)
        wanted = sa.select(*columns).where(events.c.seq > seq, events.c.kind.in_(list(kinds)))
        return self._rows(wanted.order_by(events.c.seq).limit(limit))

    def first_seq(self) -> int:
        """The journal's first sequence number that has not been pruned, 0 when it is empty."""
        row = self._row(sa.select(sa.func.min(events.c.seq).label("seq")))
        return int(row["seq"] or 0) if row else 0

    def last_seq(self) -> int:
        """The journal's last sequence number, 0 when it is empty."""
        row = self._row(sa.select(sa.func.max(events.c.seq).label("seq")))
        return int(row["seq"] or 0) if row else 0

    def journal_length(self) -> int:
        """How many events the journal spans."""
        # Each by itself: SQLite looks at every row for a minimum and a maximum that are asked for at once.
        ends = [sa.select(end(events.c.seq)).scalar_subquery() for end in (sa.func.min, sa.func.max)]
        row = self._row(sa.select(ends[0].label("first"), ends[1].label("last")))
        return row["last"] - row["first"] + 1 if row and row["last"] else 0

    def note(self, name: str) -> Row:
        """The note of this name, empty when there is none."""
        row = self._row(sa.select(notes.c.body).where(notes.c.name == name))
        return row["body"] if row else {}

    def next_epoch(self) -> int:
        """Count a new epoch: one per server that ever wrote this ledger. Called before the writer starts."""
        counted = sa.update(lease).where(lease.c.name == LEASE).values(epoch=lease.c.epoch + 1)
        try:
            with self._engine.begin() as connection:
                return int(connection.execute(counted.returning(lease.c.epoch)).scalar_one())
        except DBAPIError as error:
            raise ledger_error(error, place(self._engine)) from error


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
