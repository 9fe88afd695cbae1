"""The index: finds nodes for a share without looking at every node.

Nodes with equal hardware and equal quarantines form a group; a shape that does not fit
an empty node of the group is not tried there. In a group, nodes are sorted by free
GPUs, then free cores and memory, so the first that fits is the best (see `placement`).
Nodes that are not online are in no group.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.shape import Shape
from gpuyard.scheduler.fitting import SLACK, fit, may_use
from gpuyard.scheduler.nodes import Node, Space

Entry = tuple[float, float, str]
"""Free cores, free gigabytes, node id."""
DeviceKind = tuple[float, tuple[int, int], GPUClass | None, bool, int]
Hardware = tuple[str, float, float, tuple[DeviceKind, ...], frozenset[str], bool]


@dataclass(slots=True)
class NodeGroup:
    """Nodes of equal hardware, by free GPUs.

    `example` is one of them, empty. `uniform`: all their GPUs are of one kind.
    """

    example: Node
    uniform: bool
    buckets: dict[int, list[Entry]] = field(default_factory=dict[int, list[Entry]])
    counts: list[int] = field(default_factory=list[int])

    def entries(self, shape: Shape) -> Iterator[tuple[int, Entry]]:
        """Free GPUs and entry of each node with enough GPUs, cores and memory, the best
        first.
        """
        for count in self.counts[bisect_left(self.counts, shape.gpus) :]:
            bucket = self.buckets[count]
            for entry in bucket[bisect_left(bucket, (shape.cpus - SLACK,)) :]:
                if entry[1] + SLACK >= shape.memory_gb:
                    yield count, entry

    def add(self, count: int, entry: Entry) -> None:
        """Add a node."""
        if count not in self.buckets:
            self.buckets[count] = []
            insort(self.counts, count)
        insort(self.buckets[count], entry)

    def remove(self, count: int, entry: Entry) -> None:
        """Remove a node."""
        bucket = self.buckets[count]
        del bucket[bisect_left(bucket, entry)]
        if not bucket:
            del self.buckets[count]
            self.counts.remove(count)


class NodeIndex:
    """All groups of nodes.

    `freed`: the nodes that have more free room than when it was last cleared, or that
    went offline since.
    """

    def __init__(self) -> None:
        self.freed: set[str] = set()
        self._stale: dict[str, Node] = {}
        self._hardware: dict[str, tuple[Space, NodeGroup]] = {}
        self._groups: dict[Hardware, NodeGroup] = {}
        self._where: dict[str, tuple[NodeGroup, int, Entry]] = {}
        self._free: dict[str, Space] = {}
        self._suitable_groups: dict[Shape, list[NodeGroup]] = {}

    def update(self, node: Node) -> None:
        """The node's state, hardware or bookings have changed."""
        self._stale[node.id] = node

    def refresh(self) -> None:
        """Move nodes that have changed to their new positions."""
        for node in self._stale.values():
            known = self._where.pop(node.id, None)
            before = self._free.pop(node.id, None)
            if known is not None:
                group, count, entry = known
                group.remove(count, entry)
            if node.online:
                group = self._group(node)
                count = len(node.free.devices)
                entry = (node.free.cpus, node.free.memory_gb, node.id)
                group.add(count, entry)
                self._where[node.id] = group, count, entry
                self._free[node.id] = node.free
            if _has_more(before, self._free.get(node.id)):
                self.freed.add(node.id)
        self._stale.clear()

    def suitable_groups(self, shape: Shape) -> list[NodeGroup]:
        """The groups whose empty nodes could take a share."""
        self.refresh()
        if shape not in self._suitable_groups:
            self._suitable_groups[shape] = [
                group for group in self._groups.values() if _could_hold(group, shape)
            ]
        return self._suitable_groups[shape]

    def has_room(self, least: Shape) -> bool:
        """True if a node has as many free GPUs, cores and gigabytes as `least` asks
        for; its other needs are ignored.
        """
        self.refresh()
        return any(next(group.entries(least), None) for group in self._groups.values())

    def with_room(self, least: Shape) -> Iterator[str]:
        """The nodes that have as many free GPUs, cores and gigabytes."""
        self.refresh()
        for group in self._groups.values():
            for _, (_, _, node_id) in group.entries(least):
                yield node_id

    def _group(self, node: Node) -> NodeGroup:
        known = self._hardware.get(node.id)
        # `whole` is a new object whenever the hardware may have changed.
        if known is not None and known[0] is node.whole:
            return known[1]
        kinds = tuple(
            (
                device.memory_gb,
                device.capability,
                device.gpu_class,
                bool(device.quarantine),
                device.brain_rank,
            )
            for device in node.whole.devices
        )
        hardware = (
            f"{node.provider} {node.containers}",
            node.cpus,
            node.memory_gb,
            kinds,
            frozenset(node.barred),
            node.joined,
        )
        group = self._groups.get(hardware)
        if group is None:
            is_uniform = len(set(kinds)) <= 1
            group = self._groups[hardware] = NodeGroup(_emptied(node), is_uniform)
            for shape, suitable in self._suitable_groups.items():
                if _could_hold(group, shape):
                    suitable.append(group)
        self._hardware[node.id] = node.whole, group
        return group


def _has_more(before: Space | None, now: Space | None) -> bool:
    """True if a node has more room than before, or has come or gone. When it has gone,
    jobs that waited for it no longer hold reservations there.
    """
    if before is None or now is None:
        return before is not now
    return (
        now.cpus > before.cpus
        or now.memory_gb > before.memory_gb
        or not _uuids(now) <= _uuids(before)
    )


def _uuids(space: Space) -> set[str]:
    return {device.uuid for device in space.devices}


def _emptied(node: Node) -> Node:
    """A copy of the node without bookings."""
    return Node(
        node.id,
        provider=node.provider,
        containers=node.containers,
        state="online",
        whole=node.whole,
        barred=node.barred,
        joined=node.joined,
    )


def _could_hold(group: NodeGroup, shape: Shape) -> bool:
    """True if an empty node of the group could hold a share."""
    # Pinned GPUs are found by their UUIDs, not by the hardware of a group.
    if shape.gpu_uuids or not may_use(group.example, shape):
        return False
    return fit(group.example.whole, shape) is not None
