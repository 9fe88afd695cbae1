"""Recalling: memory made anew from the ledger, as if its live rows had been one event each."""

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from gpuyard.controller.memory import MANY, trim_memory
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState
from gpuyard.ledger.queries import Queries, Row, StoredJob
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.observe import learn, observe
from gpuyard.scheduler.view import View

# Of so many completed jobs the durations are read anew when the server starts.
LEARNED_FROM = 2000
_STATES = {state.value: state for state in JobState}


def recall(queries: Queries, now: float) -> View:
    """The view of everything that is live in the ledger."""
    view = View()
    _fold(view, Table.TRUST, "place", queries.trust(), now)
    _fold(view, Table.NODES, "id", queries.nodes(), now)
    _fold(view, Table.GPUS, "uuid", queries.gpus(), now)
    _learn(view, queries)
    for page in queries.live_jobs():  # all at once would take more memory than the view
        _recall_jobs(view, queries, page)
    if len(view.jobs) >= MANY:
        trim_memory()
    _fold(view, Table.ATTEMPTS, "id", queries.live_attempts(), now)
    return view


def know_parents(view: View, queries: Queries, job_ids: set[str]) -> bool:
    """Tell the view of parents that are already over, before a child that names them appears.

    False while the end of one is still on its way to the ledger: ask again after the next commit.
    """
    unknown = {job_id for job_id in job_ids if job_id not in view.jobs}
    rows = queries.jobs_by_id(unknown) if unknown else {}
    over = {job_id: state for job_id, row in rows.items() if (state := JobState(row["state"])).terminal}
    over |= dict.fromkeys(unknown - rows.keys(), JobState.FAILED)  # nothing will ever complete what is not there
    view.ended |= over
    return len(over) == len(unknown)


def _fold(view: View, table: Table, key: str, rows: Sequence[Row], now: float) -> None:
    for row in rows:
        observe(view, Event(EventKind.NODE_CHANGED, now, (Change(table, row.pop(key), row),)))


def _learn(view: View, queries: Queries) -> None:
    """Know again how long jobs take, from the newest that have completed."""
    completed = queries.newest_completed(LEARNED_FROM)
    service = queries.service([row["id"] for row in completed])
    for row in reversed(completed):
        learn(view, row["name"] or "", row["labels"] or {}, row["shape"], service.get(row["id"], (0.0, 0))[0])


def _recall_jobs(view: View, queries: Queries, rows: Sequence[StoredJob]) -> None:
    # No event is made of each: there may be a hundred thousand, and everybody waits.
    know_parents(view, queries, {parent for row in rows for parent in _parents(row.depends_on)})
    begun = [row.id for row in rows if row.attempts]
    service, homes = queries.service(begun), queries.homes(begun)
    kind_of = _kinds(view)
    for row in rows:
        job = _live(row, kind_of(row.name or "", row.labels), *service.get(row.id, (0.0, 0)), homes.get(row.id, ""))
        view.jobs[job.id] = job
        if job.state is JobState.QUEUED:
            view.file(job)


def _live(row: StoredJob, kind: str, served_s: float, preemptions: int, home: str) -> LiveJob:
    state = _STATES[row.state]
    return LiveJob(
        id=row.id,
        state=state,
        shape=_shape(row.shape),
        priority=row.priority,
        created_at=row.created_at,
        not_before=row.not_before,
        timeout_s=row.timeout_s,
        estimated_s=row.estimated_duration_s,
        project=sys.intern(row.project) if row.project else None,
        preemptible=bool(row.preemptible),
        waits_for=_parents(row.depends_on) if state is JobState.QUEUED else (),
        tier=row.tier and sys.intern(row.tier),
        started_at=row.started_at,
        attempts=row.attempts,
        attempt_id=row.attempt_id,
        retry_count=row.retry_count,
        failures=row.failures,
        cancel_requested=bool(row.cancel_requested),
        resume_from=row.resume_from,
        kind=kind,
        served_s=served_s,
        preemptions=preemptions,
        home=home,
    )


# The rows of a long queue are alike: what they hold as JSON is read once for all that say the same.


@lru_cache(maxsize=4096)
def _shape(text: str) -> Shape:
    return Shape.from_row(msgspec.json.decode(text))


def _parents(text: str | None) -> tuple[str, ...]:
    return tuple(msgspec.json.decode(text) or ()) if text and text != "[]" else ()


def _kinds(view: View) -> Callable[[str, str | None], str]:
    @lru_cache(maxsize=4096)
    def kind_of(name: str, labels: str | None) -> str:
        told: Any = msgspec.json.decode(labels) if labels else None
        return view.learning.type_of(name, told or {})

    return kind_of
