"""Placement: filter, fit, score. On which nodes and devices a shape goes, all of its nodes or none.

The smallest device that satisfies is taken, then the node with the fewest GPUs left, then the fewest cores and least
memory: large devices and empty nodes stay whole for those who need them. Jobs without GPUs keep off GPU nodes while
another fits. The node's id decides ties, so equal views give equal answers.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.fitting import fit, may_use, share_of
from gpuyard.scheduler.index import Group
from gpuyard.scheduler.nodes import Device, Node, Space
from gpuyard.scheduler.view import View

SpaceOf = Callable[[Node], Space]
Score = tuple[bool, tuple[float, tuple[int, int]], int, float, float, str]
NO_DEVICE = (0.0, (0, 0))

free_space: SpaceOf = attrgetter("free")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that can take one share of the shape now, with the devices it would give. The least score is best."""

    node: Node
    devices: tuple[Device, ...]
    score: Score


def place(view: View, shape: Shape, instead: Mapping[str, Space] | None = None) -> tuple[Placement, ...] | None:
    """Where to put the shape now: one share on each of `shape.nodes` distinct nodes; None when not all of them fit.

    `instead` says of some nodes, by id, how much of them is to be had instead of all that is free.
    """
    other = instead or {}
    found = [candidate for id_, space in other.items() if (candidate := _candidate(view.nodes[id_], space, shape))]
    if shape.gpu_uuids:
        homes = {device.node_id for uuid in shape.gpu_uuids if (device := view.devices.get(uuid))} - other.keys()
        nodes = (view.nodes[home] for home in homes if home is not None)
        found += [candidate for node in nodes if (candidate := _candidate(node, node.free, shape))]
    for group in view.index.able(shape):
        # In a mixed group it depends on the devices each node has left which is best, so all must be seen.
        found += islice(_in_group(view, group, shape, other), shape.nodes if group.uniform else None)
    if len(found) < shape.nodes:
        return None
    best = [min(found, key=_score_of)] if shape.nodes == 1 else heapq.nsmallest(shape.nodes, found, key=_score_of)
    return tuple(share_of(candidate.node, candidate.devices, shape) for candidate in best)


def fitting(view: View, shape: Shape) -> Iterator[Node]:
    """The nodes that can take a share of the shape now."""
    for group in view.index.able(shape):
        yield from (candidate.node for candidate in _in_group(view, group, shape, {}))


def candidates(view: View, shape: Shape, space_of: SpaceOf = free_space) -> list[Candidate]:
    """The nodes that can take a share, best first, for people's questions: it looks at every node.

    `space_of` says how much of a node is to be had.
    """
    found = (_candidate(node, space_of(node), shape) for node in view.nodes.values())
    return sorted((candidate for candidate in found if candidate), key=_score_of)


def would_fit(view: View, shape: Shape, space_of: SpaceOf) -> bool:
    """True when all shares of the shape fit into what `space_of` says nodes have, for people's questions."""
    return len(candidates(view, shape, space_of)) >= shape.nodes


def _candidate(node: Node, space: Space, shape: Shape) -> Candidate | None:
    if not node.online or not may_use(node, shape):
        return None
    devices = fit(space, shape)
    return None if devices is None else Candidate(node, devices, _score(node, space, devices, shape))


def _in_group(view: View, group: Group, shape: Shape, other: Mapping[str, Space]) -> Iterator[Candidate]:
    """The group's nodes that can take a share; of a uniform group, best first."""
    for _, (_, _, node_id) in group.entries(shape):
        if node_id not in other:
            candidate = _candidate(node := view.nodes[node_id], node.free, shape)
            if candidate is not None:
                yield candidate


def _score(node: Node, space: Space, devices: tuple[Device, ...], shape: Shape) -> Score:
    largest = (devices[-1].memory_gb, devices[-1].capability) if devices else NO_DEVICE
    left = len(space.devices) - len(devices)
    # A share with GPUs only fits where there are some, so the first term weighs on jobs without GPUs alone.
    return bool(node.devices), largest, left, space.cpus - shape.cpus, space.memory_gb - shape.memory_gb, node.id


_score_of = attrgetter("score")
