"""The book: what the controller remembers of every job that is not over, as the fold of the same events."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gpuyard.domain.events import Event, Table
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import AttemptState, JobState


@dataclass(slots=True)
class JobRecord:
    """A live job's row, without what only people read."""

    id: str
    state: JobState
    priority: int = 3
    retry_count: int = 0
    failures: int = 0
    attempts: int = 0
    attempt_id: str | None = None
    cancel_requested: bool = False
    resume_from: str | None = None
    started_at: float | None = None
    tier: str | None = None
    shape: Shape = field(default_factory=Shape)


@dataclass(slots=True)
class AttemptRecord:
    """A live attempt's row."""

    id: str
    job_id: str
    state: AttemptState
    number: int = 1
    token: int = 0
    provider: str = ""
    provider_ref: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    price_per_hour: str = "0"
    placements: tuple[Placement, ...] = ()

    @property
    def node_id(self) -> str:
        """Its first node: the one its agent's reports come from."""
        return self.placements[0].node_id if self.placements else ""


_JOB_FIELDS = frozenset(field.name for field in fields(JobRecord)) - {"id"}
_ATTEMPT_FIELDS = frozenset(field.name for field in fields(AttemptRecord)) - {"id"}


def _placements(rows: Iterable[Mapping[str, Any]]) -> tuple[Placement, ...]:
    return tuple(Placement.from_row(row) for row in rows)


_READ: Mapping[str, Any] = {
    "shape": Shape.from_row,
    "placements": _placements,
}


class Book:
    """Live jobs and live attempts by id; a job or attempt leaves when it is over."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self.attempts: dict[str, AttemptRecord] = {}
        self.node_states: dict[str, str] = {}
        self.gpu_nodes: dict[str, str | None] = {}

    def observe(self, event: Event) -> None:
        """Fold an event's after-images."""
        for change in event.changes:
            if change.table is Table.JOBS:
                self._job(change.key, change.values)
            elif change.table is Table.ATTEMPTS:
                self._attempt(change.key, change.values)
            elif change.table is Table.NODES and "state" in change.values:
                self.node_states[change.key] = change.values["state"]
            elif change.table is Table.GPUS and "node_id" in change.values:
                self.gpu_nodes[change.key] = change.values["node_id"]

    def _job(self, job_id: str, values: Mapping[str, Any]) -> None:
        record = self.jobs.get(job_id) or JobRecord(job_id, JobState.QUEUED)
        _update(record, values, _JOB_FIELDS)
        record.state = JobState(record.state)
        if record.state.terminal:
            self.jobs.pop(job_id, None)
        else:
            self.jobs[job_id] = record

    def _attempt(self, attempt_id: str, values: Mapping[str, Any]) -> None:
        record = self.attempts.get(attempt_id) or AttemptRecord(attempt_id, values["job_id"], AttemptState.INTENDED)
        _update(record, values, _ATTEMPT_FIELDS)
        record.state = AttemptState(record.state)
        if record.state.live:
            self.attempts[attempt_id] = record
        else:
            self.attempts.pop(attempt_id, None)

    def attempts_on(self, node_id: str) -> list[AttemptRecord]:
        """The live attempts of a node."""
        return [attempt for attempt in self.attempts.values() if attempt.node_id == node_id]


def _update(record: JobRecord | AttemptRecord, values: Mapping[str, Any], known: frozenset[str]) -> None:
    for name, value in values.items():
        if name in known:
            setattr(record, name, _READ[name](value) if name in _READ else value)
