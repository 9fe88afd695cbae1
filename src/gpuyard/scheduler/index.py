"""The index: where a share of a shape could go, found without looking at every node.

Nodes of equal hardware, alike in what is in quarantine, form a group; a shape that does not fit the group's empty node
is never tried on it. Within a group nodes stand by how many GPUs are free, then by free cores and memory, so the best
place (see `placement`) is the first that fits. Nodes that are not online are in no group.
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
DeviceKind = tuple[float, tuple[int, int], GPUClass | None, bool]
Hardware = tuple[str, float, float, tuple[DeviceKind, ...], frozenset[str]]


@dataclass(slots=True)
class Group:
    """Nodes of equal hardware, by free GPUs. `model` is one of them; `uniform` when their GPUs are all of one kind."""

    model: Node
    uniform: bool
    buckets: dict[int, list[Entry]] = field(default_factory=dict[int, list[Entry]])
    counts: list[int] = field(default_factory=list[int])

    def entries(self, shape: Shape) -> Iterator[tuple[int, Entry]]:
        """Free GPUs and entry of each node with enough GPUs, cores and memory, in order of preference."""
        for count in self.counts[bisect_left(self.counts, shape.gpus) :]:
            bucket = self.buckets[count]
            for entry in bucket[bisect_left(bucket, (shape.cpus - SLACK,)) :]:
                if entry[1] + SLACK >= shape.memory_gb:
                    yield count, entry

    def put(self, count: int, entry: Entry) -> None:
        """File a node."""
        if count not in self.buckets:
            self.buckets[count] = []
            insort(self.counts, count)
        insort(self.buckets[count], entry)

    def take(self, count: int, entry: Entry) -> None:
        """Take a node out."""
        bucket = self.buckets[count]
        del bucket[bisect_left(bucket, entry)]
        if not bucket:
            del self.buckets[count]
            self.counts.remove(count)


class NodeIndex:
    """Groups of nodes. `freed` are the nodes of which more is free, or which have gone, since it was last cleared."""

    def __init__(self) -> None:
        self.freed: set[str] = set()
        self._stale: dict[str, Node] = {}
        self._hardware: dict[str, tuple[Space, Group]] = {}
        self._groups: dict[Hardware, Group] = {}
        self._where: dict[str, tuple[Group, int, Entry]] = {}
        self._free: dict[str, Space] = {}
        self._able: dict[Shape, list[Group]] = {}

    def update(self, node: Node) -> None:
        """The node's state, hardware or bookings have changed."""
        self._stale[node.id] = node

    def settle(self) -> None:
        """File anew what has changed."""
        for node in self._stale.values():
            known, before = self._where.pop(node.id, None), self._free.pop(node.id, None)
            if known is not None:
                group, count, entry = known
                group.take(count, entry)
            if node.online:
                group = self._group(node)
                count, entry = len(node.free.devices), (node.free.cpus, node.free.memory_gb, node.id)
                group.put(count, entry)
                self._where[node.id] = group, count, entry
                self._free[node.id] = node.free
            if _more(before, self._free.get(node.id)):
                self.freed.add(node.id)
        self._stale.clear()

    def able(self, shape: Shape) -> list[Group]:
        """The groups whose nodes could take a share if they were empty."""
        self.settle()
        if shape not in self._able:
            self._able[shape] = [group for group in self._groups.values() if _could(group, shape)]
        return self._able[shape]

    def has_room(self, least: Shape) -> bool:
        """False when no node has as many free GPUs, cores and gigabytes as `least` names, whatever else it asks."""
        self.settle()
        return any(next(group.entries(least), None) for group in self._groups.values())

    def forget(self, shapes: set[Shape]) -> None:
        """Let go of what is remembered of these shapes."""
        for shape in shapes:
            self._able.pop(shape, None)

    def _group(self, node: Node) -> Group:
        known = self._hardware.get(node.id)
        if known is not None and known[0] is node.whole:
            return known[1]  # `whole` is made anew whenever the hardware may have changed
        kinds = tuple((device.memory_gb, device.capability, device.gpu_class, bool(device.quarantine))
                      for device in node.whole.devices)  # fmt: skip
        hardware = (f"{node.provider} {node.containers}", node.cpus, node.memory_gb, kinds, frozenset(node.barred))
        group = self._groups.get(hardware)
        if group is None:
            group = self._groups[hardware] = Group(_model(node), len(set(kinds)) <= 1)
            for shape, able in self._able.items():
                if _could(group, shape):
                    able.append(group)
        self._hardware[node.id] = node.whole, group
        return group


def _more(before: Space | None, now: Space | None) -> bool:
    """Has room come? What left it altogether counts as well: whoever waited for it is in nobody's way any more."""
    if before is None or now is None:
        return before is not now
    return now.cpus > before.cpus or now.memory_gb > before.memory_gb or not _uuids(now) <= _uuids(before)


def _uuids(space: Space) -> set[str]:
    return {device.uuid for device in space.devices}


def _model(node: Node) -> Node:
    """A copy of the node as it is when empty."""
    return Node(node.id, provider=node.provider, containers=node.containers, state="online", whole=node.whole,
                barred=node.barred)  # fmt: skip


def _could(group: Group, shape: Shape) -> bool:
    # Pinned devices are on certain nodes and not on a kind of node; they are looked for by their UUIDs.
    return not shape.gpu_uuids and may_use(group.model, shape) and fit(group.model.whole, shape) is not None
