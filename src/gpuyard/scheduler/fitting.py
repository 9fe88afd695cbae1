"""Fitting: whether a share of a shape fits into a space, and with which devices."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache

from gpuyard.domain.gpus import GPUClass, compute_capability, resolve_gpu_class
from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.nodes import Device, Node, Space

SLACK = 1e-6
"""Cores or gigabytes. Sums of floats are not exact, and ten times 0.1 must fit into
1.
"""


def provider_for(node: Node, shape: Shape) -> str:
    """The provider that would run a share on `node`: the node's own, or the one of its
    containers; empty if the job allows neither.
    """
    if shape.model:
        return ""
    if node.joined and not shape.portable:
        return ""
    provider = shape.provider or (node.containers if shape.image else node.provider)
    if provider not in (node.provider, node.containers):
        return ""
    if shape.image and provider != node.containers:
        return ""
    if shape.providers and provider not in shape.providers:
        return ""
    return provider


def allowed(node: Node, shape: Shape) -> bool:
    """True if the job allows a provider of the node."""
    return bool(provider_for(node, shape))


def quarantine_of(node: Node, shape: Shape) -> str:
    """The quarantine that keeps the job from the node, for people; empty if none
    does.
    """
    if shape.quarantined or not node.barred:
        return ""
    return node.barred.get(provider_for(node, shape), "")


def may_use(node: Node, shape: Shape) -> bool:
    """True if the job allows the node, and no quarantine keeps it out."""
    return allowed(node, shape) and not quarantine_of(node, shape)


@lru_cache(maxsize=4096)
def ignoring_quarantine(shape: Shape) -> Shape:
    """The shape, but allowed in quarantine: quarantines end."""
    return shape if shape.quarantined else replace(shape, quarantined=True)


def could_hold(node: Node, shape: Shape) -> bool:
    """True if a share fits into all that the node has: booked or free, usable or
    not.
    """
    return fit(node.capacity, ignoring_quarantine(shape)) is not None


def suitable_devices(devices: Iterable[Device], shape: Shape) -> list[Device]:
    """The devices with the memory, capability and class that the shape asks for. If it
    pins GPUs, only those; if it does not allow quarantine, none in quarantine.
    """
    if not shape.quarantined:
        devices = [device for device in devices if not device.quarantine]
    if not (
        shape.gpu_memory_gb
        or shape.gpu_capability
        or shape.gpu_class
        or shape.gpu_uuids
    ):
        return list(devices)
    classes = _classes(shape.gpu_class)
    least = _capability(shape.gpu_capability)
    return [
        device
        for device in devices
        if device.memory_gb + SLACK >= shape.gpu_memory_gb
        and device.capability >= least
        and (classes is None or device.gpu_class in classes)
        and (not shape.gpu_uuids or device.uuid in shape.gpu_uuids)
    ]


def has_amounts(space: Space, shape: Shape) -> bool:
    """True if the space has as many GPUs, cores and gigabytes as a share asks for."""
    return (
        len(space.devices) >= shape.gpus
        and space.cpus + SLACK >= shape.cpus
        and space.memory_gb + SLACK >= shape.memory_gb
    )


def fit(space: Space, shape: Shape) -> tuple[Device, ...] | None:
    """The devices that a share gets in `space`, the smallest first; None if it does not
    fit.
    """
    # As `has_amounts`; a call would be slower, and this is asked very often.
    if space.cpus + SLACK < shape.cpus or space.memory_gb + SLACK < shape.memory_gb:
        return None
    if len(space.devices) < shape.gpus:
        return None
    if not shape.gpus:
        return ()
    chosen = suitable_devices(space.devices, shape)[: shape.gpus]
    return tuple(chosen) if len(chosen) == shape.gpus else None


def share_of(node: Node, devices: Iterable[Device], shape: Shape) -> Placement:
    """The placement of a share of `shape` on `node` with these devices."""
    return Placement(
        node.id, tuple(device.uuid for device in devices), shape.cpus, shape.memory_gb
    )


@cache
def _classes(name: str) -> frozenset[GPUClass] | None:
    return resolve_gpu_class(name) if name else None


@cache
def _capability(text: str) -> tuple[int, int]:
    return compute_capability(text) if text else (0, 0)
