"""A schedule as the controller remembers it, and the events of its changes: pure
functions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from gpuyard.controller.admission import are_equal
from gpuyard.domain.cron import CronTimes
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.idempotency_keys import owned_key
from gpuyard.domain.schedules import (
    LABEL,
    Overlap,
    ScheduleSpec,
    ScheduleState,
    SkipReason,
)

Values = Mapping[str, Any]
# What determines the times of a schedule.
_TIMES = ("state", "cron", "timezone")
_COMPARED = ("cron", "timezone", "overlap", "starting_deadline_s", "deadline_s")


@dataclass(frozen=True, slots=True)
class LiveSchedule:
    """A row of the ledger. Times are UTC seconds.

    `seen_at` is the last time that was dealt with, and `next_at` the first one after
    it; None while it is paused.
    """

    id: str
    name: str
    state: str
    cron: str
    timezone: str
    overlap: str
    starting_deadline_s: float
    deadline_s: float | None
    spec: Values
    warnings: list[str]
    idempotency_key: str | None
    created_at: float
    seen_at: float
    next_at: float | None
    last_at: float | None
    last_job_id: str | None
    problem: str | None

    @classmethod
    def of(cls, row: Values) -> "LiveSchedule":
        """The schedule of a row of the ledger."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})

    @property
    def times(self) -> CronTimes:
        """When it is due."""
        return CronTimes(self.cron, self.timezone)

    def has_key(self, key: str, user: str | None) -> bool:
        """Whether this user submitted it with this idempotency key. Those from earlier
        versions stand there as they were given.
        """
        owner = self.spec.get("user")
        own = self.idempotency_key
        return owner == user and own in (key, owned_key(key, user))

    def means(self, spec: ScheduleSpec, job: Values) -> bool:
        """Whether this is the schedule of `spec`, with jobs of the spec `job`."""
        own = {name: getattr(self, name) for name in _COMPARED}
        given = {name: getattr(spec, name) for name in _COMPARED}
        return own == given and are_equal(self.spec, job)

    @property
    def useful_s(self) -> float:
        """For how long after a time its job may still be started."""
        return min(self.starting_deadline_s, self.deadline_s or math.inf)

    def due_at(self, now: float) -> float | None:
        """The newest of its times that have come and were not dealt with; None when
        none has come.
        """
        if self.next_at is None or self.next_at > now:
            return None
        latest = self.times.latest_until(now)
        return self.next_at if latest is None else max(latest, self.next_at)


def created(
    schedule_id: str,
    spec: ScheduleSpec,
    job: Values,
    warnings: list[str],
    now: float,
) -> Event:
    """A new schedule; `job` is the spec of its jobs as JSON."""
    key = spec.idempotency_key
    values = {
        "name": spec.job.name,
        "state": ScheduleState.ACTIVE.value,
        "cron": spec.cron,
        "timezone": spec.timezone,
        "overlap": spec.overlap.value,
        "starting_deadline_s": spec.starting_deadline_s,
        "deadline_s": spec.deadline_s,
        "spec": job,
        "warnings": warnings,
        "idempotency_key": key and owned_key(key, job.get("user")),
        "created_at": now,
        "last_at": None,
        "last_job_id": None,
        "problem": None,
        **_dealt_with(now, CronTimes(spec.cron, spec.timezone)),
    }
    change = Change(Table.SCHEDULES, schedule_id, values)
    info = {
        "schedule": schedule_id,
        "name": spec.job.name,
        "project": job.get("project"),
        "next_at": values["next_at"],
    }
    return Event(EventKind.SCHEDULE_CREATED, now, (change,), None, info)


def changed(schedule: LiveSchedule, changes: Values, now: float) -> Event:
    """Other values. If they mean other times, these count from now on."""
    before = {name: getattr(schedule, name) for name in _TIMES}
    after = before | {name: changes[name] for name in _TIMES if name in changes}
    values = dict(changes)
    if after != before:
        is_active = after["state"] == ScheduleState.ACTIVE
        times = CronTimes(after["cron"], after["timezone"]) if is_active else None
        values |= {"problem": None, **_dealt_with(now, times)}
    next_at = values.get("next_at", schedule.next_at)
    info = {**_named(schedule), **changes, "next_at": next_at}
    change = Change(Table.SCHEDULES, schedule.id, values)
    return Event(EventKind.SCHEDULE_CHANGED, now, (change,), None, info)


def set_back(schedule: LiveSchedule, now: float) -> Event:
    """The clock was set back so far that it was wrong before. The times count from now
    on; otherwise none would come until the clock is where it was.
    """
    values = _dealt_with(now, schedule.times)
    info = {
        **_named(schedule),
        "next_at": values["next_at"],
        "problem": "the clock was set back",
    }
    change = Change(Table.SCHEDULES, schedule.id, values)
    return Event(EventKind.SCHEDULE_CHANGED, now, (change,), None, info)


def started(
    schedule: LiveSchedule, job_id: str, due_at: float | None, now: float
) -> Event:
    """It has submitted a job for the time `due_at`; None: because somebody asked."""
    values: dict[str, Any] = {"last_at": now, "last_job_id": job_id, "problem": None}
    if due_at is not None:
        values |= _dealt_with(due_at, schedule.times)
    change = Change(Table.SCHEDULES, schedule.id, values)
    info = {**_named(schedule), "due_at": due_at}
    return Event(EventKind.SCHEDULE_STARTED, now, (change,), job_id, info)


def skipped(
    schedule: LiveSchedule, due_at: float, reason: SkipReason, problem: str, now: float
) -> Event:
    """The time `due_at` has no job."""
    values = {"problem": problem, **_dealt_with(due_at, schedule.times)}
    change = Change(Table.SCHEDULES, schedule.id, values)
    info = {
        **_named(schedule),
        "due_at": due_at,
        "reason": reason.value,
        "problem": problem,
    }
    return Event(EventKind.SCHEDULE_SKIPPED, now, (change,), None, info)


def deleted(schedule: LiveSchedule, now: float) -> Event:
    """It is no more; its jobs stay."""
    change = Change(Table.SCHEDULES, schedule.id, None)
    return Event(EventKind.SCHEDULE_DELETED, now, (change,), None, _named(schedule))


def _dealt_with(moment: float, times: CronTimes | None) -> dict[str, Any]:
    """The columns that say so of all times until `moment`; without `times`, none
    follows.
    """
    return {
        "seen_at": moment,
        "next_at": times.next_after(moment) if times else None,
    }


def _named(schedule: LiveSchedule) -> dict[str, Any]:
    return {
        "schedule": schedule.id,
        "name": schedule.name,
        "project": schedule.spec.get("project"),
    }


def job_of(
    schedule: LiveSchedule, live: Sequence[str], due_at: float
) -> dict[str, Any]:
    """The spec of its job for the time `due_at`, as JSON; the job starts after the end
    of its `live` ones.
    """
    body: dict[str, Any] = dict(schedule.spec)
    if schedule.deadline_s is not None:
        body["deadline"] = due_at + schedule.deadline_s
    body["labels"] = {**body.get("labels", {}), LABEL: schedule.id}
    if live and schedule.overlap != Overlap.SKIP:
        body["depends_on_any"] = [*body.get("depends_on_any", ()), *live]
    return body
