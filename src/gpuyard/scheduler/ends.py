"""Ends: when nodes get room again, as lower bounds that tell where it is worth looking closely.

For every node and number of GPUs it is known when, at the earliest, so many will be free, if nothing else were in the
way. Whoever wants the node that is free soonest takes nodes in this order and stops as soon as no bound is better than
what was found. Bounds are kept from one decision to the next; only nodes that changed are looked at again.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from gpuyard.scheduler.nodes import Node

Bound = tuple[float, int, str]
"""Not before (UTC seconds), GPUs that are lacking even then (only where that is infinity), node id."""
EndOf = Callable[[str], float]


class Ends:
    """Bounds for the nodes of a view. `changed` names the nodes to look at again."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._by_count: dict[int, list[Bound]] = {}
        self._of_node: dict[str, list[Bound]] = {}

    def refresh(self, nodes: dict[str, Node], end_of: EndOf) -> None:
        """Look again at what has changed. `end_of` says when a holder surely ends."""
        for node_id in self.changed:
            for count, bound in enumerate(self._of_node.pop(node_id, ())):
                row = self._by_count[count]
                del row[bisect_left(row, bound)]
            node = nodes[node_id]
            if node.online:
                bounds = self._of_node[node_id] = _bounds(node, end_of)
                for count, bound in enumerate(bounds):
                    insort(self._by_count.setdefault(count, []), bound)
        self.changed.clear()

    def soonest(self, count: int) -> Iterator[Bound]:
        """The bounds of all nodes that have so many GPUs, best first."""
        return iter(self._by_count.get(count, ()))


def _bounds(node: Node, end_of: EndOf) -> list[Bound]:
    """One bound for each number of GPUs from 0 to all. With 0, something must end for cores or memory to come free."""
    freed = sorted((end_of(holder), len(share.gpu_uuids)) for holder, share in node.bookings.items())
    free = len(node.free.devices)
    bounds: list[Bound] = [(freed[0][0] if freed else 0.0, 0, node.id)]
    bounds += [(0.0, 0, node.id)] * free
    for end, gpus in freed:
        if end < math.inf:
            bounds += [(end, 0, node.id)] * gpus
    rest = len(node.whole.devices) + 1 - len(bounds)
    bounds += [(math.inf, lacking, node.id) for lacking in range(1, rest + 1)]
    return bounds[: len(node.whole.devices) + 1]
