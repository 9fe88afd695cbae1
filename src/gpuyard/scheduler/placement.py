"""Placement: chooses the nodes and devices for a shape; all shares must fit.

Devices of the brain are used last. Of the others, the smallest sufficient ones are
chosen first, then the node with the fewest GPUs
left, then the one with the fewest cores and the least memory left: so large devices and
empty nodes stay free for jobs that need them. Jobs without GPUs avoid nodes with GPUs
if another fits. The node's id decides ties, so equal views give equal answers.
"""

import heapq
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.fitting import fit, may_use, share_of
from gpuyard.scheduler.index import NodeGroup
from gpuyard.scheduler.nodes import Device, Node, Space
from gpuyard.scheduler.view import View

SpaceOf = Callable[[Node], Space]
LastDevice = tuple[int, float, tuple[int, int]]
Score = tuple[bool, LastDevice, int, float, float, str]
NO_DEVICE: LastDevice = (0, 0.0, (0, 0))

free_space: SpaceOf = attrgetter("free")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that can take a share of the shape, and the devices for it.

    The least score is best.
    """

    node: Node
    devices: tuple[Device, ...]
    score: Score


def place(
    view: View, shape: Shape, spaces: Mapping[str, Space] | None = None
) -> tuple[Placement, ...] | None:
    """The best places for the shape now, one on each of `shape.nodes` nodes; None if
    not all shares fit.

    `spaces`: by node, the space that may be used instead of all that is free there.
    """
    limited = spaces or {}
    found: list[Candidate] = []
    for node_id, space in limited.items():
        candidate = _candidate(view.nodes[node_id], space, shape)
        if candidate:
            found.append(candidate)
    if shape.gpu_uuids:
        for node_id in view.nodes_of(shape.gpu_uuids) - limited.keys():
            node = view.nodes[node_id]
            candidate = _candidate(node, node.free, shape)
            if candidate:
                found.append(candidate)
    for group in view.index.suitable_groups(shape):
        candidates = _in_group(view, group, shape, limited)
        # The first nodes of a uniform group are the best. In a mixed group that depends
        # on the free devices, so all nodes are looked at.
        found += islice(candidates, shape.nodes if group.uniform else None)
    return _best(found, shape)


def _best(found: list[Candidate], shape: Shape) -> tuple[Placement, ...] | None:
    if len(found) < shape.nodes:
        return None
    # For one node, `min` is faster.
    if shape.nodes == 1:
        best = [min(found, key=_score_of)]
    else:
        best = heapq.nsmallest(shape.nodes, found, key=_score_of)
    return tuple(
        share_of(candidate.node, candidate.devices, shape) for candidate in best
    )


def place_within(
    view: View, shape: Shape, spaces: Mapping[str, Space]
) -> tuple[Placement, ...] | None:
    """The best places for the shape in these spaces, by node; None if not all shares
    fit.
    """
    found: list[Candidate] = []
    for node_id, space in spaces.items():
        candidate = _candidate(view.nodes[node_id], space, shape)
        if candidate:
            found.append(candidate)
    return _best(found, shape)


def fitting(view: View, shape: Shape) -> Iterator[Node]:
    """The nodes that can take a share of the shape now."""
    for group in view.index.suitable_groups(shape):
        for candidate in _in_group(view, group, shape, ()):
            yield candidate.node


def candidates(
    view: View, shape: Shape, space_of: SpaceOf = free_space
) -> list[Candidate]:
    """The nodes that can take a share, the best first. It looks at every node, so it is
    for people's questions.

    `space_of` returns the space of a node that may be used.
    """
    found = (_candidate(node, space_of(node), shape) for node in view.nodes.values())
    return sorted((candidate for candidate in found if candidate), key=_score_of)


def would_fit(view: View, shape: Shape, space_of: SpaceOf) -> bool:
    """True if all shares of the shape fit into the spaces that `space_of` returns.

    It looks at every node, so it is for people's questions.
    """
    return len(candidates(view, shape, space_of)) >= shape.nodes


def _candidate(node: Node, space: Space, shape: Shape) -> Candidate | None:
    if not node.online or not may_use(node, shape):
        return None
    is_beside = shape.gpu_uuids and not shape.gpus
    if is_beside and node.devices.keys().isdisjoint(shape.gpu_uuids):
        return None
    devices = fit(space, shape)
    if devices is None:
        return None
    return Candidate(node, devices, _score(node, space, devices, shape))


def _in_group(
    view: View, group: NodeGroup, shape: Shape, skipped: Container[str]
) -> Iterator[Candidate]:
    """The group's nodes that can take a share; the best first if it is uniform."""
    for _, (_, _, node_id) in group.entries(shape):
        if node_id not in skipped:
            node = view.nodes[node_id]
            candidate = _candidate(node, node.free, shape)
            if candidate is not None:
                yield candidate


def _score(
    node: Node, space: Space, devices: tuple[Device, ...], shape: Shape
) -> Score:
    last = NO_DEVICE
    if devices:
        device = devices[-1]
        last = (device.brain_rank, device.memory_gb, device.capability)
    left = len(space.devices) - len(devices)
    # The first term only matters for jobs without GPUs, because a share with GPUs only
    # fits on nodes with GPUs.
    return (
        bool(node.devices),
        last,
        left,
        space.cpus - shape.cpus,
        space.memory_gb - shape.memory_gb,
        node.id,
    )


_score_of = attrgetter("score")
