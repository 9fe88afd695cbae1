"""What a decision of the scheduler asks for."""

from dataclasses import dataclass

from gpuyard.domain.shape import Placement


@dataclass(frozen=True, slots=True)
class Start:
    """Start the job on these places."""

    job_id: str
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """End the job as failed: it can never start.

    `reason` is for machines, `message` for people.
    """

    job_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop an attempt and queue its job (`job_id`) again, so that `for_job` can
    start.
    """

    job_id: str
    attempt_id: str
    for_job: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back an attempt that waits in an external queue.

    Either its job can start here, at `placements`, or the offer is in quarantine and
    `placements` is empty.
    """

    job_id: str
    attempt_id: str
    placements: tuple[Placement, ...]


Action = Start | Fail | Preempt | Withdraw
