"""How many jobs have ended over time, by outcome."""

from collections.abc import Mapping
from enum import StrEnum

from pydantic import BaseModel

from gpuyard.domain.events import EventKind

# What an end is called, by the event that tells of it.
OUTCOMES: Mapping[str, str] = {
    EventKind.JOB_COMPLETED: "completed",
    EventKind.JOB_FAILED: "failed",
    EventKind.JOB_CANCELLED: "cancelled",
    EventKind.JOB_TIMED_OUT: "timed_out",
}


class ThroughputStep(StrEnum):
    """How long each count is: the last 60 minutes, or the last 24 hours."""

    MINUTE = "minute"
    HOUR = "hour"

    @property
    def minutes(self) -> int:
        """The length of a step."""
        return 1 if self is ThroughputStep.MINUTE else 60

    @property
    def shown(self) -> int:
        """How many steps are shown."""
        return 60 if self is ThroughputStep.MINUTE else 24


class Throughput(BaseModel):
    """`ended`: by outcome, how many jobs ended in each step. The first step begins at
    `begins_at` (UTC seconds), each lasts `step_s`, and the last one is not over. A job
    counts each time that it ends.
    """

    by: ThroughputStep
    step_s: int
    begins_at: float
    ended: dict[str, list[int]]
