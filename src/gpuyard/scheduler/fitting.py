"""Fitting: whether a share of a shape fits into a space, and which devices it would get."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache

from gpuyard.domain.gpus import GPUClass, compute_capability, resolve_gpu_class
from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.nodes import Device, Node, Space

SLACK = 1e-6
"""Cores or gigabytes: sums of decimal fractions are not exact, and ten times 0.1 must fit into 1."""


def provider_for(node: Node, shape: Shape) -> str:
    """Which provider would run a share on `node`: its own, or the one of its containers; empty when the job allows
    neither."""
    wished = shape.provider or (node.containers if shape.image else node.provider)
    if wished not in (node.provider, node.containers) or (shape.image and wished != node.containers):
        return ""
    return wished if not shape.providers or wished in shape.providers else ""


def allowed(node: Node, shape: Shape) -> bool:
    """True when the job lets itself be placed with a provider of the node."""
    return bool(provider_for(node, shape))


def barred(node: Node, shape: Shape) -> str:
    """The quarantine of the node, or of its provider, that keeps the job out, for people; empty when none does."""
    return "" if shape.quarantined or not node.barred else node.barred.get(provider_for(node, shape), "")


def may_use(node: Node, shape: Shape) -> bool:
    """True when the job allows the node, and no quarantine keeps it out."""
    return allowed(node, shape) and not barred(node, shape)


@lru_cache(maxsize=4096)
def anywhere(shape: Shape) -> Shape:
    """The shape, but that no quarantine keeps it out: quarantines pass."""
    return shape if shape.quarantined else replace(shape, quarantined=True)


def holds(node: Node, shape: Shape) -> bool:
    """True when a share fits into all that the node has, booked or not, well or not."""
    return fit(node.capacity, anywhere(shape)) is not None


def suitable(devices: Iterable[Device], shape: Shape) -> list[Device]:
    """Those of `devices` that have the memory, capability and class the shape asks for, are pinned if it pins, and are
    in no quarantine unless it allows that."""
    if not shape.quarantined:
        devices = [device for device in devices if not device.quarantine]
    if not (shape.gpu_memory_gb or shape.gpu_capability or shape.gpu_class or shape.gpu_uuids):
        return list(devices)
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


@cache
def _classes(name: str) -> frozenset[GPUClass] | None:
    return resolve_gpu_class(name) if name else None


@cache
def _capability(text: str) -> tuple[int, int]:
    return compute_capability(text) if text else (0, 0)
