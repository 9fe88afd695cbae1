"""Victims: attempts that their owner marked preemptible, by node, the one whose loss is
least first.

An appraisal holds until the attempt enters its next span of service, its job ages, or
more is learned about its type. Only outdated appraisals are made again; those for which
only more was learned, a few in each decision.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Protocol

from gpuyard.domain.shape import Placement
from gpuyard.domain.states import AttemptState
from gpuyard.scheduler.gittins import next_span_s
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.queue import AT_ONCE
from gpuyard.scheduler.ranking import Ranking

RUN_COSTS = 10.0
"""A job runs for this many times the cost of a preemption before a job that gains more
displaces it: so at most a tenth is lost.
"""
Key = tuple[int, float, float, str]
"""Effective priority, gain per GPU, time of creation (negative), attempt id."""


class PreemptibleAttempt(Protocol):
    """What victims need to know about an attempt."""

    id: str
    job_id: str
    state: AttemptState
    placements: tuple[Placement, ...]
    created_at: float
    started_at: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """An appraised attempt that may be preempted. Times are UTC seconds.

    - `loss`: what the job gains per second on all its GPUs, times `preempt_gain`. A
      waiting job must gain more to displace it.
    - `displaceable_at`: from when on such a job may displace it; infinity for never.
    - `valid_until`: when the appraisal is outdated.
    - `key`: the victim with the least key is chosen first.
    """

    attempt: PreemptibleAttempt
    job: LiveJob
    effective_priority: int
    loss: float
    displaceable_at: float
    valid_until: float
    key: Key


_key = attrgetter("key")


class Victims:
    """All preemptible attempts. `changed` holds those to appraise again."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._attempts: dict[str, PreemptibleAttempt] = {}
        self._known: dict[str, Victim] = {}
        self._by_node: dict[str, list[Victim]] = {}
        self._by_job_type: dict[str, set[str]] = {}
        self._due: list[tuple[float, str]] = []
        self._stale: dict[str, None] = {}
        self._policy: Policy | None = None
        self._ranking: tuple[object, ...] = ()
        self._seen_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._by_node)

    def add(self, attempt: PreemptibleAttempt, job_type: str) -> None:
        """Add an attempt of a job of this type."""
        self._attempts[attempt.id] = attempt
        self._by_job_type.setdefault(job_type, set()).add(attempt.id)
        self.changed.add(attempt.id)

    def remove(self, attempt_id: str, job_type: str) -> None:
        """Remove an attempt that has ended; idempotent."""
        if self._attempts.pop(attempt_id, None) is not None:
            self._by_job_type[job_type].discard(attempt_id)
            self._forget(attempt_id)
        self.changed.discard(attempt_id)
        self._stale.pop(attempt_id, None)

    def exclude(self, attempt_id: str) -> None:
        """Do not choose the attempt again: it has been asked to leave."""
        self._forget(attempt_id)

    def refresh(
        self,
        jobs: Mapping[str, LiveJob],
        ranking: Ranking,
        policy: Policy,
        now: float,
        learned: set[str],
    ) -> None:
        """Appraise what is outdated at `now` (UTC seconds) again. `learned`: the job
        types about which more is known since the last call.
        """
        if policy != self._policy or now < self._seen_at:
            self.changed.update(self._known)
        elif ranking.key != self._ranking:
            self._stale.update(dict.fromkeys(self._known))
        self._policy = policy
        self._ranking = ranking.key
        for job_type in learned:
            self._stale.update(dict.fromkeys(self._by_job_type.get(job_type, ())))
        while self._due and self._due[0][0] <= now:
            self.changed.add(heapq.heappop(self._due)[1])
        self._seen_at = now
        self.changed.update(islice(self._stale, AT_ONCE))
        for attempt_id in self.changed:
            self._stale.pop(attempt_id, None)
            self._forget(attempt_id)
            attempt = self._attempts.get(attempt_id)
            if attempt is not None and _frees_places(attempt):
                job = jobs[attempt.job_id]
                self._file(_appraised(attempt, job, ranking, policy, now))
        self.changed.clear()

    @property
    def has_outdated(self) -> bool:
        """True while appraisals lack what was learned since."""
        return bool(self._stale)

    def next_change(self) -> float | None:
        """When (UTC seconds) the next appraisal is outdated; None if none will be."""
        while self._due and not self._is_valid(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def nodes(self) -> list[str]:
        """The nodes with victims."""
        return list(self._by_node)

    def on(self, node_id: str) -> Sequence[Victim]:
        """The victims on the node, those to choose first come first."""
        return self._by_node.get(node_id, ())

    def _is_valid(self, until: float, attempt_id: str) -> bool:
        victim = self._known.get(attempt_id)
        return victim is not None and victim.valid_until == until

    def _file(self, victim: Victim) -> None:
        self._known[victim.attempt.id] = victim
        for share in victim.attempt.placements:
            insort(self._by_node.setdefault(share.node_id, []), victim, key=_key)
        if victim.valid_until < math.inf:
            heapq.heappush(self._due, (victim.valid_until, victim.attempt.id))

    def _forget(self, attempt_id: str) -> None:
        victim = self._known.pop(attempt_id, None)
        if victim is None:
            return
        for share in victim.attempt.placements:
            here = self._by_node[share.node_id]
            del here[bisect_left(here, victim.key, key=_key)]
            if not here:
                del self._by_node[share.node_id]


def _frees_places(attempt: PreemptibleAttempt) -> bool:
    """True if its end would free places on a node of ours."""
    is_in_external_queue = bool(attempt.placements[0].offer)
    return attempt.state is AttemptState.RUNNING and not is_in_external_queue


def _appraised(
    attempt: PreemptibleAttempt,
    job: LiveJob,
    ranking: Ranking,
    policy: Policy,
    now: float,
) -> Victim:
    ran_s = now - attempt.started_at if attempt.started_at is not None else 0.0
    served_s = job.service.served_s + max(0.0, ran_s)
    effective_priority = ranking.effective_priority(job, now)
    gain_per_gpu = ranking.gain_per_gpu(job, served_s)
    displaceable_at = now - ran_s + RUN_COSTS * policy.preempt_cost_s
    if job.service.preemptions >= policy.preempt_most:
        displaceable_at = math.inf
    changes: list[float] = []
    if ranking.learns:
        # A moment after the edge, so that rounding causes no useless decision.
        changes.append(now + next_span_s(served_s) - served_s + 1e-3)
    if displaceable_at > now:
        changes.append(displaceable_at)
    ageing_at = ranking.next_ageing(job, now)
    if ageing_at is not None:
        changes.append(ageing_at)
    return Victim(
        attempt,
        job,
        effective_priority,
        loss=gain_per_gpu * job.width * policy.preempt_gain,
        displaceable_at=displaceable_at,
        valid_until=min(changes, default=math.inf),
        key=(effective_priority, gain_per_gpu, -attempt.created_at, attempt.id),
    )
