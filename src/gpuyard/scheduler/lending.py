"""Which jobs may start on what is reserved in advance, before its holder needs it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.fitting import has_amounts
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import ONE_LINE
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.queue import Queue
from gpuyard.scheduler.view import View


@dataclass(frozen=True, slots=True)
class Lending:
    """All room that is left is reserved, and is lent until `until` (UTC seconds) at
    most. It is `now`; `policy` says how long jobs are taken to run.
    """

    until: float
    now: float
    policy: Policy

    def may_start(self, job: LiveJob) -> bool:
        """False if the job may start on nothing that is reserved."""
        if job.preemptible or job.party.claims != ONE_LINE:
            return True
        return self._ends_in_time(math.inf if job.timeout_s is None else job.timeout_s)

    def shapes(self, queue: Queue, hopeful: Iterable[Shape]) -> Iterator[Shape]:
        """Those of the hopeful shapes of which jobs may start."""
        has_begun = self.until <= self.now
        for shape in hopeful:
            is_open_to_some = shape in queue.preemptible_shapes or (
                not has_begun
                and (
                    shape in queue.claiming_shapes
                    or self._ends_in_time(queue.shortest(shape))
                )
            )
            if is_open_to_some:
                yield shape

    def _ends_in_time(self, limit_s: float) -> bool:
        """True if a job with this time limit is taken to end before the begin."""
        runs_s = min(
            limit_s + self.policy.end_margin_s, self.policy.reservation_notice_s
        )
        return self.now + runs_s <= self.until


def lending(view: View, least: Shape, now: float, policy: Policy) -> Lending | None:
    """What is lent now; None if there is room for `least` that is not reserved."""
    keepers = _nodes_with_reserved_room(view, least)
    if keepers is None:
        return None
    begins = [
        one.begins_at
        for one in view.advance.coming
        if not keepers.isdisjoint(one.shares)
    ]
    return Lending(max(begins, default=-math.inf), now, policy)


def with_room(view: View, least: Shape) -> frozenset[str]:
    """The ids of the advance reservations on whose nodes there is room for `least`."""
    return frozenset(
        one.id
        for one in view.advance.coming
        for node_id in one.shares
        if node_id in view.nodes and has_amounts(view.nodes[node_id].free, least)
    )


def _nodes_with_reserved_room(view: View, least: Shape) -> set[str] | None:
    """The nodes that have room for `least` only on what is reserved; None if one has
    room beside that.
    """
    found: set[str] = set()
    for node_id in view.index.with_room(least):
        node = view.nodes[node_id]
        space = node.free
        for one in view.advance.coming:
            if node_id in one.shares:
                space = space.minus(one.left_on(node))
        if has_amounts(space, least):
            return None
        found.add(node_id)
    return found
