"""How an attempt ended, and what follows for its job: pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuyard.domain import wire
from gpuyard.domain.reasons import Reason, RetryRule
from gpuyard.domain.states import JobState
from gpuyard.scheduler.jobs import LiveJob


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """How an attempt ended. Times are UTC seconds.

    `reason`: what was found, such as `out_of_memory`. `stopped`: why gpuyard ended it,
    such as `timed_out`, `cancelled` or `gpu_failed`; empty if it did not. It comes
    before `reason`, see `final_state`. `ran_s`: for how many seconds it ran, as
    measured; None if nobody measured. `paid_s`: for how many seconds its place is paid
    for, if not for those.
    """

    at: float
    started_at: float | None = None
    ran_s: float | None = None
    paid_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    stopped: str = ""
    message: str = ""
    usage: Mapping[str, float] = field(default_factory=dict[str, float])
    limits: Mapping[str, str] = field(default_factory=dict[str, str])
    lost: bool = False
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


def outcome_of(end: wire.Ended) -> AttemptOutcome:
    """The outcome that an agent reports."""
    return AttemptOutcome(
        end.at,
        started_at=end.started_at,
        ran_s=end.ran_s,
        exit_code=end.exit_code,
        signal=end.signal,
        reason=end.reason,
        stopped=end.stopped,
        message=end.message,
        usage=end.usage,
        limits=end.limits,
        lost=Reason.of(end.reason).lost,
        facts=end.facts,
    )


@dataclass(frozen=True, slots=True)
class Retry:
    """Whether the job gets another attempt: not before `not_before`; None for no retry.

    `not_before` is in UTC seconds of the server's clock, because the clock of the node
    that reports the failure may be hours off.
    """

    not_before: float | None


def final_state(job: LiveJob, outcome: AttemptOutcome) -> tuple[JobState, str | None]:
    """The state of the job if no retry follows, and the reason why the attempt ended.

    A job whose program exited cleanly before a cancel reached it has completed.
    """
    stopped = outcome.stopped
    if stopped == Reason.TIMED_OUT:
        return JobState.TIMED_OUT, Reason.TIMED_OUT
    if stopped == Reason.EVICTED:
        return JobState.CANCELLED, Reason.EVICTED
    if stopped == Reason.BUDGET and not job.cancel_requested:
        # Even after a clean exit: it was asked to save its work and leave.
        return JobState.CANCELLED, Reason.BUDGET
    if stopped == Reason.CANCELLED or (stopped and job.cancel_requested):
        return JobState.CANCELLED, Reason.CANCELLED
    if stopped == Reason.PREEMPTED:
        # Even after a clean exit: the program was asked to save its work and leave.
        # Only the reason counts: the job is always tried again.
        return JobState.FAILED, Reason.PREEMPTED
    if outcome.exit_code == 0 and not outcome.reason:
        return JobState.COMPLETED, None
    if job.cancel_requested:
        return JobState.CANCELLED, Reason.CANCELLED
    return JobState.FAILED, _failure_reason(outcome)


def _failure_reason(outcome: AttemptOutcome) -> str:
    if outcome.stopped:
        return outcome.stopped
    if outcome.reason:
        return outcome.reason
    return Reason.KILLED_BY_SIGNAL if outcome.signal else Reason.EXIT_CODE


def wants_retry(job: LiveJob, outcome: AttemptOutcome) -> bool:
    """Whether the job gets another attempt after this outcome."""
    state, text = final_state(job, outcome)
    if state not in (JobState.FAILED, JobState.TIMED_OUT) or job.cancel_requested:
        return False
    reason = Reason.of(text)
    if reason.retry is RetryRule.COUNTED:
        retries = job.retries
        return reason.cause in retries.causes and job.failures < retries.count
    return reason.retry is RetryRule.FREE
