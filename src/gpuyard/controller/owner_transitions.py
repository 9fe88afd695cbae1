"""State changes that the owner of a job asks for: pure functions from records to
events, as in `transitions`.
"""

from collections.abc import Mapping
from typing import Any

from gpuyard.domain.errors import IllegalMoveError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JOB_MOVES, JobState, check_move
from gpuyard.scheduler.jobs import LiveJob


def held(job: LiveJob, now: float, *, held: bool) -> Event:
    """The owner holds a queued job, or releases it."""
    if job.state is not JobState.QUEUED:
        raise IllegalMoveError(
            f"job {job.id} is {job.state}.", "Only a queued job can be held."
        )
    kind = EventKind.JOB_HELD if held else EventKind.JOB_RELEASED
    change = Change(Table.JOBS, job.id, {"held": held})
    return Event(kind, now, (change,), job.id, {"state": job.state})


def reshaped(job: LiveJob, shape: Shape, now: float) -> Event:
    """The needs of a job are told in the words of this version of gpuyard."""
    change = Change(Table.JOBS, job.id, {"shape": shape.to_row()})
    return Event(EventKind.JOB_UPDATED, now, (change,), job.id, {})


def updated(
    row: Mapping[str, Any],
    changes: Mapping[str, Any],
    spec: JobSpec,
    now: float,
) -> Event:
    """The owner gives a job (its ledger `row`) other values of some columns; `spec` has
    them, too.
    """
    # The type of a job follows from its name and its labels.
    values = {**changes, "labels": row["labels"]}
    if "deadline" in changes:
        values["deadline_told"] = None
    rows = (Change(Table.JOBS, row["id"], values), _spec_change(row["id"], spec))
    return Event(EventKind.JOB_UPDATED, now, rows, row["id"], dict(changes))


def _spec_change(job_id: str, spec: JobSpec) -> Change:
    body = spec.given_json()
    return Change(Table.SPECS, job_id, {"body": body})


def resumed(
    row: Mapping[str, Any],
    checkpoint: str,
    now: float,
    spec: JobSpec | None = None,
    at_most: int | None = None,
) -> Event:
    """The owner resumes an ended job (its whole ledger `row`), from a checkpoint id or
    from NEWEST; `spec` is its spec, if that has other values now. `at_most`: how many
    tasks of its array may run at once, if that is limited.

    The event holds every column, because the view forgot the job when it ended.
    """
    state = JobState(row["state"])
    if not state.terminal:
        raise IllegalMoveError(
            f"job {row['id']} is {state}.", "Only a job that is over can be resumed."
        )
    check_move(JOB_MOVES, f"job {row['id']}", state, JobState.QUEUED)
    values = {name: value for name, value in row.items() if name != "id"}
    values |= {
        "state": JobState.QUEUED.value,
        "reason": None,
        "exit_code": None,
        "ended_at": None,
        "cancel_requested": False,
        "held": None,
        "failures": 0,
        "not_before": None,
        "resume_from": checkpoint,
    }
    changes = [Change(Table.JOBS, row["id"], values)]
    if at_most is not None:
        # First, because the view may have forgotten the array and needs it for the job.
        limit = Change(Table.ARRAYS, row["array_id"], {"at_most": at_most})
        changes.insert(0, limit)
    if spec is not None:
        changes.append(_spec_change(row["id"], spec))
    info = {"state": JobState.QUEUED, "resume_from": checkpoint}
    return Event(EventKind.JOB_RESUMED, now, tuple(changes), row["id"], info)
