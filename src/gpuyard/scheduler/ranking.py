"""Ranking: what jobs are sorted by.

First comes effective priority: the job's own (1 to 5) plus one for each ageing period it has waited, up to 6: one above
the most urgent newcomer. At 6 only age counts, so every job is at some time ahead of all that come later, and nothing
starves. Below that, and where the policy learns, comes the job's worth for each GPU it holds; then its id, which is the
order of submission.
"""

import math

from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.learning import Learning
from gpuyard.scheduler.policy import Order, Policy

AGED = 6
"""The effective priority at which ageing ends."""

Rank = tuple[int, float, str]
"""Effective priority and worth, both negated, and id: the least comes first."""


class Ranking:
    """Ranks under one policy and what is known of durations now. Equal keys rank equally, but for `learned` types;
    `rule` is the part of the key that people set."""

    def __init__(self, policy: Policy, learning: Learning) -> None:
        self._learning = learning if policy.order is Order.GITTINS else None
        self.learns = self._learning is not None
        self.ageing_s = policy.ageing_s
        if self._learning:
            self.ageing_s = max(self.ageing_s, policy.ageing_means * learning.mean_s)
        revision = learning.revision if self._learning else -1
        self.rule: tuple[object, ...] = (policy.order, policy.ageing_s)
        self.key: tuple[object, ...] = (policy.order, self.ageing_s, revision)

    def of(self, job: LiveJob, now: float) -> Rank:
        """Where the job stands at `now` (UTC seconds)."""
        effective = self.effective_priority(job, now)
        return -effective, 0.0 if effective >= AGED else -self.worth(job, job.served_s), job.id

    def worth(self, job: LiveJob, served_s: float) -> float:
        """What a job that has had `served_s` of service gains per second and GPU; 0 where nothing is learned."""
        if self._learning is None:
            return 0.0
        return self._learning.index(job.kind, job.width, served_s) / job.width

    def learned(self) -> set[str]:
        """The types whose worth has changed since this was last asked."""
        return self._learning.settle() if self._learning else set()

    def effective_priority(self, job: LiveJob, now: float) -> int:
        """The job's own priority and what its age adds."""
        steps = int(max(0.0, now - job.created_at) / self.ageing_s)
        # Rounding must not put the step off past the moment `next_ageing` named: one would wake in vain for ever.
        if now >= job.created_at + (steps + 1) * self.ageing_s:
            steps += 1
        return min(AGED, job.priority + steps)

    def next_ageing(self, job: LiveJob, now: float) -> float | None:
        """When (UTC seconds) the job's effective priority next rises; None when it will not."""
        effective = self.effective_priority(job, now)
        if effective >= AGED or self.ageing_s == math.inf:
            return None
        return job.created_at + (effective - job.priority + 1) * self.ageing_s
