"""Which jobs may start on what is reserved in advance, before its holder needs it."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from operator import attrgetter

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.fitting import has_amounts
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import NO_SHARES
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
        if job.preemptible or job.party.reserved_for != NO_SHARES:
            return True
        if job.timeout_s is None:
            return self.now + self.policy.reservation_notice_s <= self.until
        return self.now + job.timeout_s + self.policy.end_margin_s <= self.until

    def for_all(self, queue: Queue, hopeful: set[Shape]) -> set[Shape]:
        """Those of the hopeful shapes of which jobs may start for whom nothing is
        reserved.
        """
        notice_s = self.policy.reservation_notice_s
        longest_s = self.until - self.now
        if longest_s >= notice_s:
            return set(hopeful)
        preemptible = hopeful & queue.preemptible_shapes.keys()
        if longest_s <= 0:
            return preemptible
        most_s = longest_s - self.policy.end_margin_s
        shortest = queue.shortest
        return preemptible.union(
            [shape for shape in hopeful if shortest(shape) <= most_s]
        )


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
    nodes = set(view.index.with_room(least))
    return frozenset(
        one.id for one in view.advance.coming if not nodes.isdisjoint(one.shares)
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


def least_of(shapes: Collection[Shape]) -> Shape:
    """The least amounts that any of these asks for; there may be thousands."""
    return Shape(
        cpus=min(map(attrgetter("cpus"), shapes)),
        memory_gb=min(map(attrgetter("memory_gb"), shapes)),
        gpus=min(map(attrgetter("gpus"), shapes)),
    )
