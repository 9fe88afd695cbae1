"""Recovery: makes the view from the ledger, when a server starts and after a failed
commit.
"""

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

import msgspec

from gpuyard.controller.malloc_trim import MANY_JOBS, trim_memory
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState
from gpuyard.ledger.queries import Queries, Row, StoredJob
from gpuyard.scheduler.jobs import LiveJob, Retries, Service, retries_of
from gpuyard.scheduler.observe import note_completed_job, observe
from gpuyard.scheduler.view import View

# When the server starts, it learns durations from this many completed jobs.
LEARNED_FROM = 2000
_STATES = {state.value: state for state in JobState}
_NO_SERVICE = (0.0, 0)


def rebuild_view(queries: Queries, now: float, empty: View | None = None) -> View:
    """The view of everything that is live in the ledger. `empty` is a new view with the
    settings that it needs.
    """
    view = empty or View()
    _observe_rows(view, Table.TRUST, "place", queries.trust(), now)
    _observe_rows(view, Table.NODES, "id", queries.nodes(), now)
    _observe_rows(view, Table.GPUS, "uuid", queries.gpus(), now)
    reservations = queries.reservations_after(now)
    _observe_rows(view, Table.RESERVATIONS, "id", reservations, now)
    _learn_durations(view, queries)
    _observe_rows(view, Table.ARRAYS, "id", queries.limited_arrays(), now)
    # By pages: all rows at once would take more memory than the view.
    for page in queries.live_jobs():
        _add_jobs(view, queries, page)
    if len(view.jobs) >= MANY_JOBS:
        trim_memory()
    _observe_rows(view, Table.ATTEMPTS, "id", queries.live_attempts(), now)
    return view


def add_ended_parents(view: View, queries: Queries, job_ids: Set[str]) -> bool:
    """Put those of the parents `job_ids` that have ended into the view, before their
    children are added.

    Returns False while the end of one is not committed yet; call again after the next
    commit.
    """
    unknown = {job_id for job_id in job_ids if job_id not in view.jobs}
    rows = queries.jobs_by_id(unknown) if unknown else {}
    ended: dict[str, JobState] = {}
    for job_id in unknown:
        row = rows.get(job_id)
        # A job that does not exist will never complete.
        state = JobState(row["state"]) if row else JobState.FAILED
        if state.terminal:
            ended[job_id] = state
    view.ended |= ended
    return len(ended) == len(unknown)


def _observe_rows(
    view: View, table: Table, key: str, rows: Sequence[Row], now: float
) -> None:
    """Let the view observe each row as if it were an event."""
    for row in rows:
        change = Change(table, row.pop(key), row)
        observe(view, Event(EventKind.NODE_CHANGED, now, (change,)))


def _learn_durations(view: View, queries: Queries) -> None:
    """Learn how long jobs take from the newest completed ones."""
    completed = queries.newest_completed(LEARNED_FROM)
    service = queries.service([row["id"] for row in completed])
    for row in reversed(completed):
        served_s, _ = service.get(row["id"], _NO_SERVICE)
        note_completed_job(
            view, row["name"] or "", row["labels"] or {}, row["shape"], served_s
        )


def _add_jobs(view: View, queries: Queries, rows: Sequence[StoredJob]) -> None:
    # Without events: there may be 100,000 jobs, and the server answers nobody
    # meanwhile.
    parents = {parent for row in rows for parent in _parents(row.depends_on)}
    add_ended_parents(view, queries, parents)
    begun = [row.id for row in rows if row.attempts]
    service = queries.service(begun)
    homes = queries.homes(begun)
    type_of = _job_types(view)
    for row in rows:
        job = _live_job(row, type_of)
        if row.attempts:
            served_s, preemptions = service.get(job.id, _NO_SERVICE)
            home = homes.get(job.id, "")
            job.service = Service(served_s, preemptions, home)
        job.party = view.party(job.project, job.owner)
        view.add_job(job)
        view.deadlines.watch(job)
        view.usage.note_state(job, None, job.state)
        if job.state is JobState.QUEUED:
            view.enqueue(job)
            continue
        view.budgets.hold(job)
        if array := view.array_of(job):
            array.admitted.add(job.id)


def _live_job(row: StoredJob, type_of: Callable[[str, str | None], str]) -> LiveJob:
    # Taken apart at once: to look each value up by its name takes as long as all else.
    (
        job_id,
        state_name,
        name,
        kind,
        labels,
        shape,
        priority,
        project,
        created_at,
        started_at,
        not_before,
        timeout_s,
        estimated_s,
        preemptible,
        depends_on,
        retry_count,
        failures,
        attempts,
        attempt_id,
        cancel_requested,
        resume_from,
        tier,
        held,
        parent_ends,
        retry_on,
        array_id,
        array_index,
        owner,
        deadline,
        deadline_told,
    ) = row
    state = _STATES[state_name]
    # A job that has begun waits for nobody.
    waits = state is JobState.QUEUED and not attempts
    return LiveJob(
        job_id,
        state,
        _shape(shape),
        priority,
        created_at,
        not_before,
        timeout_s,
        estimated_s,
        sys.intern(project) if project else None,
        bool(preemptible),
        _parents(depends_on) if waits else (),
        _parent_ends(parent_ends),
        bool(held),
        tier and sys.intern(tier),
        started_at,
        attempts,
        attempt_id,
        _retries(retry_count, retry_on),
        failures,
        bool(cancel_requested),
        resume_from,
        sys.intern(kind),
        type_of(name or "", labels),
        array_id=sys.intern(array_id) if array_id else None,
        array_index=array_index,
        owner=sys.intern(owner) if owner else None,
        deadline=deadline,
        deadline_told=deadline_told,
    )


# The rows of a long queue are alike, so equal JSON is decoded once.


@lru_cache(maxsize=4096)
def _shape(text: str) -> Shape:
    return Shape.from_row(msgspec.json.decode(text))


def _parents(text: str | None) -> tuple[str, ...]:
    if not text or text == "[]":
        return ()
    return tuple(msgspec.json.decode(text) or ())


@lru_cache(maxsize=4096)
def _retries(count: int, causes: str | None) -> Retries:
    return retries_of(count, msgspec.json.decode(causes) if causes else None)


def _parent_ends(text: str | None) -> Mapping[str, str] | None:
    return msgspec.json.decode(text) if text else None


def _job_types(view: View) -> Callable[[str, str | None], str]:
    """A function from the name and the labels (JSON) of a job to its type."""

    @lru_cache(maxsize=4096)
    def type_of(name: str, labels: str | None) -> str:
        decoded: Any = msgspec.json.decode(labels) if labels else None
        return view.learning.type_of(name, decoded or {})

    return type_of
