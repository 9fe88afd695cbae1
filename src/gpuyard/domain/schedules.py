"""Schedules: jobs that are submitted again and again, at the times of a cron
expression. Times are UTC seconds.
"""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.types import StringConstraints

from gpuyard.domain.cron import CronTimes, five_fields, time_zone
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.spec_values import Name, Seconds
from gpuyard.domain.states import JobState
from gpuyard.domain.strict_model import StrictModel

LABEL = "schedule"
"""The label by which a job names the schedule that has submitted it."""
STARTING_DEADLINE_S = 3600.0


class Overlap(StrEnum):
    """What happens at a time when the schedule's last job has not ended.

    `skip`: this time is left out. `queue`: the new job waits for the end of the last
    one; if that has not started, this time is left out. `cancel-previous`: the last job
    is cancelled, and the new one starts after its end.
    """

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL_PREVIOUS = "cancel-previous"


class ScheduleState(StrEnum):
    """`paused`: no time counts until it is `active` again."""

    ACTIVE = "active"
    PAUSED = "paused"


class SkipReason(StrEnum):
    """Why there was no job at a time: the last one had not ended (`overlap`), the time
    was over before the server could start it (`missed`), or the job could not be
    submitted (`refused`).
    """

    OVERLAP = "overlap"
    MISSED = "missed"
    REFUSED = "refused"


def _cron(value: str) -> str:
    five_fields(value)
    return value.strip()


def _timezone(value: str) -> str:
    return time_zone(value).key


Cron = Annotated[
    str, StringConstraints(min_length=1, max_length=200), AfterValidator(_cron)
]
"""Five fields (minute, hour, day of the month, month, day of the week), or a name such
as `@daily`.
"""
TimeZone = Annotated[Name, AfterValidator(_timezone)]
"""A name of the time zone database, such as `Europe/Berlin`."""
StartingDeadline = Annotated[Seconds, Field(ge=60)]


class ScheduleSpec(StrictModel):
    """A schedule: submit `job` at the times of `cron` in `timezone`.

    A time that could not be kept is made up for while it is at most
    `starting_deadline_s` old; of several such times only the last one counts. Each job
    has its deadline `deadline_s` after its time. The same `idempotency_key` means the
    same schedule.
    """

    cron: Cron
    timezone: TimeZone = "UTC"
    overlap: Overlap = Overlap.SKIP
    starting_deadline_s: StartingDeadline = STARTING_DEADLINE_S
    deadline_s: Seconds | None = None
    job: JobSpec
    idempotency_key: Name | None = None

    @model_validator(mode="after")
    def _job_can_come_again(self) -> Self:
        if self.job.idempotency_key is not None:
            raise ValueError(
                "@job.idempotency_key@would make all of its jobs one; give the schedule"
                " an idempotency_key"
            )
        if self.job.deadline is not None:
            raise ValueError(
                "@job.deadline@is one moment, and the jobs of a schedule come again and"
                " again; give the schedule deadline_s, so long after each time"
            )
        if LABEL in self.job.labels:
            raise ValueError(
                f"@job.labels.{LABEL}@is set by gpuyard to the schedule's id; choose"
                " another name"
            )
        return self

    @model_validator(mode="after")
    def _comes_some_time(self) -> Self:
        if CronTimes(self.cron, self.timezone).next_after(0.0) is None:
            raise ValueError("@cron@never comes; write, for example, '0 3 * * *'")
        return self


class ScheduleChanges(StrictModel):
    """What is to differ of a schedule; what is left out stays. `deadline_s` may be
    null: then its jobs have no deadline any more.
    """

    cron: Cron | None = None
    timezone: TimeZone | None = None
    overlap: Overlap | None = None
    starting_deadline_s: StartingDeadline | None = None
    deadline_s: Seconds | None = None
    state: ScheduleState | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.changes():
            names = ", ".join(type(self).model_fields)
            raise ValueError(f"changes nothing; give one of {names}")
        return self

    def changes(self) -> dict[str, Any]:
        """What is to differ, as in a row of the ledger."""
        given = self.model_dump(mode="json", exclude_none=True)
        if "deadline_s" in self.model_fields_set:
            given["deadline_s"] = self.deadline_s
        return given


class Schedule(BaseModel):
    """A schedule as people see it: the resource of the HTTP API.

    `next_at` is None while it is paused. `last_at` is when it has submitted its last
    job. `problem` says why the newest time had no job. `job` is the spec of its jobs.
    """

    # A newer server may send fields that an older client does not know.
    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    name: str
    state: ScheduleState
    cron: str
    timezone: str
    overlap: Overlap
    starting_deadline_s: float
    deadline_s: float | None = None
    next_at: float | None = None
    last_at: float | None = None
    last_job_id: str | None = None
    last_job_state: JobState | None = None
    problem: str | None = None
    created_at: float
    job: dict[str, Any]
    warnings: list[str] = Field(default_factory=list)
