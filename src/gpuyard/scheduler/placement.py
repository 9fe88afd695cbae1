"""Placement: filter, fit, score. On which nodes and devices a shape goes, all of its nodes or none.

The smallest device that satisfies is taken, then the node with the fewest GPUs left, then the fewest cores and least
memory: large devices and empty nodes stay whole for those who need them. Jobs without GPUs keep off GPU nodes while
another fits. The node's id decides ties, so equal views give equal answers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

from gpuyard.domain.gpus import GPUClass, compute_capability, resolve_gpu_class
from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.nodes import Device, Node, Space
from gpuyard.scheduler.view import View

SLACK = 1e-6
"""Cores or gigabytes: sums of decimal fractions are not exact, and ten times 0.1 must fit into 1."""

SpaceOf = Callable[[Node], Space]
Score = tuple[bool, tuple[float, tuple[int, int]], int, float, float, str]

free_space: SpaceOf = attrgetter("free")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that can take one share of the shape now, with the devices it would give. The least score is best."""

    node: Node
    devices: tuple[Device, ...]
    score: Score


def allowed(node: Node, shape: Shape) -> bool:
    """True when the job lets itself be placed with the node's provider."""
    if shape.provider and node.provider != shape.provider:
        return False
    return not shape.providers or node.provider in shape.providers


def suitable(devices: Iterable[Device], shape: Shape) -> list[Device]:
    """Those of `devices` that have the memory, capability and class the shape asks for, and are pinned if it pins."""
    classes, least = _classes(shape.gpu_class), _capability(shape.gpu_capability)
    return [
        device
        for device in devices
        if device.memory_gb + SLACK >= shape.gpu_memory_gb
        and device.capability >= least
        and (classes is None or device.gpu_class in classes)
        and (not shape.gpu_uuids or device.uuid in shape.gpu_uuids)
    ]


def fit(space: Space, shape: Shape) -> tuple[Device, ...] | None:
    """The devices one share of `shape` would get in `space`, smallest first; None when it does not fit."""
    if space.cpus + SLACK < shape.cpus or space.memory_gb + SLACK < shape.memory_gb:
        return None
    if len(space.devices) < shape.gpus:
        return None
    if not shape.gpus:
        return ()
    chosen = suitable(space.devices, shape)[: shape.gpus]
    return tuple(chosen) if len(chosen) == shape.gpus else None


def share_of(node: Node, devices: Iterable[Device], shape: Shape) -> Placement:
    """What one share of `shape` books on `node` with these devices."""
    return Placement(node.id, tuple(device.uuid for device in devices), shape.cpus, shape.memory_gb)


def candidates(view: View, shape: Shape, space_of: SpaceOf = free_space) -> list[Candidate]:
    """The nodes that can take a share, best first. `space_of` says how much of a node is to be had."""
    found: list[Candidate] = []
    for node in view.nodes.values():
        if not node.online or not allowed(node, shape):
            continue
        space = space_of(node)
        devices = fit(space, shape)
        if devices is not None:
            found.append(Candidate(node, devices, _score(node, space, devices, shape)))
    return sorted(found, key=attrgetter("score"))


def place(view: View, shape: Shape, space_of: SpaceOf = free_space) -> tuple[Placement, ...] | None:
    """Where to put the shape: one share on each of `shape.nodes` distinct nodes; None when not all of them fit."""
    found = candidates(view, shape, space_of)
    if len(found) < shape.nodes:
        return None
    return tuple(share_of(candidate.node, candidate.devices, shape) for candidate in found[: shape.nodes])


def _score(node: Node, space: Space, devices: tuple[Device, ...], shape: Shape) -> Score:
    largest = (devices[-1].memory_gb, devices[-1].capability) if devices else (0.0, (0, 0))
    left = len(space.devices) - len(devices)
    # A share with GPUs only fits where there are some, so the first term weighs on jobs without GPUs alone.
    return bool(node.devices), largest, left, space.cpus - shape.cpus, space.memory_gb - shape.memory_gb, node.id


@cache
def _classes(name: str) -> frozenset[GPUClass] | None:
    return resolve_gpu_class(name) if name else None


@cache
def _capability(text: str) -> tuple[int, int]:
    return compute_capability(text) if text else (0, 0)
