"""Policy: the scheduler's settings, in one frozen record."""

from dataclasses import dataclass
from enum import StrEnum

from gpuyard.domain.offers import Strategy

MAX_DOUBLINGS = 62
"""Bounds the power, so that no count of failures overflows."""


class Order(StrEnum):
    """Whose turn it is among jobs of one priority.

    `fcfs`: the first that came, and nobody passes it. `backfill`: the first that came, and who does not delay it may
    pass. `gittins`: as `backfill`, but first whose type is known to end soon for the GPUs it holds; among preemptible
    jobs, running ones give way.
    """

    FCFS = "fcfs"
    BACKFILL = "backfill"
    GITTINS = "gittins"


@dataclass(frozen=True, slots=True)
class Policy:
    """How the scheduler weighs things. Times in seconds; ValueError when one makes no sense.

    `ageing_s`: a job gains one priority each time it has waited so long (infinity turns ageing off).
    `ageing_means`: with `gittins`, that time is at least so many mean durations of completed jobs: where jobs take
    days, one that has waited for six hours has not waited long.
    `retry_base_s`, `retry_max_s`: the wait after the first failure, and the longest.
    `end_margin_s`: what an attempt may need to die after its timeout: checkpoint grace (30 s by default), TERM, KILL.
    `reserved_heads`: how many waiting jobs hold a reservation at once; it bounds the work of one decision.
    `preempt_cost_s`: what a preemption loses: the way to the checkpoint and back. `preempt_gain`: how many times as
    much as a running job a waiting one must be worth to take its place. `preempt_most`: after so many preemptions
    only an urgent job takes a job's place again. `strategy`: which offer is best for a job that does not say.
    """

    order: Order = Order.GITTINS
    ageing_s: float = 6 * 3600.0
    ageing_means: float = 30.0
    retry_base_s: float = 1.0
    retry_max_s: float = 300.0
    end_margin_s: float = 60.0
    reserved_heads: int = 8
    preempt_cost_s: float = 60.0
    preempt_gain: float = 1.5
    preempt_most: int = 30
    strategy: Strategy = Strategy.BALANCED

    def __post_init__(self) -> None:
        if not self.ageing_s > 0:
            raise ValueError(f"ageing_s is {self.ageing_s}; write a number of seconds above 0")
        if not (self.retry_base_s >= 0 and self.retry_max_s >= 0 and self.end_margin_s >= 0):
            raise ValueError("retry_base_s, retry_max_s and end_margin_s are seconds and cannot be negative")
        if self.reserved_heads < 1:
            raise ValueError("reserved_heads must be at least 1, or a stream of small jobs starves a large one")
        if not (self.preempt_cost_s >= 0 and self.preempt_gain >= 1 and self.preempt_most >= 0):
            raise ValueError("preempt_gain must be at least 1, preempt_cost_s and preempt_most at least 0")


def backoff_s(policy: Policy, failures: int) -> float:
    """Seconds to wait after the `failures`-th failure in a row: doubling, bounded, 0 when nothing has failed.

    No jitter: there is one queue, so retries cannot stampede.
    """
    if failures < 1:
        return 0.0
    return min(policy.retry_max_s, policy.retry_base_s * 2 ** min(failures - 1, MAX_DOUBLINGS))
