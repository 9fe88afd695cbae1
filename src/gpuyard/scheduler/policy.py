"""Policy: the settings of the scheduler."""

from dataclasses import dataclass
from enum import StrEnum

from gpuyard.domain.offers import Strategy

MAX_DOUBLINGS = 62
"""Bounds the power, so that no count of failures overflows."""


class QueueOrder(StrEnum):
    """The order of waiting jobs, or of those of one priority.

    `fcfs`: strict order of submission. `backfill`: order of submission, but a job may
    pass others if it does not delay them. `gittins`: like `backfill`, but jobs that are
    expected to end soon for the GPUs they hold come first, and may displace running
    preemptible jobs. `fair`: like `backfill`, but the users and projects that have used
    least for their shares come first, and priorities count only among the jobs of one
    of them (see `fair_order`).
    """

    FCFS = "fcfs"
    BACKFILL = "backfill"
    GITTINS = "gittins"
    FAIR = "fair"


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings; times are in seconds. Raises ValueError for values out of range.

    - `ageing_s`: a job gains one priority each time it has waited this long; infinity
      turns ageing off.
    - `ageing_means`: under `gittins`, that time is at least this many mean durations of
      completed jobs. If jobs take days, six hours are not a long wait.
    - `retry_base_s`, `retry_max_s`: the wait after the first failure, and the longest.
    - `end_margin_s`: how long an attempt may need to end after its timeout: the grace
      for a checkpoint (30 s by default), TERM, KILL.
    - `reserved_heads`: how many waiting jobs hold reservations at once; this bounds the
      work of one decision.
    - `preempt_cost_s`: what a preemption costs, from stopping at a checkpoint to
      running on.
    - `preempt_gain`: how many times as much as a running job a waiting job must gain to
      displace it.
    - `preempt_most`: after this many preemptions, only an urgent job may displace a job
      again.
    - `spot_attempts`: a job that was preempted so many times takes a spot offer only if
      nothing else is left.
    - `strategy`: which offer is best, for jobs that name no strategy.
    - `reservation_notice_s`: a job without a time limit is kept off GPUs whose
      reservation begins within this time.
    """

    order: QueueOrder = QueueOrder.GITTINS
    ageing_s: float = 6 * 3600.0
    ageing_means: float = 30.0
    retry_base_s: float = 1.0
    retry_max_s: float = 300.0
    end_margin_s: float = 60.0
    reserved_heads: int = 8
    preempt_cost_s: float = 60.0
    preempt_gain: float = 1.5
    preempt_most: int = 30
    spot_attempts: int = 3
    strategy: Strategy = Strategy.BALANCED
    reservation_notice_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        if not self.ageing_s > 0:
            raise ValueError(
                f"ageing_s is {self.ageing_s}; write a number of seconds above 0"
            )
        if not (
            self.retry_base_s >= 0 and self.retry_max_s >= 0 and self.end_margin_s >= 0
        ):
            raise ValueError(
                "retry_base_s, retry_max_s and end_margin_s are seconds and cannot be"
                " negative"
            )
        if self.reserved_heads < 1:
            raise ValueError(
                "reserved_heads must be at least 1, or a stream of small jobs starves a"
                " large one"
            )
        if not (
            self.preempt_cost_s >= 0
            and self.preempt_gain >= 1
            and self.preempt_most >= 0
        ):
            raise ValueError(
                "preempt_gain must be at least 1, preempt_cost_s and preempt_most at"
                " least 0"
            )


def backoff_s(policy: Policy, failures: int) -> float:
    """Seconds to wait after the `failures`-th failure in a row: it doubles up to a
    maximum; 0 if nothing has failed.

    It needs no jitter, because one queue starts all retries.
    """
    if failures < 1:
        return 0.0
    factor = 2 ** min(failures - 1, MAX_DOUBLINGS)
    return min(policy.retry_max_s, policy.retry_base_s * factor)
