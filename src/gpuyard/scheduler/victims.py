"""Victims: the attempts whose owner allows that they be preempted, by node, the one that is worth least first.

An appraisal holds until the attempt comes into its next span of service, its job ages, or more is learned of its type;
only those for which that is so are appraised anew, those of which only more is known a few a decision.
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
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.queue import AT_ONCE
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.worth import next_span_s

RUN_COSTS = 10.0
"""A job runs for this many times the cost of a preemption before it is displaced by worth: a tenth is lost at most."""
Key = tuple[int, float, float, str]
"""Effective priority, worth for each GPU, age negated, attempt id."""


class Attempt(Protocol):
    """What must be known of an attempt."""

    id: str
    job_id: str
    state: AttemptState
    placements: tuple[Placement, ...]
    created_at: float
    started_at: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """An attempt that may be asked to leave. `value` is its worth per second, over all its GPUs, with the gain asked
    for. From `settled_at` (UTC seconds) on it may be displaced by worth; infinity for never."""

    attempt: Attempt
    job: LiveJob
    effective: int
    value: float
    settled_at: float
    until: float
    key: Key
    """The least is asked first."""


_key = attrgetter("key")


class Victims:
    """Preemptible attempts, appraised. `changed` are those to appraise anew."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._attempts: dict[str, Attempt] = {}
        self._known: dict[str, Victim] = {}
        self._by_node: dict[str, list[Victim]] = {}
        self._by_kind: dict[str, set[str]] = {}
        self._due: list[tuple[float, str]] = []
        self._stale: dict[str, None] = {}
        self._policy: Policy | None = None
        self._ranking: tuple[object, ...] = ()
        self._seen_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._by_node)

    def add(self, attempt: Attempt, kind: str) -> None:
        """An attempt of a job of this type may be preempted."""
        self._attempts[attempt.id] = attempt
        self._by_kind.setdefault(kind, set()).add(attempt.id)
        self.changed.add(attempt.id)

    def remove(self, attempt_id: str, kind: str) -> None:
        """The attempt is over."""
        if self._attempts.pop(attempt_id, None) is not None:
            self._by_kind[kind].discard(attempt_id)
            self._forget(attempt_id)
        self.changed.discard(attempt_id)
        self._stale.pop(attempt_id, None)

    def leave(self, attempt_id: str) -> None:
        """The attempt has been asked to leave: nobody else need ask."""
        self._forget(attempt_id)

    def refresh(
        self, jobs: Mapping[str, LiveJob], ranking: Ranking, policy: Policy, now: float, learned: set[str]
    ) -> None:
        """Appraise anew what has changed by `now` (UTC seconds)."""
        if policy != self._policy or now < self._seen_at:
            self.changed.update(self._known)
        elif ranking.key != self._ranking:
            self._stale.update(dict.fromkeys(self._known))
        self._policy, self._ranking = policy, ranking.key
        for kind in learned:
            self._stale.update(dict.fromkeys(self._by_kind.get(kind, ())))
        while self._due and self._due[0][0] <= now:
            self.changed.add(heapq.heappop(self._due)[1])
        self._seen_at = now
        self.changed.update(islice(self._stale, AT_ONCE))
        for attempt_id in self.changed:
            self._stale.pop(attempt_id, None)
            self._forget(attempt_id)
            attempt = self._attempts.get(attempt_id)
            # What an engine has placed gives no room on a node of ours.
            if attempt is not None and attempt.state is AttemptState.RUNNING and not attempt.placements[0].offer:
                self._file(_appraised(attempt, jobs[attempt.job_id], ranking, policy, now))
        self.changed.clear()

    @property
    def behind(self) -> bool:
        """True while attempts wait to be appraised by what has been learned since."""
        return bool(self._stale)

    def next_change(self) -> float | None:
        """When (UTC seconds) an appraisal next runs out; None if none does."""
        while self._due and not self._holds(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def nodes(self) -> list[str]:
        """The nodes that have any."""
        return list(self._by_node)

    def on(self, node_id: str) -> Sequence[Victim]:
        """Those on the node, the one to ask first first."""
        return self._by_node.get(node_id, ())

    def _holds(self, until: float, attempt_id: str) -> bool:
        known = self._known.get(attempt_id)
        return known is not None and known.until == until

    def _file(self, victim: Victim) -> None:
        self._known[victim.attempt.id] = victim
        for share in victim.attempt.placements:
            insort(self._by_node.setdefault(share.node_id, []), victim, key=_key)
        if victim.until < math.inf:
            heapq.heappush(self._due, (victim.until, victim.attempt.id))

    def _forget(self, attempt_id: str) -> None:
        victim = self._known.pop(attempt_id, None)
        if victim is None:
            return
        for share in victim.attempt.placements:
            here = self._by_node[share.node_id]
            del here[bisect_left(here, victim.key, key=_key)]
            if not here:
                del self._by_node[share.node_id]


def _appraised(attempt: Attempt, job: LiveJob, ranking: Ranking, policy: Policy, now: float) -> Victim:
    ran = now - attempt.started_at if attempt.started_at is not None else 0.0
    served = job.served_s + max(0.0, ran)
    effective, worth = ranking.effective_priority(job, now), ranking.worth(job, served)
    often = job.preemptions >= policy.preempt_most
    settled_at = math.inf if often else now - ran + RUN_COSTS * policy.preempt_cost_s
    # A moment later than the edge, so that rounding wakes nobody in vain.
    times = [now + next_span_s(served) - served + 1e-3] if ranking.learns else []
    times += [settled_at] if now < settled_at < math.inf else []
    times += [at for at in (ranking.next_ageing(job, now),) if at is not None]
    value = worth * job.width * policy.preempt_gain
    key = effective, worth, -attempt.created_at, attempt.id
    return Victim(attempt, job, effective, value, settled_at, min(times, default=math.inf), key)
