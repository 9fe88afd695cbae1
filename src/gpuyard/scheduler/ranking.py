"""Ranking: the order of waiting jobs.

First counts effective priority: the job's own (1 to 5) plus one for each ageing period
that it has waited, up to 6, one above the most urgent new job. At 6 only age counts: in
the end each job comes before all later ones, so nothing starves. Below 6, under
`gittins`, counts what the job gains per GPU, and under `fair`, where all jobs of a line
are those of one user, the deadline; then its id, which is the order of submission.

Under the other policies all people share one line, so there a deadline changes nothing:
whoever wrote one would pass the others.
"""

import math

from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.learning import Learning
from gpuyard.scheduler.policy import Policy, QueueOrder

AGED = 6
"""The highest effective priority, at which ageing ends."""

Rank = tuple[int, float, str]
"""Effective priority (negative), gain per GPU (negative) or minute of the deadline, id:
the least comes first.
"""


def due_minute(deadline: float | None) -> float:
    """The full minute (UTC seconds) by which it has passed; infinity for none. Within a
    minute the id counts, so that jobs submitted one by one share a bucket.
    """
    return math.inf if deadline is None else math.ceil(deadline / 60) * 60.0


class Ranking:
    """Ranks jobs by one policy and by what is known about durations now.

    Rankings with equal `key` rank equally, except types about which more was learned.
    `rule` is the part of the key that comes from settings. `learns`: the policy uses
    durations.
    """

    def __init__(self, policy: Policy, learning: Learning) -> None:
        self._learning = learning if policy.order is QueueOrder.GITTINS else None
        self.learns = self._learning is not None
        self._by_deadline = policy.order is QueueOrder.FAIR
        self.ageing_s = policy.ageing_s
        if self._learning:
            self.ageing_s = max(self.ageing_s, policy.ageing_means * learning.mean_s)
        revision = learning.revision if self._learning else -1
        self.rule: tuple[object, ...] = (policy.order, policy.ageing_s)
        self.key: tuple[object, ...] = (policy.order, self.ageing_s, revision)

    def of(self, job: LiveJob, now: float) -> Rank:
        """The job's rank at `now` (UTC seconds)."""
        effective = self.effective_priority(job, now)
        if effective >= AGED:
            return -effective, 0.0, job.id
        if self._by_deadline:
            return -effective, due_minute(job.deadline), job.id
        return -effective, -self.gain_per_gpu(job, job.service.served_s), job.id

    def gain_per_gpu(self, job: LiveJob, served_s: float) -> float:
        """What a job that has run for `served_s` gains per second and GPU (the Gittins
        index per GPU); 0 if nothing is known.
        """
        if self._learning is None:
            return 0.0
        return self._learning.index(job.job_type, job.width, served_s) / job.width

    def take_changed_types(self) -> set[str]:
        """The job types about which more was learned since the last call."""
        return self._learning.take_changed_types() if self._learning else set()

    def effective_priority(self, job: LiveJob, now: float) -> int:
        """The job's own priority plus its ageing."""
        steps = int(max(0.0, now - job.created_at) / self.ageing_s)
        # At the time that `next_ageing` gave, the step must count despite rounding, or
        # that time would be given again and again.
        if now >= job.created_at + (steps + 1) * self.ageing_s:
            steps += 1
        return min(AGED, job.priority + steps)

    def next_ageing(self, job: LiveJob, now: float) -> float | None:
        """When (UTC seconds) the job's effective priority next rises; None if never."""
        effective = self.effective_priority(job, now)
        if effective >= AGED or self.ageing_s == math.inf:
            return None
        return job.created_at + (effective - job.priority + 1) * self.ageing_s
