"""Which jobs may start on what is reserved in advance, before its holder needs it."""

import math
from collections.abc import Set

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.advance import kept_shares
from gpuyard.scheduler.fitting import SLACK
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.view import View


def lendable(
    view: View, hopeful: Set[Shape], least: Shape, now: float, policy: Policy
) -> set[Shape]:
    """The hopeful shapes, if there is room for `least` that is not reserved; else those
    of jobs that may start on what is.
    """
    keepers = _nodes_with_reserved_room(view, least)
    if keepers is None:
        return set(hopeful)
    begins = [
        one.begins_at
        for one in view.advance.coming
        if not keepers.isdisjoint(one.shares)
    ]
    until = max(begins, default=-math.inf)
    queue = view.queue
    if until <= now:
        return {shape for shape in hopeful if shape in queue.preemptible_shapes}
    claiming = {bucket[1] for _, bucket in queue.claiming()}
    may_start = claiming | queue.preemptible_shapes.keys()
    return {
        shape
        for shape in hopeful
        if shape in may_start or now + _shortest_s(view, shape, policy) <= until
    }


def _nodes_with_reserved_room(view: View, least: Shape) -> set[str] | None:
    """The nodes that have room for `least` only on what is reserved; None if one has
    room beside that.
    """
    kept = kept_shares(view.advance.coming, view.nodes)
    found: set[str] = set()
    for node_id in view.index.with_room(least):
        space = view.nodes[node_id].free
        for share in kept.get(node_id, ()):
            space = space.minus(share)
        has_room = (
            len(space.devices) >= least.gpus
            and space.cpus + SLACK >= least.cpus
            and space.memory_gb + SLACK >= least.memory_gb
        )
        if has_room:
            return None
        found.add(node_id)
    return found


def _shortest_s(view: View, shape: Shape, policy: Policy) -> float:
    """How long the shortest job of the shape is taken to run."""
    limit_s = view.queue.shortest(shape) + policy.end_margin_s
    return min(limit_s, policy.reservation_notice_s)
