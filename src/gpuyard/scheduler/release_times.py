"""Release times: lower bounds for when nodes have free GPUs again.

For each node and number of GPUs there is a bound: that many GPUs are not free earlier.
To find the node that is free soonest, look at nodes in the order of their bounds, and
stop when no bound is better than the best node found. Bounds are kept between
decisions; only those of changed nodes are computed again.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import zip_longest

from gpuyard.scheduler.nodes import Node

Bound = tuple[float, int, str]
"""Not before (UTC seconds); GPUs still missing then (only if that time is infinity);
node id.
"""
EndOf = Callable[[str], float]


class ReleaseTimes:
    """Bounds for all nodes. `changed` holds the nodes whose bounds are outdated."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._by_count: dict[int, list[Bound]] = {}
        self._of_node: dict[str, list[Bound]] = {}

    def refresh(self, nodes: dict[str, Node], end_of: EndOf) -> None:
        """Compute outdated bounds again. `end_of` returns when a holder ends at the
        latest.
        """
        for node_id in self.changed:
            node = nodes[node_id]
            before = self._of_node.pop(node_id, [])
            bounds = _bounds(node, end_of) if node.online else []
            for count, (old, new) in enumerate(zip_longest(before, bounds)):
                if old != new:
                    self._replace(count, old, new)
            if bounds:
                self._of_node[node_id] = bounds
        self.changed.clear()

    def _replace(self, count: int, old: Bound | None, new: Bound | None) -> None:
        row = self._by_count.setdefault(count, [])
        if old is not None:
            del row[bisect_left(row, old)]
        if new is not None:
            insort(row, new)

    def soonest(self, count: int) -> Iterator[Bound]:
        """The bounds of all nodes with at least `count` GPUs, the best first."""
        return iter(self._by_count.get(count, ()))


def _bounds(node: Node, end_of: EndOf) -> list[Bound]:
    """One bound for each number of GPUs from 0 to all.

    With 0 GPUs, cores or memory are missing, so some attempt must end first.
    """
    freed = sorted(
        (end_of(holder), len(share.gpu_uuids))
        for holder, share in node.bookings.items()
    )
    free = len(node.free.devices)
    bounds: list[Bound] = [(freed[0][0] if freed else 0.0, 0, node.id)]
    bounds += [(0.0, 0, node.id)] * free
    for end, gpus in freed:
        if end < math.inf:
            bounds += [(end, 0, node.id)] * gpus
    rest = len(node.whole.devices) + 1 - len(bounds)
    bounds += [(math.inf, lacking, node.id) for lacking in range(1, rest + 1)]
    return bounds[: len(node.whole.devices) + 1]
