"""A new array as events: that of the array, then one for each of its tasks; and changes
of an array. Pure functions, as in `transitions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import msgspec

from gpuyard.controller.intake import PreparedJob
from gpuyard.controller.new_notices import new_notices
from gpuyard.domain.arrays import ArrayRange
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.states import JobState

OF_TASKS = ("priority", "deadline")
"""What an array may get another value of, and its tasks with it."""


@dataclass(frozen=True, slots=True)
class PreparedArray:
    """An array ready for the queue. `job` has what its tasks share; `key` is its
    idempotency key. `task_ids` are the ids of its tasks, in the order of its indices.
    """

    id: str
    key: str | None
    job: PreparedJob
    range: ArrayRange
    task_ids: Sequence[str]


class ArraySubmission(Sequence[Event]):
    """The events of a new array. Each is made when it is read, because to keep all
    would take much memory.
    """

    def __init__(self, array: PreparedArray, now: float) -> None:
        self._array = array
        self._now = now
        self._shared = _shared_values(array, now)

    def __len__(self) -> int:
        return 1 + len(self._array.task_ids)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        if index == 0:
            return _array_submitted(self._array, self._now)
        return self._task_submitted(index - 1)

    def _task_submitted(self, position: int) -> Event:
        array = self._array
        job_id = array.task_ids[position]
        values = {**self._shared, "array_index": array.range.indices[position]}
        change = Change(Table.JOBS, job_id, values)
        info = {"state": JobState.QUEUED, "name": array.job.name}
        return Event(EventKind.JOB_SUBMITTED, self._now, (change,), job_id, info)


def _array_submitted(array: PreparedArray, now: float) -> Event:
    template = array.job.template
    values: dict[str, Any] = {
        "name": array.job.name,
        "tasks": array.range.text,
        "total": len(array.task_ids),
        "at_most": array.range.at_most,
        "priority": template.priority,
        "project": template.project,
        "labels": array.job.labels,
        "warnings": template.warnings,
        "idempotency_key": array.key,
        "created_at": now,
    }
    changes = (
        Change(Table.ARRAYS, array.id, values),
        Change(Table.SPECS, array.id, {"body": msgspec.Raw(array.job.body)}),
        *new_notices(array.id, template),
    )
    info = {"array_id": array.id, "name": array.job.name, "total": len(array.task_ids)}
    return Event(EventKind.ARRAY_SUBMITTED, now, changes, None, info)


def updated(
    row: Mapping[str, Any],
    changes: Mapping[str, Any],
    spec: Mapping[str, Any],
    now: float,
) -> Event:
    """The owner gives an array (its ledger `row`) other values of `at_most`, `priority`
    and `deadline` (None: none any more); `spec` is that in the ledger.
    """
    array_id = row["id"]
    of_tasks = {name: changes[name] for name in OF_TASKS if name in changes}
    own = {name: changes[name] for name in changes if name != "deadline"}
    rows: list[Change] = []
    if own:
        rows.append(Change(Table.ARRAYS, array_id, own))
    if of_tasks:
        rows.append(_with_values(array_id, spec, of_tasks))
    described = {"array_id": array_id, "name": row["name"], "total": row["total"]}
    info = {**described, **changes}
    return Event(EventKind.ARRAY_UPDATED, now, tuple(rows), None, info)


def task_updated(
    job_id: str,
    changes: Mapping[str, Any],
    own_spec: Mapping[str, Any] | None,
    now: float,
) -> Event:
    """A task gets the new values `OF_TASKS` of its array; `own_spec`: the spec that it
    has of its own.
    """
    values = dict(changes)
    if "deadline" in changes:
        values["deadline_told"] = None
    rows = [Change(Table.JOBS, job_id, values)]
    if own_spec is not None:
        rows.append(_with_values(job_id, own_spec, changes))
    return Event(EventKind.JOB_UPDATED, now, tuple(rows), job_id, dict(changes))


def _with_values(
    key: str, spec: Mapping[str, Any], changes: Mapping[str, Any]
) -> Change:
    body = {name: value for name, value in spec.items() if name not in changes}
    body |= {name: value for name, value in changes.items() if value is not None}
    return Change(Table.SPECS, key, {"body": body})


def _shared_values(array: PreparedArray, now: float) -> dict[str, Any]:
    """The columns that all its tasks share; those with their default are left out,
    which makes the journal of many tasks shorter.
    """
    job = array.job
    template = job.template
    values: dict[str, Any] = {
        "name": job.name,
        "kind": template.kind,
        "state": JobState.QUEUED.value,
        "priority": template.priority,
        "shape": template.shape_row,
        "created_at": now,
        "retry_count": template.retry_count,
        "failures": 0,
        "attempts": 0,
        "preemptible": template.preemptible,
        "cancel_requested": False,
        "array_id": array.id,
    }
    others: dict[str, Any] = {
        "project": template.project,
        "owner": template.user,
        "timeout_s": template.timeout_s,
        "deadline": template.deadline,
        "estimated_duration_s": template.estimated_duration_s,
        "tier": template.tier,
        "retry_on": template.retry_on,
        "depends_on": job.parents or None,
        "parent_ends": job.parent_ends or None,
        "held": template.held or None,
        "labels": None if job.labels == b"{}" else job.labels,
    }
    given = {name: value for name, value in others.items() if value is not None}
    return {**values, **given}
